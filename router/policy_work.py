"""Choose by work: the worker on which this prompt, and what waits there before it, leaves the least to compute.

Load and slack are measured in tokens of prefill instead of requests. A worker that holds the prefix wins exactly while
its extra queue is shorter than the prefill it saves, so a preference never becomes a queue. `WorkState` keeps what the
rule needs to know of each worker, fed by three events of every request: start, first byte, end. `now` is any clock that
never goes back; all replicas' requests go into one `WorkState`, each under its own key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

# The first re-use interval, in seconds, until the traffic has shown its own.
FIRST_INTERVAL = 60.0
# What one more observation counts in the moving average of the re-use interval.
INTERVAL_SHARE = 0.02
# A prompt is a re-use of its prefix when at least this share of it was held.
REUSE_SHARE = 0.5
# What is left of earlier observations of a worker's prefill rate after one more.
RATE_KEEP = 0.99
# The head of a queue is credited with this share of what the rate says, since it may not have begun at once.
PROGRESS_SHARE = 0.7
# Prefill tokens per second of a worker that has not shown its rate; used only to end a silent request's prefill.
ASSUMED_RATE = 4_000.0

# A request: who sent it (a replica), and its number there.
Key = tuple[Hashable, Hashable]


@dataclass(frozen=True, slots=True)
class Weights:
    """The constants of the score.

    `uncached`: how much dearer a token to compute is than a token in the queue, for it also slows those who decode.
    `decoding`: tokens for each request past its first byte. `lifetimes`: re-use intervals after which an entry is worth
    a third. `full`: the share of a cache's capacity from which a new prompt pushes others out.
    """

    uncached: float = 1.25
    decoding: float = 1_000.0
    lifetimes: float = 3.0
    full: float = 0.9


WEIGHTS = Weights()


@dataclass(slots=True)
class Standing:
    """How one candidate stands before one request.

    `queued`: tokens to compute before it is this request's turn; `uncached`: those of its prompt; `decoding`: requests
    past their first byte; `fill`: share of the capacity that the shadow of the worker's cache takes; `oldest`: seconds
    since its oldest entry was used; `load`: requests in flight.
    """

    worker: str
    load: int
    queued: float
    uncached: int
    decoding: int
    fill: float = 0.0
    oldest: float = math.inf


class Terms(NamedTuple):
    """The parts of one candidate's score, in tokens."""

    queued: float
    uncached: float
    decoding: float
    evicting: float

    @property
    def score(self) -> float:
        return self.queued + self.uncached + self.decoding + self.evicting


def terms(standing: Standing, interval: float, weights: Weights = WEIGHTS) -> Terms:
    """The score of one candidate, taken apart; `interval` is the re-use interval in seconds."""
    evicting = 0.0
    if standing.fill >= weights.full:
        evicting = standing.uncached * math.exp(-standing.oldest / (weights.lifetimes * interval))
    return Terms(standing.queued, weights.uncached * standing.uncached, weights.decoding * standing.decoding, evicting)


def choose_work(
    standings: Sequence[Standing], interval: float, tie: Callable[[str], int], weights: Weights = WEIGHTS
) -> int:
    """The position of the candidate with the least work; then fewer in flight, then the largest `tie` of its name.

    `tie` must be equal on all replicas, so that they seed a cold prefix on the same worker.
    """
    per_token, per_request, full = weights.uncached, weights.decoding, weights.full
    horizon = weights.lifetimes * interval
    best = 0
    least = math.inf
    for position, standing in enumerate(standings):
        score = standing.queued + per_token * standing.uncached + per_request * standing.decoding
        if standing.fill >= full:
            score += standing.uncached * math.exp(-standing.oldest / horizon)
        if score < least:
            best, least = position, score
        elif score == least and _breaks(standing, standings[best], tie):
            best = position
    return best


def _breaks(standing: Standing, best: Standing, tie: Callable[[str], int]) -> bool:
    if standing.load != best.load:
        return standing.load < best.load
    return tie(standing.worker) > tie(best.worker)


@dataclass(slots=True)
class Waiting:
    """A request before its first byte: tokens to compute, and whether its first byte will only come with its end."""

    uncached: float
    silent: bool = False


NOBODY = Waiting(0.0)


@dataclass(slots=True)
class _Queue:
    """One worker: who waits there in order of dispatch, who is past the first byte, and how fast it computes."""

    waiting: dict[Key, Waiting] = field(default_factory=dict)
    answered: set[Key] = field(default_factory=set)
    total: float = 0.0
    # When the head's turn came: the last first byte, or the moment the queue became non-empty.
    since: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    def add(self, key: Key, waiting: Waiting, now: float) -> None:
        if not self.waiting:
            self.since = now
            self.total = 0.0
        self.waiting[key] = waiting
        self.total += waiting.uncached

    def take(self, key: Key) -> Waiting | None:
        waiting = self.waiting.pop(key, None)
        if waiting is not None:
            self.total -= waiting.uncached
        return waiting

    def answer(self, key: Key) -> float:
        """Move a waiting request past its first byte; the tokens that were computed for it."""
        waiting = self.take(key)
        self.answered.add(key)
        return waiting.uncached if waiting is not None else 0.0

    def silent_before(self, key: Key) -> list[Key]:
        """Silent requests ahead of a waiting one."""
        ahead = takewhile(lambda item: item[0] != key, self.waiting.items())
        return [earlier for earlier, waiting in ahead if waiting.silent]

    def learn(self, tokens: float, now: float) -> None:
        self.tokens = self.tokens * RATE_KEEP + tokens
        self.seconds = self.seconds * RATE_KEEP + max(0.0, now - self.since)
        self.since = now

    def settle(self, now: float) -> None:
        """Silent requests at the head whose time to be computed is over count as past their first byte."""
        while self.waiting:
            key, head = next(iter(self.waiting.items()))
            if not head.silent:
                return
            due = self.since + head.uncached / (PROGRESS_SHARE * (self.rate or ASSUMED_RATE))
            if due > now:
                return
            self.answer(key)
            self.since = due


