"""A run as a plot and a table. Pure."""

from __future__ import annotations

import re
from collections import Counter

from loadtest.report.plots import HEIGHT, LEGEND_ROW, WIDTH, lines
from loadtest.soak.run import Findings
from loadtest.soak.sample import BOUNDS, is_flat, thirds

LABELS = {
    "memory": "resident memory, MB",
    "descriptors": "file descriptors",
    "sockets": "sockets",
    "tasks": "asyncio tasks",
}
DESCRIPTION = (
    "Resident memory, file descriptors, sockets and asyncio tasks over the minutes of the run, of the replica that "
    "lives on and of the one that is restarted."
)
STYLE = (
    "<style>svg{font:12px ui-sans-serif,system-ui,sans-serif}text{fill:#1f2328}.dim{fill:#59636e}"
    ".axis{stroke:#d0d7de;fill:none}.paper{fill:#fff}"
    "@media (prefers-color-scheme: dark){"
    "text{fill:#f0f6fc}.dim{fill:#9198a1}.axis{stroke:#3d444d}.paper{fill:#0d1117}}</style>"
)


def picture(found: Findings) -> str:
    """One SVG that needs nothing from elsewhere: a plot for each measure, two in a row, a line for each replica."""
    high = HEIGHT + LEGEND_ROW + 16
    parts = []
    for number, (what, label) in enumerate(LABELS.items()):
        series = {
            f"the replica that {name}" if name == "lives on" else "the replica that is restarted": [
                (sample.at / 60, float(getattr(sample, what))) for sample in samples
            ]
            for name, samples in found.samples.items()
        }
        place = f'<svg x="{number % 2 * WIDTH}" y="{number // 2 * high}" '
        parts.append(re.sub("^<svg ", place, lines(label, series, "minutes")))
    size = f'viewBox="0 0 {2 * WIDTH} {2 * high}" width="{2 * WIDTH}" height="{2 * high}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>What two replicas take up</title>'
        f"<desc>{DESCRIPTION}</desc>{STYLE}"
        f'<rect class="paper" width="100%" height="100%"/>{"".join(parts)}</svg>\n'
    )


def tables(found: Findings) -> str:
    """Markdown: what the replica that lived on took up, by thirds, and requests by outcome."""
    lived = found.samples["lives on"]
    rows = ["| the replica that lives on | first third | middle | last | verdict |", "| --- | --- | --- | --- | --- |"]
    for what in BOUNDS:
        cells = " | ".join(f"{value:,.0f}" for value in thirds(lived, what))
        rows.append(f"| {LABELS[what]} | {cells} | {'flat' if is_flat(lived, what) else 'grows'} |")
    befell = ", ".join(f"{name} {count}" for name, count in Counter(what for _, what in found.events).items())
    account = found.account
    rows += [
        "",
        f"{found.seconds / 60:.0f} minutes; {befell}. Of {found.sent:,} requests",
        f"clients saw {_listed(found.seen)}.",
        "",
        "| where the requests are | requests |",
        "| --- | --- |",
        f"| counted by a replica, and named in its log: {_listed(found.counted)} | {account.counted:,} |",
        f"| named in the log of a replica that was killed | {account.by_killed:,} |",
        *(f"| in no log: {why} | {count:,} |" for why, count in account.nowhere.most_common()),
        f"| all | {account.counted + account.by_killed + account.nowhere.total():,} |",
        "",
        f"All gauges {'came to 0' if found.at_rest else 'did NOT come to 0'} afterwards.",
    ]
    return "\n".join(rows)


def verdict(found: Findings) -> list[str]:
    """What was wrong; empty where nothing was."""
    lived, account = found.samples["lives on"], found.account
    wrong = [f"{LABELS[what]} grows: {thirds(lived, what)}" for what in BOUNDS if not is_flat(lived, what)]
    if not found.at_rest:
        wrong.append("gauges did not come to 0")
    if sum(found.seen.values()) != found.sent:
        wrong.append(f"clients know {sum(found.seen.values())} ends of {found.sent} requests")
    found_at = account.counted + account.by_killed + account.nowhere.total()
    if found_at != found.sent:
        wrong.append(f"{found_at} requests have a place, {found.sent} were sent")
    return wrong + account.wrong


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common() if count)
