"""The work at every worker: who waits for a first byte, who is past it, and how fast prompts are computed there.

Fed by three events of every request: start, first byte, end. All replicas' requests go into one `WorkState`, each under
its own key. `now` is any clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

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

# Tokens of prefill that a request which decodes counts for.
DECODING_TOKENS = 1_000.0

# A request: who sent it (a replica; "" is this one), and its number there.
Key = tuple[str, int]
# By the hash of a whole prompt, how many requests with just this prompt wait at each worker.
Twins = dict[int, dict[str, int]]


@dataclass(slots=True)
class Waiting:
    """A request before its first byte: tokens to compute, whether its first byte will only come with its end, the hash
    of its whole prompt (0: none), and how much less work it is than a request that decodes, as a share of that."""

    uncached: float
    silent: bool = False
    whole: int = 0
    lighter: float = 0.0

    # Spelt out, since a generated one is not compiled.
    def __init__(
        self,
        uncached: float,
        silent: bool = False,
        whole: int = 0,
        lighter: float = 0.0,
    ) -> None:
        self.uncached = uncached
        self.silent = silent
        self.whole = whole
        self.lighter = lighter


NOBODY = Waiting(0.0)


def lighter(uncached: float, tokens: int) -> float:
    """How much less work a request of so many prompt tokens is than one that decodes; for `Waiting`.

    One that finds most of its prompt computed, or about to be, is meant to be light: it follows that where it is.
    """
    return max(0.0, uncached / max(1, tokens) - uncached / DECODING_TOKENS)


class WorkQueue:
    """One worker: who waits there in order of dispatch, who is past the first byte, and how fast it computes.

    Repeated and unexpected events do no harm: counts are sizes of sets, and never fall below zero.
    """

    __slots__ = ("answered", "coming", "seconds", "since", "tokens", "total", "twins", "waiting", "worker")

    def __init__(self, worker: str, twins: Twins) -> None:
        self.worker = worker
        self.twins = twins
        self.waiting: dict[Key, Waiting] = {}
        self.answered: set[Key] = set()
        self.total = self.coming = 0.0
        # When the head's turn came: the last first byte, or the moment the queue became non-empty.
        self.since = 0.0
        self.tokens = 0.0
        self.seconds = 0.0

    @property
    def rate(self) -> float:
        """Prefill tokens per second as learned from the times between first bytes; 0 while unknown."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def decoding(self) -> float:
        """Requests that decode, and what those that wait are lighter than one that does, which they will be soon.

        Short prompts would else be sent to one worker until the first of them are answered.
        """
        return len(self.answered) + self.coming if self.waiting else len(self.answered)

    def started(self, key: Key, waiting: Waiting, now: float) -> None:
        """A request was sent to the worker."""
        if key in self.waiting or key in self.answered:
            return
        if not self.waiting:
            self.since = now
            self.total = self.coming = 0.0
        self.waiting[key] = waiting
        self.total += waiting.uncached
        self.coming += waiting.lighter
        if waiting.whole:
            here = self.twins.setdefault(waiting.whole, {})
            here[self.worker] = here.get(self.worker, 0) + 1

    def first_byte(self, key: Key, now: float, *, computed: bool = True) -> None:
        """An answer began; `computed` unless the prompt was refused, which says nothing of the worker's rate.

        Silent requests sent before a streamed one have been computed too: engines serve in order. The first byte of a
        silent request comes with its end and says nothing of the rate either.
        """
        waiting = self.waiting.get(key)
        if waiting is None:
            self.answered.add(key)
        elif waiting.silent or not computed:
            self._leave_head(key, now)
            self._answer(key)
        else:
            ahead = takewhile(lambda item: item[0] != key, self.waiting.items())
            silent = [earlier for earlier, other in ahead if other.silent]
            tokens = sum([self._answer(earlier) for earlier in silent]) + self._answer(key)
            self.tokens = self.tokens * RATE_KEEP + tokens
            self.seconds = self.seconds * RATE_KEEP + max(0.0, now - self.since)
            self.since = now

    def ended(self, key: Key, now: float) -> None:
        """A request is over, whether it was answered or not."""
        if key in self.answered:
            self.answered.discard(key)
            return
        self._leave_head(key, now)
        self._take(key)

    def restate(self, sender: str, open_: Mapping[Key, Waiting | None], now: float) -> None:
        """All that a sender has in flight here (None: past the first byte); makes lost news good."""
        for key in [key for key in (*self.waiting, *self.answered) if key[0] == sender and key not in open_]:
            self.ended(key, now)
        for key, waiting in open_.items():
            if waiting is not None:
                self.started(key, waiting, now)
            elif key not in self.answered:
                self._leave_head(key, now)
                self._answer(key)

    def open_of(self, sender: str) -> dict[Key, Waiting | None]:
        """What a sender has in flight here, as `restate` takes it."""
        found: dict[Key, Waiting | None] = {key: None for key in self.answered if key[0] == sender}
        found.update((key, waiting) for key, waiting in self.waiting.items() if key[0] == sender)
        return found

    def ahead(self, now: float) -> float:
        """Tokens to compute before a new request's turn, less the estimated progress of the head."""
        if not self.waiting:
            return 0.0
        head = next(iter(self.waiting.values()))
        if head.silent:
            self._settle(now)
            head = next(iter(self.waiting.values()), NOBODY)
        if self.seconds <= 0.0:
            return self.total
        progress = PROGRESS_SHARE * self.tokens / self.seconds * (now - self.since)
        return max(0.0, self.total - min(head.uncached, max(0.0, progress)))

    def at_least(self) -> float:
        """A bound that `ahead` does not fall below until the next event."""
        head = next(iter(self.waiting.values()), NOBODY)
        return 0.0 if head.silent else self.total - head.uncached

    def reset(self) -> None:
        """The worker began a new life: what was in flight there is lost, and its rate is to be learned anew."""
        for key in tuple(self.waiting):
            self._take(key)
        self.answered.clear()
        self.total = self.coming = self.tokens = self.seconds = 0.0

    def _leave_head(self, key: Key, now: float) -> None:
        """The next in the queue begins now, if this was the first."""
        if self.waiting and next(iter(self.waiting)) == key:
            self.since = now

    def _take(self, key: Key) -> Waiting | None:
        waiting = self.waiting.pop(key, None)
        if waiting is None:
            return None
        self.total -= waiting.uncached
        self.coming -= waiting.lighter
        if waiting.whole:
            here = self.twins[waiting.whole]
            here[self.worker] -= 1
            if not here[self.worker]:
                del here[self.worker]
                if not here:
                    del self.twins[waiting.whole]
        return waiting

    def _answer(self, key: Key) -> float:
        """Move a request past its first byte; the tokens that were computed for it."""
        waiting = self._take(key)
        self.answered.add(key)
        return waiting.uncached if waiting is not None else 0.0

    def _settle(self, now: float) -> None:
        """Silent requests at the head whose time to be computed is over count as past their first byte."""
        while self.waiting:
            key, head = next(iter(self.waiting.items()))
            if not head.silent:
                return
            due = self.since + head.uncached / (PROGRESS_SHARE * (self.rate or ASSUMED_RATE))
            if due > now:
                return
            self._answer(key)
            self.since = due


class WorkState:
    """The queues of all workers, which prompts wait where, and the traffic's re-use interval.

    Each request that starts must end, as each lease does; so the state is bounded by what is in flight.
    """

    def __init__(self, interval: float = FIRST_INTERVAL) -> None:
        self.interval = interval
        self.twins: Twins = {}
        self._queues: dict[str, WorkQueue] = {}

    def queue(self, worker: str) -> WorkQueue:
        """The worker's queue; it is the same one until the worker is removed."""
        queue = self._queues.get(worker)
        if queue is None:
            queue = self._queues[worker] = WorkQueue(worker, self.twins)
        return queue

    def remove(self, worker: str) -> None:
        """Forget a worker."""
        queue = self._queues.pop(worker, None)
        if queue is not None:
            queue.reset()

    def reused(self, seconds: float, share: float) -> None:
        """A share of a prompt was held by some worker, where it was last used so many seconds ago."""
        if share >= REUSE_SHARE:
            self.interval += INTERVAL_SHARE * (seconds - self.interval)
