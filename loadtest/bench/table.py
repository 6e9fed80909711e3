"""The tables of a report, in Markdown. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadtest.bench.samples import Samples
from loadtest.bench.stats import Spread
from loadtest.bench.targets import Verdict

NOTHING = "-"

# Title, unit and the columns: heading and name of the figure.
Columns = Sequence[tuple[str, str]]
SIZES = ("0.5 KB", "8 KB", "64 KB", "512 KB")
CPU: Columns = [(size, f"cpu_us {size}") for size in SIZES]
CPU_SERIAL: Columns = [(size, f"serial_cpu_us {size}") for size in ("1 KB", "64 KB")]
PER_CPU: Columns = [(size, f"per_cpu_second {size}") for size in SIZES]
RATE: Columns = [(size, f"rps {size}") for size in SIZES]
LATENCY: Columns = [
    ("1 KB p50", "serial_p50 1 KB"),
    ("p99", "serial_p99 1 KB"),
    ("added p50", "added_p50 1 KB"),
    ("64 KB p50", "serial_p50 64 KB"),
    ("p99", "serial_p99 64 KB"),
    ("added p50", "added_p50 64 KB"),
    ("8 KB at half load p50", "half_p50 8 KB"),
    ("p99", "half_p99 8 KB"),
]
STREAMS: Columns = [
    ("us/chunk, 100 streams", "chunk_us 100"),
    ("us/chunk, 400 streams", "chunk_us 400"),
    ("first byte p50, 100 streams", "ttfb_p50 100"),
    ("p99", "ttfb_p99 100"),
    ("first byte p50, 400 streams", "ttfb_p50 400"),
    ("p99", "ttfb_p99 400"),
]
MEMORY: Columns = [
    ("MB before", "memory_mb_before"),
    ("MB after", "memory_mb_after"),
    ("CPU when idle, ms/s", "idle_ms"),
]
SECTIONS: Sequence[tuple[str, Columns]] = [
    ("CPU time per request, microseconds (16 connections, closed loop)", CPU),
    ("CPU time per request, microseconds (one request at a time)", CPU_SERIAL),
    ("Requests per second of CPU time", PER_CPU),
    ("Requests per second of wall time at saturation, one process on one core", RATE),
    ("Latency, microseconds", LATENCY),
    ("Paced streams: CPU time per chunk and time to the first byte, microseconds", STREAMS),
    ("Resident memory before and after the whole run, and what a system costs without requests", MEMORY),
]


def number(value: float) -> str:
    """Three significant digits and no more."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"


def cell(found: Spread | None) -> str:
    """Median and range."""
    if found is None:
        return NOTHING
    if found.rounds == 1:
        return number(found.median)
    return f"{number(found.median)} ({number(found.least)} - {number(found.greatest)})"


def section(samples: Samples, titles: Mapping[str, str], columns: Columns) -> str:
    """One table: a row for each system; columns that nobody has a value for are left out."""
    shown = [(head, name) for head, name in columns if any(samples.spread(system, name) for system in titles)]
    rows = [["", *(head for head, _ in shown)]]
    for system, title in titles.items():
        cells = [cell(samples.spread(system, name)) for _, name in shown]
        if any(text != NOTHING for text in cells):
            rows.append([title, *cells])
    return grid(rows) if shown else ""


def verdicts(found: Sequence[Verdict], titles: Mapping[str, str]) -> str:
    """The targets: ratio within each round, its median and range, and whether the median meets the limit."""
    rows = [["figure", "relative to", "ratio", "wanted", "met"]]
    for verdict in found:
        if verdict.ratio is None:
            continue
        target = verdict.target
        met = "yes" if verdict.met else "no"
        rows.append([target.figure, titles.get(target.peer, target.peer), cell(verdict.ratio), target.bound, met])
    return grid(rows)


def grid(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is the heading."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def report(samples: Samples, titles: Mapping[str, str], found: Sequence[Verdict], facts: Mapping[str, str]) -> str:
    """All of it: the facts, the targets, the tables."""
    parts = ["; ".join(f"{name} {value}" for name, value in facts.items()) + ".", verdicts(found, titles)]
    for title, columns in SECTIONS:
        table = section(samples, titles, columns)
        if table:
            parts += [f"**{title}**", table]
    return "\n\n".join(parts)
