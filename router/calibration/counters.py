"""A worker's own counters against what was predicted, for answers that say nothing about the cache.

The counters count everybody's requests, those of other replicas and of clients that come past the router too. They can
therefore not confirm a hit, and they can refute one only by hardly moving at all.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

# Fewer predicted tokens than this are no evidence.
LEAST_TOKENS = 512
# The counter moved by less than this share of the predicted tokens: none of the hits can have come true.
MOVED = 0.1
MAX_WAITING = 512
MAX_SAMPLES = 64

T = TypeVar("T")


class CounterFinding(enum.StrEnum):
    """What an interval between two probes says about the hits predicted in it."""

    CONSISTENT = "consistent"
    CONTRADICTED = "contradicted"
    UNKNOWN = "unknown"  # nothing was predicted, or too little; or the worker shows no counters, or they went down


@dataclass(frozen=True, slots=True)
class Silent(Generic[T]):
    """An answer without cached tokens: when it was `sent` and `begun` on the router's clock, and what it is to the
    caller. Somewhere between these two the worker has looked into its cache."""

    sent: float
    begun: float
    predicted: int
    subject: T


@dataclass(slots=True)
class CounterCheck(Generic[T]):
    """One worker. `answered` takes what was predicted, `sampled` the counter of hit tokens with each probe.

    An answer is compared over the time from the last probe before it was sent to the first one that was begun after its
    first byte. What else moved the counter in between only makes a contradiction less likely, never more.
    """

    _waiting: deque[Silent[T]] = field(default_factory=lambda: deque(maxlen=MAX_WAITING))
    _samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))

    def answered(self, silent: Silent[T]) -> None:
        """An answer has come that said nothing of the cache, though a hit was predicted."""
        self._waiting.append(silent)

    def forget(self) -> None:
        """The counters begin anew."""
        self._waiting.clear()
        self._samples.clear()

    def sampled(self, now: float, hits: float | None) -> list[tuple[CounterFinding, list[Silent[T]]]]:
        """The worker's counter of hit tokens, as just read. Returns what it says of which answers."""
        if hits is None or (self._samples and hits < self._samples[-1][1]):
            self.forget()
            if hits is not None:
                self._samples.append((now, hits))
            return []
        self._samples.append((now, hits))
        groups: dict[tuple[int, int], list[Silent[T]]] = {}
        waiting: deque[Silent[T]] = deque(maxlen=MAX_WAITING)
        times = [at for at, _ in self._samples]
        for silent in self._waiting:
            before = bisect_left(times, silent.sent) - 1
            # The page of the first probe that ended after the first byte may have been made before it.
            after = bisect_left(times, silent.begun) + 1
            if after >= len(times):
                waiting.append(silent)
            else:
                groups.setdefault((before, after), []).append(silent)
        self._waiting = waiting
        return [(self._compare(*between, silents), silents) for between, silents in groups.items()]

    def _compare(self, before: int, after: int, silents: list[Silent[T]]) -> CounterFinding:
        predicted = sum(silent.predicted for silent in silents)
        # What was sent before the samples reach back can't be compared.
        if before < 0 or predicted < LEAST_TOKENS:
            return CounterFinding.UNKNOWN
        moved = self._samples[after][1] - self._samples[before][1]
        return CounterFinding.CONTRADICTED if moved < MOVED * predicted else CounterFinding.CONSISTENT
