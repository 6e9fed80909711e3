"""The engine of a simulated worker as a small event simulation. Pure: time is an argument, in seconds.

Prefills run one at a time in the order of arrival and cost the tokens that are not cached; decodes run side by side,
one token per step. At most `max_num_seqs` requests are past the queue. The first token comes with the end of the
prefill. Events carry their exact model time, so a late caller changes nothing.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from loadtest.simworker.cache import Hold, PrefixCache
from loadtest.simworker.tokens import Prompt


class Phase(Enum):
    """Where a sequence stands; DONE and ABORTED are final."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Rates:
    """Speed of the engine; `time_scale` multiplies every duration."""

    prefill_tokens_per_second: float
    decode_seconds_per_token: float
    time_scale: float
    max_num_seqs: int


@dataclass(slots=True, eq=False)
class Sequence:
    """One prompt inside the engine. Times are the caller's clock."""

    prompt: Prompt
    output_tokens: int
    final_hashes: Callable[[], tuple[int, ...]]
    finish_reason: str = "length"
    number: int = 0
    phase: Phase = Phase.WAITING
    submitted_at: float = 0.0
    started_at: float = 0.0
    first_token_at: float = 0.0
    finish_at: float = 0.0
    cached_tokens: int = 0
    prefill_seconds: float = 0.0  # before scaling
    hold: Hold | None = None

    @property
    def over(self) -> bool:
        return self.phase is Phase.DONE or self.phase is Phase.ABORTED


@dataclass(slots=True)
class Totals:
    """Counters since the engine started, in tokens where they count tokens."""

    queries: int = 0
    hits: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    # Finished prompts by length: the smallest of 1, 2, 5, 10, 20, 50, ... tokens that is not below it.
    lengths: Counter[int] = field(default_factory=Counter)
    length_sum: int = 0

    def end(self, prompt_tokens: int, reason: str) -> None:
        """Count a request that has come to its end, whichever."""
        self.finished[reason] += 1
        self.lengths[_at_most(prompt_tokens)] += 1
        self.length_sum += prompt_tokens


def _at_most(tokens: int) -> int:
    step = 1
    while True:
        for factor in (1, 2, 5):
            if tokens <= factor * step:
                return factor * step
        step *= 10


