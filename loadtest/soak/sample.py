"""What a replica takes up at a moment, and whether that stayed flat."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

PAGE = os.sysconf("SC_PAGE_SIZE")
REST = ("router_in_flight", "router_queue_depth", "router_active_requests", "router_body_bytes")


@dataclass(frozen=True, slots=True)
class Sample:
    """One replica at `at` seconds of the run; resident memory in megabytes."""

    at: float
    memory: float
    descriptors: int
    sockets: int
    tasks: int
    blocks: int
    active: int


@dataclass(frozen=True, slots=True)
class Bound:
    """How much more the last third may hold than the middle one: a share and an amount."""

    share: float
    amount: float


BOUNDS = {
    "memory": Bound(0.05, 3.0),
    "descriptors": Bound(0.1, 5),
    "sockets": Bound(0.1, 5),
    "tasks": Bound(0.1, 5),
}


def total(text: str, name: str) -> float:
    """The sum of a metric's series in exposition text."""
    found = re.finditer(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+-]+)$", text, re.MULTILINE)
    return sum(float(match[1]) for match in found)


def outcomes(text: str) -> dict[str, int]:
    """Requests by outcome in exposition text."""
    pattern = r'^router_outcomes_total\{outcome="([a-z_]+)"\} ([0-9.e+-]+)$'
    return {match[1]: int(float(match[2])) for match in re.finditer(pattern, text, re.MULTILINE)}


def take(pid: int, text: str, at: float) -> Sample:
    """The sample of a process, whose exposition text is at hand. Raises OSError when the process is gone."""
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    names = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            names.append(os.readlink(f"/proc/{pid}/fd/{number}"))
        except FileNotFoundError:  # closed meanwhile
            continue
    return Sample(
        at=at,
        memory=resident * PAGE / 1e6,
        descriptors=len(names),
        sockets=sum(name.startswith("socket:") for name in names),
        tasks=int(total(text, "router_asyncio_tasks")),
        blocks=int(total(text, "router_index_blocks")),
        active=int(total(text, "router_active_requests")),
    )


def thirds(samples: Sequence[Sample], what: str) -> tuple[float, float, float]:
    """Medians of the first, middle and last third of the time."""
    if len(samples) < 3:
        raise ValueError("too few samples for thirds")
    begin, end = samples[0].at, samples[-1].at
    parts: tuple[list[float], list[float], list[float]] = ([], [], [])
    for sample in samples:
        parts[min(2, int(3 * (sample.at - begin) / (end - begin)))].append(float(getattr(sample, what)))
    first, middle, last = (median(part) if part else 0.0 for part in parts)
    return first, middle, last


def is_flat(samples: Sequence[Sample], what: str) -> bool:
    """The last third holds no more than the middle one, within bounds; the first is for filling up."""
    _, middle, last = thirds(samples, what)
    bound = BOUNDS[what]
    return last <= middle * (1 + bound.share) + bound.amount
