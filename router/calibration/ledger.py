"""One worker's account: how many of its predicted hits came true, and what the failures in a row say."""

from __future__ import annotations

import math

from router.calibration.capacity import Capacity
from router.calibration.verdict import Cause, Verdict

# Precision and recall are those of about the last hundred answers.
KEEP = 0.99
# Hits in a row that fell short without an explanation, after which the worker's cache is taken to have been emptied.
STRIKES = 3
# So many that they would come by chance less often than this, where single hits fail now and then anyway.
CHANCE = 0.01
FRESH = 0.05
MOST_STRIKES = 24
# Of what was predicted, less than this was there: the prefix is gone, and has not only lost its end.
GONE = 0.5
# What was proven is believed a little less with every further hit; a hit is looked at closely only if it breaks that.
FADE = 0.995
# A cache that seems to be emptied again so soon is one that holds less than it is taken to hold.
AGAIN_SECONDS = 600.0
# Of these causes none explains a loss other than by a cache that was emptied.
_LOST = frozenset({Cause.NOT_RESIDENT, Cause.EVICTED, Cause.EXPIRED})
_UNEXPLAINED = frozenset({Cause.NOT_RESIDENT, Cause.EXPIRED, Cause.UNKNOWN})


class Ledger:
    """Counts of verdicts, recent sums of tokens, and the evidence that a cache is empty; times in seconds."""

    __slots__ = (
        "_confirmed",
        "_emptied",
        "_first",
        "_needed",
        "_predicted",
        "_rate",
        "_reported",
        "_strikes",
        "_works",
        "capacity",
        "counts",
        "epoch",
        "proven_age",
        "proven_since",
    )

    def __init__(self) -> None:
        self.counts: dict[Verdict, int] = dict.fromkeys(Verdict, 0)
        self.capacity = Capacity()
        self.epoch = 0.0
        self._predicted = self._reported = self._confirmed = 0.0
        # The most seconds, and tokens used by the worker, after which an entry was still there, of late.
        self.proven_age = 0.0
        self.proven_since = 0
        # Hits have been seen in this life of the cache: one that never worked is not one that was emptied.
        self._works = False
        # Share of hits that come true, of late.
        self._rate = 1.0
        self._strikes = 0
        self._first = 0.0
        self._needed = STRIKES
        self._emptied = float("-inf")

    @property
    def precision(self) -> float | None:
        """Share of the predicted tokens that were there, of late; None if nothing was predicted."""
        return self._confirmed / self._predicted if self._predicted > 0 else None

    @property
    def recall(self) -> float | None:
        """Share of the reported tokens that were predicted, of late; None if nothing was reported."""
        return self._confirmed / self._reported if self._reported > 0 else None

    def begin(self, epoch: float) -> None:
        """A new life of the worker's cache: what was learned of the last one does not count."""
        self.epoch = epoch
        self.proven_age = 0.0
        self.proven_since = 0
        self._works = False
        self._strikes = 0

    def count(self, verdict: Verdict, predicted: int = 0, reported: int | None = None) -> None:
        """An answer, whatever it said; one of which nothing was expected confirms nothing and is in no count."""
        if verdict is not Verdict.CONFIRMED or predicted:
            self.counts[verdict] += 1
        if reported is not None:
            self._add(predicted, reported)

    def refuted(self, predicted: int) -> None:
        """The worker's counters say of an earlier answer, which said nothing itself, that nothing of it was there."""
        self._add(predicted, 0)

    def seems_to_work(self) -> None:
        """The worker's counters agree with what was predicted."""
        self._works = True
        self._rate = _mixed(self._rate, 1.0)

    def was_there(self, used: float | None, now: float) -> bool:
        """A hit came true, of an entry that was last used then; whether to find out how much was used since."""
        self._works = True
        self._rate = _mixed(self._rate, 1.0)
        if used is None:
            return False
        if used < self._first:
            # It is older than the failures, so the cache was not emptied before them.
            self._strikes = 0
        age = now - used
        record = age > self.proven_age
        self.proven_age = age if record else FADE * self.proven_age
        return record

    def stayed(self, since: int) -> None:
        """So many tokens were used after an entry that was still there."""
        self.proven_since = max(since, int(FADE * self.proven_since))

    def was_missing(self, cause: Cause, predicted: int, reported: int, sent: float, since: int = 0) -> float | None:
        """A hit fell short, of a request sent at `sent`, and of an entry after which `since` tokens were used.

        Once it is clear that the worker's cache was emptied, returns the time before which nothing is there any more.
        """
        before, self._rate = self._rate, _mixed(self._rate, 0.0)
        if cause in _LOST:
            # What stayed for longer may do so no more.
            self.proven_since = min(self.proven_since, since)
        if cause not in _UNEXPLAINED or reported >= GONE * predicted or not self._works:
            return None
        if not self._strikes:
            self._first = sent
            self._needed = _needed(before)
        self._strikes += 1
        return self._first if self._strikes >= self._needed else None

    def emptied(self, now: float) -> bool:
        """Such evidence is here: whether to believe it, since no cache is emptied all the time."""
        before, self._emptied = self._emptied, now
        self._strikes = 0
        return now - before >= AGAIN_SECONDS

    def _add(self, predicted: int, reported: int) -> None:
        self._predicted = self._predicted * KEEP + predicted
        self._reported = self._reported * KEEP + reported
        self._confirmed = self._confirmed * KEEP + min(predicted, reported)


def _mixed(rate: float, latest: float) -> float:
    return rate + (latest - rate) * FRESH


def _needed(rate: float) -> int:
    """Failures in a row that are no chance any more, given the share of hits that come true."""
    if rate >= 1.0:
        return STRIKES
    if rate <= 0.0:
        return MOST_STRIKES
    return min(MOST_STRIKES, max(STRIKES, math.ceil(math.log(CHANCE) / math.log(1.0 - rate))))
