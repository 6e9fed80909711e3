"""Holding requests back: while every worker has much to compute already, a replica keeps a request for a moment.

What is placed can't be moved any more, and what waits at the router goes where room is first. Requests are let go in
the order of arrival plus their own predicted service time, so that a short one passes a long one but never for ever.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from router.replay.worker import Job

# The head of a worker's queue makes progress between events, so what is held is looked at that often.
LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Hold:
    """When to hold: while all workers have more than `tokens` queued. So long at most, and so many requests."""

    tokens: float = math.inf
    seconds: float = 5.0
    most: int = 1_024


class Holder(Protocol):
    """A rule that can say how much is queued, and how long a request will take."""

    def least_queued(self, now: float) -> float:
        """Tokens queued at the worker with the least of them."""
        ...

    def service_seconds(self, job: Job, now: float) -> float:
        """Predicted seconds of prefill, on the worker that holds the most of its prompt."""
        ...


class Gate:
    """What one replica holds. `place` sends a request on its way, `at` has something done later."""

    def __init__(
        self,
        hold: Hold,
        rule: Holder,
        place: Callable[[Job, float], None],
        at: Callable[[float, Callable[[float], None]], None],
    ) -> None:
        self._hold = hold
        self._rule = rule
        self._place = place
        self._at = at
        self._held: list[tuple[float, int, Job]] = []
        self._looking = False

    def arrive(self, job: Job, now: float) -> None:
        """A request comes: it is placed, or held until there is room."""
        if len(self._held) >= self._hold.most or not (self._held or self._full(now)):
            self._place(job, now)
            return
        heapq.heappush(self._held, (now + self._rule.service_seconds(job, now), job.number, job))
        self._at(now + self._hold.seconds, partial(self._overdue, job))
        self.look(now)
        self._look_later(now)

    def look(self, now: float) -> None:
        """Something has changed: place what there is room for."""
        while self._held and not self._full(now):
            self._place(heapq.heappop(self._held)[2], now)

    def _full(self, now: float) -> bool:
        return self._rule.least_queued(now) > self._hold.tokens

    def _look_later(self, now: float) -> None:
        if self._held and not self._looking:
            self._looking = True
            self._at(now + LOOK_SECONDS, self._look_again)

    def _look_again(self, now: float) -> None:
        self._looking = False
        self.look(now)
        self._look_later(now)

    def _overdue(self, job: Job, now: float) -> None:
        if job.worker < 0:
            self._held = [entry for entry in self._held if entry[2] is not job]
            heapq.heapify(self._held)
            self._place(job, now)