class WorkState:
    """The work at every worker as one replica knows it, and the traffic's re-use interval.

    Each request that starts must end, as each lease does; so the state is bounded by what is in flight.
    """

    def __init__(self, interval: float = FIRST_INTERVAL) -> None:
        self.interval = interval
        self._queues: dict[str, _Queue] = {}

    def started(self, worker: str, key: Key, uncached: float, now: float, *, silent: bool = False) -> None:
        """A request was sent to a worker, which has to compute so many tokens of its prompt.

        `silent`: its answer is not streamed, so nothing is heard of it before its end.
        """
        self._queue(worker).add(key, Waiting(uncached, silent), now)

    def first_byte(self, worker: str, key: Key, now: float) -> None:
        """An answer began. Silent requests sent before a streamed one have been computed too: engines serve in order.

        The first byte of a silent request comes with its end and says nothing of the worker's rate.
        """
        queue = self._queue(worker)
        waiting = queue.waiting.get(key)
        if waiting is None or waiting.silent:
            queue.answer(key)
            return
        tokens = sum(queue.answer(earlier) for earlier in queue.silent_before(key))
        queue.learn(tokens + queue.answer(key), now)

    def ended(self, worker: str, key: Key, now: float) -> None:
        """A request is over, whether it was answered or not."""
        queue = self._queues.get(worker)
        if queue is None:
            return
        queue.answered.discard(key)
        head = next(iter(queue.waiting), None)
        if queue.take(key) is not None and key == head:
            queue.since = now

    def restate(self, worker: str, sender: Hashable, open_: Mapping[Key, Waiting | None], now: float) -> None:
        """All that a sender has in flight at a worker (None: past the first byte); makes lost news good."""
        queue = self._queue(worker)
        for key in [key for key in (*queue.waiting, *queue.answered) if key[0] == sender and key not in open_]:
            self.ended(worker, key, now)
        for key, waiting in open_.items():
            if waiting is None:
                queue.take(key)
                queue.answered.add(key)
            elif key not in queue.waiting and key not in queue.answered:
                queue.add(key, waiting, now)

    def open_at(self, worker: str, sender: Hashable) -> dict[Key, Waiting | None]:
        """What a sender has in flight at a worker, as `restate` takes it."""
        queue = self._queues.get(worker)
        if queue is None:
            return {}
        found: dict[Key, Waiting | None] = {key: None for key in queue.answered if key[0] == sender}
        found.update((key, waiting) for key, waiting in queue.waiting.items() if key[0] == sender)
        return found

    def drop(self, sender: Hashable, now: float) -> None:
        """Forget what a sender that is gone had in flight."""
        for worker in self._queues:
            self.restate(worker, sender, {}, now)

    def forget(self, worker: str) -> None:
        """A worker was removed, or began a new life: what was learned of its rate is void too."""
        self._queues.pop(worker, None)

    def queued(self, worker: str, now: float) -> float:
        """Tokens to compute before a new request's turn, less the estimated progress of the head."""
        queue = self._queues.get(worker)
        if queue is None or not queue.waiting:
            return 0.0
        head = next(iter(queue.waiting.values()))
        if head.silent:
            queue.settle(now)
            head = next(iter(queue.waiting.values()), NOBODY)
        if queue.seconds <= 0.0:
            return queue.total
        progress = PROGRESS_SHARE * queue.tokens / queue.seconds * (now - queue.since)
        return max(0.0, queue.total - min(head.uncached, progress))

    def waiting(self, worker: str) -> int:
        """Requests before their first byte."""
        queue = self._queues.get(worker)
        return len(queue.waiting) if queue is not None else 0

    def decoding(self, worker: str) -> int:
        """Requests past their first byte."""
        queue = self._queues.get(worker)
        return len(queue.answered) if queue is not None else 0

    def rate(self, worker: str) -> float:
        """Prefill tokens per second as learned from the times between first bytes; 0 while unknown."""
        queue = self._queues.get(worker)
        return queue.rate if queue is not None else 0.0

    def workers(self) -> Collection[str]:
        """Workers of which anything is known."""
        return self._queues.keys()

    def reused(self, seconds: float, share: float) -> None:
        """A share of a prompt was held by some worker, where it was last used so many seconds ago."""
        if share >= REUSE_SHARE:
            self.interval += INTERVAL_SHARE * (seconds - self.interval)

    def _queue(self, worker: str) -> _Queue:
        queue = self._queues.get(worker)
        if queue is None:
            queue = self._queues[worker] = _Queue()
        return queue
