"""What a rule is to the replay: one replica's way to choose, told of its own requests, and of others' by news."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from router.replay.worker import Engine, Job, ModelledWorker

Event = Literal["started", "answered", "ended"]


@dataclass(frozen=True, slots=True)
class News:
    """What another replica tells of one of its requests; `in_flight`: what it had on that worker when it said so."""

    event: Event
    job: Job
    in_flight: int
    note: object = None


# By worker, the requests that a replica has in flight there, and whether it has had their first byte.
Open = Mapping[int, Sequence[tuple[Job, bool]]]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a rule is made for. `fleet` shows the engines' true state: for rules that read their metrics or events."""

    engine: Engine
    fleet: Sequence[ModelledWorker]
    replica: int
    rng: random.Random
    capacity_factor: float = 1.0

    @property
    def workers(self) -> int:
        return len(self.fleet)


class Rule(Protocol):
    """One replica's decisions; times are seconds of the replay."""

    def place(self, job: Job, now: float) -> int:
        """The worker for a request; the rule counts it as started there."""
        ...

    def answered(self, job: Job, now: float) -> object:
        """The first byte of an own request; what is returned goes out with the news."""
        ...

    def ended(self, job: Job, now: float) -> None:
        """The end of an own request."""
        ...

    def hear(self, news: News, now: float) -> None:
        """News of another replica's request."""
        ...

    def hear_open(self, replica: int, open_: Open, now: float) -> None:
        """All that another replica has in flight: makes lost news good."""
        ...


MakeRule = Callable[[Setting], Rule]
