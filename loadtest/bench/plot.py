"""The figures as a picture: needs the `bench` extra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.bench.samples import Samples
from loadtest.bench.table import CPU, Columns

CHUNKS: Columns = [("100 streams", "chunk_us 100"), ("400 streams", "chunk_us 400")]
ADDED: Columns = [("1 KB", "added_p50 1 KB"), ("64 KB", "added_p50 64 KB")]
PANELS: Sequence[tuple[str, Columns, bool]] = [
    ("CPU per request, us", CPU, True),
    ("CPU per streamed chunk, us", CHUNKS, False),
    ("Added latency, serial, p50, us", ADDED, False),
]


def draw(samples: Samples, titles: Mapping[str, str], path: Path) -> bool:
    """Write a PNG; False when there is no plotting library."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(16, 5.5), width_ratios=[2, 1, 1], layout="constrained")
    for axis, (title, columns, logarithmic) in zip(axes, PANELS, strict=True):
        _panel(axis, samples, titles, columns)
        axis.set_title(title)
        if logarithmic:
            axis.set_yscale("log")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


def _panel(axis: Any, samples: Samples, titles: Mapping[str, str], columns: Columns) -> None:
    """Bars by system within each column; lines show the range of the rounds."""
    systems = [system for system in titles if any(samples.spread(system, name) for _, name in columns)]
    width = 0.8 / max(1, len(systems))
    for place, system in enumerate(systems):
        found = [samples.spread(system, name) for _, name in columns]
        medians = [spread.median if spread else 0.0 for spread in found]
        below = [spread.median - spread.least if spread else 0.0 for spread in found]
        above = [spread.greatest - spread.median if spread else 0.0 for spread in found]
        at = [column + (place - (len(systems) - 1) / 2) * width for column in range(len(columns))]
        axis.bar(at, medians, width, yerr=[below, above], label=titles[system], error_kw={"linewidth": 0.8})
    axis.set_xticks(range(len(columns)), [head for head, _ in columns])
    axis.grid(axis="y", linewidth=0.3)
    axis.set_axisbelow(True)
