"""A rule that no router can have: the score of policy `work` on the engines' true caches and queues."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from router.cachemodel import Held, resumable
from router.policy import rendezvous
from router.policy_work import WEIGHTS, Terms, pressure
from router.replay.counts import Counted
from router.replay.rules import Setting
from router.replay.trace import ID_TOKENS
from router.replay.worker import Job
from router.work import WorkState


class PerfectKnowledge(Counted):
    """Sees every cache, what requests before this one will have put there, and every queue, without delay."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.state = WorkState()
        # Blocks of prompts that a worker has been sent but may not have computed yet.
        self._coming: list[Counter[int]] = [Counter() for _ in self.all]
        self._seen: dict[int, float] = {}

    def choose(self, job: Job, now: float) -> int:
        request = job.request
        whole = _whole(job)
        ranks = []
        uncached = []
        depths = []
        for number, engine in enumerate(self.setting.fleet):
            depth = engine.cache.shared(whole)
            coming = self._coming[number]
            while depth < len(whole) and (whole[depth] in coming or whole[depth] in engine.cache):
                depth += 1
            depths.append(depth)
            uncached.append(request.prompt_tokens - self._hit(number, job, depth))
            tie = rendezvous(str(number), request.ids[0] & (1 << 64) - 1)
            ranks.append((self._score(number, uncached[number], now), self.load[number], -tie))
        chosen = ranks.index(min(ranks))
        deepest = max(depths)
        if deepest:
            since = now - self._seen.get(whole[deepest - 1], now)
            self.state.reused(since, deepest * ID_TOKENS / request.prompt_tokens)
        job.believed = uncached[chosen]
        return chosen

    def _score(self, number: int, uncached: int, now: float) -> float:
        engine = self.setting.fleet[number]
        oldest = engine.cache.oldest()
        age = math.inf if oldest is None else now - oldest
        return Terms(
            sum(waiting.believed for waiting in engine.waiting) + (engine.head.left if engine.head else 0),
            WEIGHTS.uncached * uncached,
            WEIGHTS.decoding * engine.decoding,
            uncached * pressure(engine.cache.fill, age, self.state.interval),
        ).score

    def start(self, job: Job, worker: int, now: float) -> bool:
        new = super().start(job, worker, now)
        if new:
            self._coming[worker].update(_whole(job))
            self._seen.update((block, now) for block in _whole(job))
        return new

    def answer(self, job: Job, worker: int) -> bool:
        first = super().answer(job, worker)
        if first:
            coming = self._coming[worker]
            for block in _whole(job):
                coming[block] -= 1
                if not coming[block]:
                    del coming[block]
        return first

    def _hit(self, number: int, job: Job, depth: int) -> int:
        engine = self.setting.fleet[number]
        block = job.request.ids[depth - 1] if depth else 0
        held = Held(stored_tokens=engine.cache.length_at(block)) if block in engine.cache else None
        return resumable(self.setting.engine.profile, depth * ID_TOKENS, job.request.prompt_tokens, held).tokens


def _whole(job: Job) -> Sequence[int]:
    """The prompt's whole blocks, which a cache can hold."""
    return job.request.ids[: job.request.prompt_tokens // ID_TOKENS]
