"""Policy `work` in a replay: the core's rule and bookkeeping, over shadows of the workers' caches."""

from __future__ import annotations

import math
from collections.abc import Sequence

from router.cachemodel import CacheProfile, resumable
from router.hashing import chain_start, hashes_at
from router.policy import rendezvous
from router.policy_work import WEIGHTS, Key, Standing, Waiting, Weights, WorkState, choose_work
from router.replay.product import HORIZONS, MODEL, prompt_of
from router.replay.rules import MakeRule, News, Open, Rule, Setting
from router.replay.shadow import Shadow
from router.replay.trace import BYTES_PER_TOKEN
from router.replay.worker import Job


class Prefixes:
    """The keys of a prompt under one horizon, and the tokens each stands for."""

    __slots__ = ("ends", "keys", "ratio")

    def __init__(self, job: Job, horizon: str, start: int) -> None:
        prefix = prompt_of(job).prefix
        self.ends = HORIZONS[horizon](len(prefix))
        self.keys = hashes_at(prefix, start, self.ends)
        self.ratio = job.estimate / (job.request.prompt_tokens * BYTES_PER_TOKEN)

    def weights(self) -> list[float]:
        before = 0
        found = []
        for end in self.ends:
            found.append((end - before) * self.ratio)
            before = end
        return found

    def tokens(self, depth: int) -> int:
        """Tokens of the leading keys."""
        return int(self.ends[depth - 1] * self.ratio) if depth else 0


class WorkRule:
    """One replica that chooses by work."""

    def __init__(self, setting: Setting, horizon: str, weights: Weights = WEIGHTS) -> None:
        engine = setting.engine
        self.profile: CacheProfile = engine.profile
        self.horizon = horizon
        self.weights = weights
        self.state = WorkState()
        self.names = [f"worker-{number}" for number in range(setting.workers)]
        self.shadows = [Shadow(engine.cache_tokens * setting.capacity_factor) for _ in self.names]
        self._start = chain_start(b"", "", MODEL, "")
        self._prefixes: dict[int, Prefixes] = {}

    def place(self, job: Job, now: float) -> int:
        prefixes = Prefixes(job, self.horizon, self._start)
        depths = [shadow.depth(prefixes.keys) for shadow in self.shadows]
        standings = [self._standing(number, prefixes.tokens(depth), job, now) for number, depth in enumerate(depths)]
        key = prefixes.keys[0] if prefixes.keys else job.number
        chosen = choose_work(standings, self.state.interval, lambda name: rendezvous(name, key), self.weights)
        self._observe_reuse(prefixes, depths, job, now)
        job.believed = standings[chosen].uncached
        self.state.started(self.names[chosen], (job.replica, job.number), job.believed, now, silent=job.silent)
        self.shadows[chosen].use(prefixes.keys, prefixes.weights(), now)
        self._prefixes[job.number] = prefixes
        return chosen

    def _standing(self, number: int, shared: int, job: Job, now: float) -> Standing:
        name, shadow = self.names[number], self.shadows[number]
        hit = resumable(self.profile, shared, job.estimate).tokens
        queued = self.state.queued(name, now)
        oldest = shadow.oldest(now)
        decoding = self.state.decoding(name)
        return Standing(
            name,
            decoding + self.state.waiting(name),
            queued,
            max(0, job.estimate - hit),
            decoding,
            shadow.fill,
            math.inf if oldest is None else oldest,
        )

    def _observe_reuse(self, prefixes: Prefixes, depths: Sequence[int], job: Job, now: float) -> None:
        deepest = max(depths)
        if deepest:
            key = prefixes.keys[deepest - 1]
            holders = [shadow for shadow, depth in zip(self.shadows, depths, strict=True) if depth == deepest]
            since = min(shadow.age(key, now) for shadow in holders)
            self.state.reused(since, prefixes.tokens(deepest) / job.estimate)

    def answered(self, job: Job, now: float) -> object:
        self.state.first_byte(self.names[job.worker], (job.replica, job.number), now)
        return self._prefixes[job.number]

    def ended(self, job: Job, now: float) -> None:
        self.state.ended(self.names[job.worker], (job.replica, job.number), now)
        del self._prefixes[job.number]

    def hear(self, news: News, now: float) -> None:
        job = news.job
        name, key = self.names[job.worker], (job.replica, job.number)
        if news.event == "started":
            self.state.started(name, key, job.believed, now, silent=job.silent)
        elif news.event == "answered":
            self.state.first_byte(name, key, now)
            if isinstance(news.note, Prefixes):
                self.shadows[job.worker].use(news.note.keys, news.note.weights(), now)
        else:
            self.state.ended(name, key, now)

    def hear_open(self, replica: int, open_: Open, now: float) -> None:
        for worker, jobs in open_.items():
            found: dict[Key, Waiting | None] = {
                (replica, job.number): None if answered else Waiting(job.believed, job.silent) for job, answered in jobs
            }
            self.state.restate(self.names[worker], replica, found, now)


def work(horizon: str = "ladder", weights: Weights = WEIGHTS) -> MakeRule:
    """Policy `work` with one of the horizons."""

    def make(setting: Setting) -> Rule:
        return WorkRule(setting, horizon, weights)

    return make
