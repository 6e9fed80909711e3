"""What is measured how often, and how long it may take. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

KB = 1024


@dataclass(frozen=True, slots=True)
class Load:
    """Closed loop: so many requests of a size over so many connections; over one, it measures latency."""

    size: int
    requests: int
    connections: int = 16

    @property
    def serial(self) -> bool:
        return self.connections == 1

    @property
    def label(self) -> str:
        return f"serial {named(self.size)}" if self.serial else f"saturated {named(self.size)}"


@dataclass(frozen=True, slots=True)
class HalfLoad:
    """Open loop at half of what the system could do in the saturated load of the same size, in the same round."""

    size: int
    seconds: float

    @property
    def label(self) -> str:
        return f"half load {named(self.size)}"


@dataclass(frozen=True, slots=True)
class Paced:
    """So many paced streams at once; a window for their chunks, and one with probes for the first byte."""

    streams: int
    ramp_seconds: float = 1.0
    window_seconds: float = 2.0
    probe_seconds: float = 1.5
    probes: int = 60

    @property
    def label(self) -> str:
        return f"{self.streams} streams"


Measure = Load | HalfLoad | Paced


@dataclass(frozen=True, slots=True)
class Plan:
    """Measures in their order, and rounds over all of them. No round begins that is not likely to end in time."""

    measures: tuple[Measure, ...]
    rounds: int
    minutes: float
    idle_seconds: float = 2.0  # how long all systems are watched without requests, before and after


FULL = Plan(
    (
        Load(KB // 2, 4000),
        Load(8 * KB, 4000),
        HalfLoad(8 * KB, 2.0),
        Load(64 * KB, 1500),
        Load(512 * KB, 300),
        Load(1 * KB, 1000, connections=1),
        Load(64 * KB, 500, connections=1),
        Paced(100),
        Paced(400),
    ),
    rounds=5,
    minutes=14.0,
)
QUICK = Plan(
    (
        Load(KB // 2, 2000),
        Load(8 * KB, 2000),
        HalfLoad(8 * KB, 0.8),
        Load(64 * KB, 600),
        Load(512 * KB, 120),
        Load(1 * KB, 400, connections=1),
        Load(64 * KB, 200, connections=1),
        Paced(400, ramp_seconds=0.8, window_seconds=1.0, probe_seconds=0.8, probes=40),
    ),
    rounds=3,
    minutes=3.0,
)


def named(size: int) -> str:
    """A size as tables and keys name it."""
    return f"{size / KB:g} KB"


def warm(load: Load) -> int:
    """Requests before the meter starts: connections are opened, caches are met."""
    return max(load.connections, load.requests // 10)


def order(names: list[str], turn: int) -> list[str]:
    """The systems, beginning with another one at each turn, so that no one always follows the same neighbour."""
    start = turn % len(names)
    return names[start:] + names[:start]


class Bounded(Protocol):
    """A plan of rounds: how many are wanted at most, and how many minutes they may take together."""

    @property
    def rounds(self) -> int: ...

    @property
    def minutes(self) -> float: ...


def another_round(done: int, plan: Bounded, elapsed_seconds: float) -> bool:
    """Whether a further round is wanted and fits in the time, given what the rounds so far took."""
    if done >= plan.rounds:
        return False
    if done == 0:
        return True
    return elapsed_seconds * (done + 1) / done <= plan.minutes * 60
