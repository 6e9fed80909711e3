"""A modelled worker: admission in order, chunked prefill, decode in steps of the whole batch, a prefix cache.

One step computes a chunk of prompts and one token of every answer under way, and takes

    overhead + prefill tokens / rate * (1 + position / attention) + batch * per_answer + context * per_context

Stretches of steps in which nothing but answers move are one event. docs/replay.md describes the model.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field

from router.cachemodel import CacheProfile, Held, resumable
from router.replay.cache import BlockCache
from router.replay.trace import ID_TOKENS, Request, block_count

PLAIN = CacheProfile(enabled=True)


@dataclass(frozen=True, slots=True)
class Engine:
    """What a worker can do; tokens and seconds."""

    prefill_rate: float = 8_000.0
    attention: float = 120_000.0  # position at which attention costs as much as everything else
    chunk: int = 1_024
    overhead: float = 0.008
    per_answer: float = 0.0003
    per_context: float = 2e-8
    running: int = 64
    cache_tokens: int = 2_000_000
    profile: CacheProfile = PLAIN


@dataclass(slots=True, eq=False)
class Job:
    """One request on its way through the fleet."""

    number: int
    request: Request
    estimate: int  # prompt tokens as the router takes them
    silent: bool = False  # not streamed: nothing is heard of it before its end
    replica: int = 0
    worker: int = -1
    arrived: float = 0.0
    first: float = math.nan
    ended: float = math.nan
    cached: int = 0
    believed: int = 0  # tokens that the rule took the worker to compute
    note: object = None  # what the rule wants to find again
    blocks: tuple[int, ...] = ()
    private: int = 0
    left: int = 0


@dataclass(slots=True)
class Outcome:
    """What a step ended with."""

    answered: list[Job] = field(default_factory=list)
    ended: list[Job] = field(default_factory=list)


class ModelledWorker:
    """One engine. The caller asks it to `step` at the time that it named last (`due`)."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.cache = BlockCache(max(1, engine.cache_tokens // ID_TOKENS))
        self.waiting: deque[Job] = deque()
        self.head: Job | None = None
        self.running = 0
        self.computed = 0
        self.busy = 0.0
        self.due = math.inf
        self._finishes: list[tuple[int, int, Job]] = []
        self._answering = 0
        self._context = 0
        self._steps = 0
        self._stretch = 0  # steps in the event under way
        self._began = 0.0
        self._prefilled: list[Job] = []

    @property
    def decoding(self) -> int:
        """Answers under way."""
        return self._answering

    def submit(self, job: Job, now: float) -> None:
        """A request arrives."""
        self.waiting.append(job)
        if self.due == math.inf:
            self._begin(now)
        elif self._stretch > 1 and len(self.waiting) == 1:
            self._cut(now)

    def step(self, now: float) -> Outcome:
        """End the step that is due, and begin the next."""
        outcome = Outcome()
        self._steps += self._stretch
        self._context += self._stretch * self._answering
        self.busy += now - self._began
        while self._finishes and self._finishes[0][0] <= self._steps:
            self._end(heapq.heappop(self._finishes)[2], now, outcome)
        for job in self._prefilled:
            job.first = now
            outcome.answered.append(job)
            self._answering += 1
            self._context += job.request.prompt_tokens
            last = self._steps + job.request.output_tokens - 1
            if last <= self._steps:
                self._end(job, now, outcome)
            else:
                heapq.heappush(self._finishes, (last, job.number, job))
        self._prefilled = []
        self._begin(now)
        return outcome

    def _end(self, job: Job, now: float, outcome: Outcome) -> None:
        job.ended = now
        self._answering -= 1
        self.running -= 1
        self._context -= job.request.prompt_tokens + job.request.output_tokens - 1
        self.cache.release(job.blocks, job.private, now)
        outcome.ended.append(job)

    def _begin(self, now: float) -> None:
        prefill = self._prefill()
        engine, batch = self.engine, self._answering
        self._began = now
        fixed = engine.overhead + batch * engine.per_answer + self._context * engine.per_context
        if prefill > 0.0 or self._prefilled:
            self._stretch = 1
            self.due = now + fixed + prefill
        elif batch:
            steps = self._finishes[0][0] - self._steps
            growth = engine.per_context * batch * (steps - 1) / 2
            self._stretch = steps
            self.due = now + steps * (fixed + growth)
        else:
            self._stretch = 0
            self.due = math.inf

    def _cut(self, now: float) -> None:
        """Let the stretch end with the step under way, for a request has come that may join."""
        each = (self.due - self._began) / self._stretch
        done = int((now - self._began) / each) + 1
        if done < self._stretch:
            self._stretch = done
            self.due = self._began + done * each

    def _prefill(self) -> float:
        """Give the next step its chunk of prompts; the seconds that it takes."""
        budget = self.engine.chunk - self._answering
        seconds = 0.0
        while budget > 0:
            job = self.head or self._admit()
            if job is None:
                break
            self.head = job
            take = min(budget, job.left)
            position = job.request.prompt_tokens - job.left + take / 2
            seconds += take / self.engine.prefill_rate * (1 + position / self.engine.attention)
            job.left -= take
            budget -= take
            self.computed += take
            if job.left == 0:
                self._prefilled.append(job)
                self.head = None
        return seconds

    def _admit(self) -> Job | None:
        if not self.waiting or self.running >= self.engine.running:
            return None
        job = self.waiting[0]
        request = job.request
        prompt = request.prompt_tokens
        job.blocks = request.ids[: prompt // ID_TOKENS]
        job.private = block_count(prompt + request.output_tokens) - len(job.blocks)
        cached = self.cached(request)
        if not self.cache.admit(job.blocks, job.private, prompt, force=self.running == 0):
            return None
        self.waiting.popleft()
        self.running += 1
        job.cached = cached
        job.left = prompt - cached
        return job

    def cached(self, request: Request) -> int:
        """Tokens of a prompt that the engine would resume from its cache now."""
        prompt = request.prompt_tokens
        depth = self.cache.shared(request.ids[: prompt // ID_TOKENS])
        if depth == 0:
            return 0
        held = Held(stored_tokens=self.cache.length_at(request.ids[depth - 1]))
        hit = resumable(self.engine.profile, depth * ID_TOKENS, prompt, held)
        return min(hit.tokens + hit.wait, prompt - 1)
