"""A worker's own counters against what was predicted, for answers that say nothing about the cache.

The counters count everybody's requests, those of other replicas and of clients that come past the router too. They can
therefore not confirm a hit, and they can refute one only by hardly moving at all.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

# Fewer predicted tokens than this are no evidence.
LEAST_TOKENS = 512
# The counter moved by less than this share of the predicted tokens: none of the hits can have come true.
MOVED = 0.1
MAX_WAITING = 512
MAX_SAMPLES = 16

T = TypeVar("T")


class CounterFinding(enum.StrEnum):
    """What an interval between two probes says about the hits predicted in it."""

    CONSISTENT = "consistent"
    CONTRADICTED = "contradicted"
    UNKNOWN = "unknown"  # nothing was predicted, or too little; or the worker shows no counters, or they went down


@dataclass(frozen=True, slots=True)
class Silent(Generic[T]):
    """An answer without cached tokens: `sent` and `answered` on the router's clock, and what it is to the caller."""

    sent: float
    answered: float
    predicted: int
    subject: T


@dataclass(slots=True)
class CounterCheck(Generic[T]):
    """One worker. `answered` takes what was predicted, `sampled` the counter of hit tokens with each probe.

    An answer counts once a probe that began after it has been read, against the last probe before it was sent. What
    else moved the counter in between only makes a contradiction less likely, never more.
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

    def sampled(self, now: float, hits: float | None) -> tuple[CounterFinding, list[Silent[T]]]:
        """The worker's counter of hit tokens, as just read. Returns what it says of which answers."""
        if hits is None or (self._samples and hits < self._samples[-1][1]):
            self.forget()
            if hits is not None:
                self._samples.append((now, hits))
            return CounterFinding.UNKNOWN, []
        # The page may have been made up to one probe before this moment.
        settled = self._samples[-1][0] if self._samples else float("-inf")
        ready = [silent for silent in self._waiting if silent.answered <= settled]
        finding = self._compare(ready, hits)
        if ready:
            self._waiting = deque((s for s in self._waiting if s.answered > settled), maxlen=MAX_WAITING)
        self._samples.append((now, hits))
        return finding, ready

    def _compare(self, ready: list[Silent[T]], hits: float) -> CounterFinding:
        oldest = self._samples[0][0] if self._samples else float("inf")
        # One that took longer than the samples reach back can't be compared, and must not spoil the others.
        ready[:] = [silent for silent in ready if silent.sent > oldest]
        before = self._before(min((silent.sent for silent in ready), default=oldest))
        predicted = sum(silent.predicted for silent in ready)
        if before is None or predicted < LEAST_TOKENS:
            return CounterFinding.UNKNOWN
        return CounterFinding.CONTRADICTED if hits - before < MOVED * predicted else CounterFinding.CONSISTENT

    def _before(self, sent: float) -> float | None:
        """The counter at the last sample before that time."""
        return next((hits for at, hits in reversed(self._samples) if at < sent), None)
