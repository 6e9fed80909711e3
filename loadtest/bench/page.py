"""A run as one HTML page: the plots, and the tables of the report. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from loadtest.bench.samples import Samples
from loadtest.bench.table import CPU, RATE, Columns
from loadtest.report.page import figures, from_markdown, page
from loadtest.report.plots import Bar, bars

PLOTS: tuple[tuple[str, Columns], ...] = (
    ("CPU time per request, µs (16 connections)", CPU),
    ("Requests a second at saturation, one core", RATE),
    ("CPU time per streamed chunk, µs", [("100 streams", "chunk_us 100"), ("400 streams", "chunk_us 400")]),
    ("Added latency, one request at a time, p50, µs", [("1 KB", "added_p50 1 KB"), ("64 KB", "added_p50 64 KB")]),
    ("Time to first byte among streams, p50, µs", [("100 streams", "ttfb_p50 100"), ("400 streams", "ttfb_p50 400")]),
    ("Memory, MB", [("before", "memory_mb_before"), ("after", "memory_mb_after")]),
)


def as_html(samples: Samples, titles: Mapping[str, str], report: str) -> str:
    """The page; `report` is the run's report in Markdown."""
    return page("Benchmark", [figures(_plot(samples, titles, *plot) for plot in PLOTS), from_markdown(report)])


def _plot(samples: Samples, titles: Mapping[str, str], title: str, columns: Columns) -> str:
    """Systems that have no value at all, such as the workers alone where CPU is charged, are left out."""
    found = {
        name: [_bar(samples, system, figure) for _, figure in columns]
        for system, name in titles.items()
        if any(samples.spread(system, figure) for _, figure in columns)
    }
    shown = [position for position in range(len(columns)) if any(bars_[position] for bars_ in found.values())]
    return bars(
        title,
        [columns[position][0] for position in shown],
        {name: [row[position] for position in shown] for name, row in found.items()},
    )


def _bar(samples: Samples, system: str, figure: str) -> Bar | None:
    spread = samples.spread(system, figure)
    return Bar(spread.median, spread.least, spread.greatest) if spread else None