class Engine:
    """Queue, one prefill at a time, decodes. Call `submit`, `abort` and, at `next_time()`, `advance`."""

    def __init__(self, cache: PrefixCache, rates: Rates, *, caching: bool = True) -> None:
        self.cache = cache
        self.rates = rates
        self.totals = Totals()
        self.caching = caching
        self._numbers = itertools.count(1)
        self._waiting: OrderedDict[int, Sequence] = OrderedDict()
        self._prefilling: Sequence | None = None
        self._decoding: dict[int, Sequence] = {}
        self._ends: list[tuple[float, int]] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._decoding) + (self._prefilling is not None)

    @property
    def step_seconds(self) -> float:
        """Scaled time between two tokens of one request."""
        return self.rates.decode_seconds_per_token * self.rates.time_scale

    def emitted(self, sequence: Sequence, now: float) -> int:
        """Tokens of the sequence that exist by `now`."""
        step = self.step_seconds
        if sequence.phase is Phase.DONE or (sequence.phase is Phase.DECODE and step <= 0):
            return sequence.output_tokens
        if sequence.phase is not Phase.DECODE:
            return 0
        # The small term keeps a caller that wakes exactly on time from finding one token less.
        return min(int((now - sequence.first_token_at) / step + 1e-6) + 1, sequence.output_tokens)

    def submit(self, sequence: Sequence, now: float) -> list[Sequence]:
        """Queue a sequence; returns those whose phase changed by `now`."""
        changed = self.advance(now)
        sequence.number = next(self._numbers)
        sequence.submitted_at = now
        self._waiting[sequence.number] = sequence
        self._admit(now)
        return changed + self.advance(now)

    def skip(self, sequence: Sequence, now: float) -> None:
        """Count a sequence as done without computing it."""
        sequence.phase = Phase.DONE
        sequence.submitted_at = sequence.started_at = sequence.first_token_at = sequence.finish_at = now
        self.totals.prompt_tokens += sequence.prompt.tokens
        self.totals.generation_tokens += sequence.output_tokens
        self.totals.end(sequence.prompt.tokens, sequence.finish_reason)

    def advance(self, now: float) -> list[Sequence]:
        """Play everything due by `now`, in the order of its time; returns the sequences whose phase changed."""
        changed: list[Sequence] = []
        while True:
            due = self.next_time()
            if due is None or due > now:
                return changed
            prefilling = self._prefilling
            if prefilling is not None and prefilling.first_token_at <= due:
                self._end_prefill(prefilling)
                changed.append(prefilling)
            else:
                changed.append(self._finish(self._decoding[self._ends[0][1]]))
            self._admit(due)

    def next_time(self) -> float | None:
        """When something happens next, if nothing is submitted before."""
        ends = self._ends
        while ends and ends[0][1] not in self._decoding:
            heapq.heappop(ends)
        prefilling = self._prefilling
        if prefilling is None:
            return ends[0][0] if ends else None
        if ends and ends[0][0] < prefilling.first_token_at:
            return ends[0][0]
        return prefilling.first_token_at

    def abort(self, sequence: Sequence, now: float) -> list[Sequence]:
        """Drop a sequence wherever it stands; returns the others whose phase changed."""
        changed = self.advance(now)
        if sequence.over:
            return changed
        if sequence.phase is Phase.PREFILL:
            self._prefilling = None
            self._keep_computed(sequence, now)
        if sequence.phase is Phase.DECODE:
            self.totals.generation_tokens += self.emitted(sequence, now)
        self._waiting.pop(sequence.number, None)
        self._decoding.pop(sequence.number, None)
        if sequence.hold is not None:
            self.cache.release(sequence.hold)
        sequence.phase = Phase.ABORTED
        sequence.finish_at = now
        self.totals.end(sequence.prompt.tokens, "abort")
        self._admit(now)
        return changed + self.advance(now)

    def reset(self, now: float) -> list[Sequence]:
        """Abort everything; returns what was aborted."""
        open_ones = [*self._waiting.values(), *self._decoding.values()]
        if self._prefilling is not None:
            open_ones.append(self._prefilling)
        # The queue first, so that no abort lets another sequence start.
        for sequence in open_ones:
            self.abort(sequence, now)
        return open_ones

    def _admit(self, at: float) -> None:
        while self._waiting and self._prefilling is None and self.running < self.rates.max_num_seqs:
            sequence = next(iter(self._waiting.values()))
            hold = self.cache.reserve(sequence.prompt, sequence.prompt.tokens + sequence.output_tokens)
            if hold is None:
                return
            self._waiting.popitem(last=False)
            self._start(sequence, hold, at)

    def _start(self, sequence: Sequence, hold: Hold, at: float) -> None:
        tokens = sequence.prompt.tokens
        sequence.hold = hold
        sequence.cached_tokens = hold.cached_tokens
        sequence.phase = Phase.PREFILL
        sequence.started_at = at
        computing = (tokens - hold.cached_tokens) / self.rates.prefill_tokens_per_second
        sequence.prefill_seconds = hold.load_seconds + computing
        sequence.first_token_at = at + sequence.prefill_seconds * self.rates.time_scale
        self._prefilling = sequence
        self.totals.prompt_tokens += tokens
        if self.caching:
            self.totals.queries += tokens
            self.totals.hits += hold.cached_tokens

    def _end_prefill(self, sequence: Sequence) -> None:
        assert sequence.hold is not None
        self._prefilling = None
        self.cache.commit(sequence.hold, sequence.prompt.hashes)
        sequence.phase = Phase.DECODE
        sequence.finish_at = sequence.first_token_at + max(sequence.output_tokens - 1, 0) * self.step_seconds
        self._decoding[sequence.number] = sequence
        heapq.heappush(self._ends, (sequence.finish_at, sequence.number))

    def _finish(self, sequence: Sequence) -> Sequence:
        assert sequence.hold is not None
        del self._decoding[sequence.number]
        if self.caching and sequence.output_tokens:
            # The last token was never fed back, so it has no place in the cache yet.
            computed = sequence.prompt.tokens + sequence.output_tokens - 1
            self.cache.commit(sequence.hold, sequence.final_hashes()[: computed // sequence.prompt.unit])
        self.cache.release(sequence.hold)
        sequence.phase = Phase.DONE
        self.totals.generation_tokens += sequence.output_tokens
        self.totals.end(sequence.prompt.tokens, sequence.finish_reason)
        return sequence

    def _keep_computed(self, sequence: Sequence, now: float) -> None:
        """A prefill that is cut short leaves the blocks it had finished."""
        assert sequence.hold is not None
        span = sequence.first_token_at - sequence.started_at
        share = (now - sequence.started_at) / span if span > 0 else 1.0
        computed = sequence.cached_tokens + int(share * (sequence.prompt.tokens - sequence.cached_tokens))
        self.cache.commit(sequence.hold, sequence.prompt.hashes[: computed // sequence.prompt.unit])
