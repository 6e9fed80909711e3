"""What came of the clients: a table for people, the same in Markdown, and everything that each of them saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from loadtest.clients.running import Outcome

HEAD = ("client", "version", "result", "what was tried", "what the router decided")


def rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """A row for each client."""
    return [
        (
            outcome.client.title,
            outcome.version or "-",
            "works" if outcome.ok else "fails",
            ", ".join(check.name for check in outcome.checks) or "-",
            _decided(outcome),
        )
        for outcome in outcomes
    ]


def as_text(outcomes: Sequence[Outcome]) -> str:
    """The table, and what failed."""
    cells = [HEAD, *rows(outcomes)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([*lines, *_failures(outcomes)]) + "\n"


def as_markdown(outcomes: Sequence[Outcome]) -> str:
    """The table for a page of the documentation."""
    lines = [f"| {' | '.join(HEAD)} |", f"|{' --- |' * len(HEAD)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows(outcomes))]) + "\n"


def details(outcome: Outcome) -> Iterator[str]:
    """A line for each thing that was tried, and why the rest was not."""
    if outcome.problem is not None:
        yield f"  FAIL  {outcome.problem}"
    for check in outcome.checks:
        yield f"  {'ok  ' if check.ok else 'FAIL'}  {check.name}: {check.seen}"


def _decided(outcome: Outcome) -> str:
    found = outcome.conversation
    if outcome.problem is not None or not found:
        return "-"
    workers = len({decision["worker"] for decision in found})
    reasons = Counter(decision["reason"] for decision in found)
    what = f"{len(found)} turns" if outcome.client.conversation else f"{len(found)} requests"
    told = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return f"{what} on {workers} worker{'s' * (workers != 1)}: {told}"


def _failures(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        if outcome.problem is not None:
            yield f"{outcome.client.title}: {outcome.problem}"
        for check in outcome.checks:
            if not check.ok:
                yield f"{outcome.client.title}, {check.name}: {check.seen}"
