"""What a row of probes means: when a worker is up or down, and when its cache has begun a new life. Pure."""

from __future__ import annotations

import enum
from collections import deque
from typing import Final

from router.settings import HealthSettings
from router.workers.discovery import MetricsFacts
from router.workers.health import Event, State

# A confirmation does not wait for the next regular probe.
CONFIRM_SECONDS: Final = 0.25


class Verdict(enum.Enum):
    """What one probe found."""

    GOOD = "good"
    BAD = "bad"
    SLOW = "slow"  # no answer in time, which may be the worker's load
    REFUSED = "refused"  # nobody listens
    ASLEEP = "asleep"
    VOID = "void"  # the fault is ours: no sockets, or our own loop stood still


class Streak:
    """Probes of one worker in a row."""

    __slots__ = ("bad", "good", "refused")

    def __init__(self) -> None:
        self.good = 0
        self.bad = 0
        self.refused = 0

    def judge(self, verdict: Verdict, state: State, health: HealthSettings, *, busy: bool, held: bool) -> Event | None:
        """Count a probe; the event to feed, if it makes one.

        `busy`: the worker has lately sent bytes, so slow answers are load. `held`: its return is put off.
        """
        if verdict is Verdict.VOID:
            return None
        if verdict is Verdict.GOOD:
            self.good += 1
            self.bad = self.refused = 0
            enough = 1 if state is State.STARTING else health.rise
            return Event.UP if self.good >= enough and not held else None
        self.good = 0
        self.bad += 1
        self.refused = self.refused + 1 if verdict is Verdict.REFUSED else 0
        if verdict is Verdict.ASLEEP or self.refused >= 2:
            return Event.DOWN
        if self.bad >= health.fall and not (busy and verdict is Verdict.SLOW):
            return Event.DOWN
        return None

    def pause(self, state: State, interval: float) -> float:
        """Seconds from the start of this probe to the start of the next."""
        if state not in (State.STARTING, State.UNREADY):
            return min(interval, CONFIRM_SECONDS) if self.refused else interval
        if self.good:
            return interval / 5
        if not self.bad:
            return interval
        # Fleets start together with their router, and some restarts are short: look often at first, then as anywhere.
        return min(interval, CONFIRM_SECONDS * (1 << min(self.bad - 1, 20)))


class Lives:
    """Tells the lives of one worker's cache apart; epochs are Unix times in seconds."""

    __slots__ = ("_asleep", "_gone", "_prompt_tokens", "_queries", "_seen", "_starts")

    def __init__(self) -> None:
        self._starts: deque[float] = deque(maxlen=16)
        self._seen: float | None = None  # when the last good probe was
        self._prompt_tokens = 0.0
        self._queries = 0.0
        self._gone = False
        self._asleep = False

    def lost(self) -> None:
        """Nobody listened, or the worker was given up: if it returns, it may be another process."""
        self._gone = True

    def slept(self) -> None:
        """The engine sleeps, and its cache with it."""
        self._asleep = True

    def epoch(self, facts: MetricsFacts, known: float, wall: float) -> float | None:
        """After a good probe: the epoch to offer, if a new life has begun. `known` is the current one.

        The start time that the metrics show is the best evidence, and the same for every replica. Where it is missing,
        or not larger than a time offered before, the new life begins now, unless another replica has said so already.
        """
        began = self._has_begun(facts)
        noticed = self._seen
        self._gone = self._asleep = False
        self._seen = wall
        if not began:
            return None
        if facts.started is not None and facts.started > known:
            return facts.started
        return wall if noticed is not None and known < noticed else None

    def _has_begun(self, facts: MetricsFacts) -> bool:
        fell = self._counters_fell(facts)
        if facts.started is None:
            return self._gone or self._asleep or fell
        if facts.started in self._starts:  # several, where an address leads to several processes in turn
            return self._asleep
        self._starts.append(facts.started)
        return True

    def _counters_fell(self, facts: MetricsFacts) -> bool:
        tokens, queries = facts.prompt_tokens or 0.0, facts.cache_queries or 0.0
        fell = (facts.prompt_tokens is not None and tokens < self._prompt_tokens) or (
            facts.cache_queries is not None and queries < self._queries
        )
        if fell or tokens > self._prompt_tokens:
            self._prompt_tokens = tokens
        if fell or queries > self._queries:
            self._queries = queries
        return fell
