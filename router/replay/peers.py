"""Rules of other routers, written anew from their public formulas, and the classic ones they are measured against.

Each class names the formula it follows. They see the whole prompt in blocks of 512 tokens unless their rule limits it;
where a rule reads metrics or cache events of the engines, it gets their true state without delay.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from router.replay.counts import Counted
from router.replay.rules import Setting
from router.replay.shadow import Shadow
from router.replay.trace import ID_TOKENS
from router.replay.worker import Job


class Routed(Counted):
    """With an index of what was sent to whom: prefixes by worker, least recently used out at `tokens` each."""

    def __init__(self, setting: Setting, tokens: float = math.inf, reach: int | None = None) -> None:
        super().__init__(setting)
        self.reach = reach  # blocks of a prompt that the rule looks at
        self.index = [Shadow(tokens) for _ in self.all]

    def keys(self, job: Job) -> Sequence[int]:
        whole = job.request.prompt_tokens // ID_TOKENS
        return job.request.ids[: whole if self.reach is None else min(whole, self.reach)]

    def depths(self, job: Job) -> list[int]:
        keys = self.keys(job)
        return [index.depth(keys) for index in self.index]

    def start(self, job: Job, worker: int, now: float) -> bool:
        new = super().start(job, worker, now)
        if new:
            keys = self.keys(job)
            self.index[worker].use(keys, [ID_TOKENS] * len(keys), now)
        return new


class SglangCacheAware(Routed):
    """sglang's gateway and vllm-router, policy `cache_aware` with 0.3, 64 and 1.5.

    Loads count as uneven if max - min > 64 and max > 1.5 min: then the least loaded. Else a worker with the deepest
    match, if that is over 0.3 of the prompt, else the least loaded. Trees hold 2^26 characters for each worker.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, tokens=2**26 / 4)

    def choose(self, job: Job, now: float) -> int:
        low, high = min(self.load), max(self.load)
        depths = self.depths(job)
        deepest = max(depths)
        uneven = high - low > 64 and high > 1.5 * low
        if not uneven and deepest * ID_TOKENS > 0.3 * job.estimate:
            chosen = self.rng.choice([number for number in self.all if depths[number] == deepest])
        else:
            chosen = self.load.index(low)
        job.believed = max(0, job.estimate - depths[chosen] * ID_TOKENS)
        return chosen


class AIBrixPrefixCache(Routed):
    """AIBrix, `prefix-cache`: the best match among workers that are not unusually busy.

    If max - min > 8, one of the least loaded. Else matches in whole per cent, deepest first, then fewer requests; the
    first with no more than mean + 1 standard deviation. Else the least loaded. The table has 200,000 blocks of 128
    characters. (Its latest form looks for max > 2 (mean + 1) too, and then never reaches a worker that lacks what all
    prompts begin with; the released one is the better.)
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, tokens=200_000 * 128 / 4)

    def choose(self, job: Job, now: float) -> int:
        load = self.load
        mean = sum(load) / len(load)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in load) / len(load))
        uneven = max(load) - min(load) > 8
        depths = self.depths(job)
        total = max(1, len(self.keys(job)))
        matched = [number for number in self.all if depths[number] and not uneven]
        self.rng.shuffle(matched)
        matched.sort(key=lambda number: (-(100 * depths[number] // total), load[number]))
        for number in matched:
            if load[number] <= mean + deviation:
                chosen = number
                break
        else:
            chosen = self.least(load)
        job.believed = max(0, job.estimate - depths[chosen] * ID_TOKENS)
        return chosen


class LlmDSum(Routed):
    """llm-d's weighted sum: queue 2, KV utilisation 2, prefix 3, least recently cold 2; the largest wins.

    Queue: waiting requests, 1 for the shortest to 0 for the longest. KV utilisation: the share not in use. Prefix: the
    matched share of the prompt, by 31,250 blocks of 64 tokens for each worker, looked at up to 131,072 tokens. Least
    recently cold: for a prompt that nobody matches, by how long ago a worker got such a one; else 0.5 for all.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, tokens=31_250 * 64, reach=131_072 // ID_TOKENS)
        self._cold: list[int] = []  # workers that got a cold prompt, the last one last

    def choose(self, job: Job, now: float) -> int:
        depths = self.depths(job)
        total = max(1, len(self.keys(job)))
        queues = [len(engine.waiting) for engine in self.setting.fleet]
        low, high = min(queues), max(queues)
        cold = max(depths) == 0
        scores = []
        for number, engine in enumerate(self.setting.fleet):
            queue = 1.0 if high == low else (high - queues[number]) / (high - low)
            room = 1.0 - engine.cache.pinned / engine.cache.capacity
            scores.append(-(2 * queue + 2 * room + 3 * depths[number] / total + 2 * self._coldness(number, cold)))
        chosen = self.least(scores)
        if cold:
            if chosen in self._cold:
                self._cold.remove(chosen)
            self._cold.append(chosen)
        job.believed = max(0, job.estimate - depths[chosen] * ID_TOKENS)
        return chosen

    def _coldness(self, number: int, cold: bool) -> float:
        if not cold:
            return 0.5
        if number not in self._cold:
            return 1.0
        return 1.0 - (self._cold.index(number) + 1 + len(self.all) - len(self._cold)) / len(self.all)


class LlmDAffinityFilter(Routed):
    """llm-d's affinity filter with its token-load scorer.

    Workers that hold 0.8 of the prompt or more are kept alone, unless the freest of them is 18 s behind the freest of
    the others, by uncached tokens in flight over the peak prefill rate (set to the modelled one). Of those kept, the
    one with the fewest such tokens.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, tokens=31_250 * 64, reach=131_072 // ID_TOKENS)

    def choose(self, job: Job, now: float) -> int:
        depths = self.depths(job)
        total = max(1, len(self.keys(job)))
        sticky = [number for number in self.all if depths[number] >= 0.8 * total]
        others = [number for number in self.all if number not in sticky]
        kept: Sequence[int] = sticky or self.all
        if sticky and others:
            behind = min(self.uncached[number] for number in sticky) - min(self.uncached[number] for number in others)
            if behind / self.setting.engine.prefill_rate > 18.0:
                kept = self.all
        chosen = self.least(self.uncached, kept)
        job.believed = max(0, job.estimate - depths[chosen] * ID_TOKENS)
        return chosen


class RayPrefixAffinity(Routed):
    """Ray Serve's prefix-aware router with its defaults: never taken for uneven, trees without bound.

    Workers with the deepest match if that is a tenth of the prompt or more, else those with the smallest trees; of
    these, the one with the shortest queue.
    """

    def choose(self, job: Job, now: float) -> int:
        depths = self.depths(job)
        deepest = max(depths)
        if deepest * ID_TOKENS >= 0.1 * job.estimate:
            kept = [number for number in self.all if depths[number] == deepest]
        else:
            smallest = min(index.tokens for index in self.index)
            kept = [number for number in self.all if self.index[number].tokens == smallest]
        return self.least(self.load, kept)


class SmgEvents(Counted):
    """SMG's event mode: the deepest match by cache events, then the least loaded, then the smallest cache.

    Uneven loads (64, 1.5) and prompts that nobody holds go to the least loaded.
    """

    def choose(self, job: Job, now: float) -> int:
        low, high = min(self.load), max(self.load)
        if high - low > 64 and high > 1.5 * low:
            return self.load.index(low)
        whole = job.request.ids[: job.request.prompt_tokens // ID_TOKENS]
        caches = [engine.cache for engine in self.setting.fleet]
        depths = [cache.shared(whole) for cache in caches]
        if max(depths) == 0:
            return self.load.index(low)
        return max(self.all, key=lambda number: (depths[number], -self.load[number], -caches[number].fill))


class DynamoCost(Counted):
    """Dynamo's cost in blocks, the smallest wins: prefill + decode.

    Prefill: tokens being prefilled at the worker plus this prompt, less what the worker holds by cache events. Decode:
    distinct blocks of the requests active there, with this one. Overlap credit and prefill scale 1, temperature 0.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._active: list[Counter[int]] = [Counter() for _ in self.all]

    def choose(self, job: Job, now: float) -> int:
        ids = job.request.ids
        whole = ids[: job.request.prompt_tokens // ID_TOKENS]
        costs = []
        overlaps = []
        for number, engine in enumerate(self.setting.fleet):
            overlap = engine.cache.shared(whole)
            active = self._active[number]
            prefill = (self.prefill[number] + job.estimate) / ID_TOKENS - overlap
            decode = len(active) + sum(block not in active for block in ids)
            costs.append(max(0.0, prefill) + decode)
            overlaps.append(overlap)
        chosen = self.least(costs)
        job.believed = max(0, job.estimate - overlaps[chosen] * ID_TOKENS)
        return chosen

    def start(self, job: Job, worker: int, now: float) -> bool:
        new = super().start(job, worker, now)
        if new:
            self._active[worker].update(job.request.ids)
        return new

    def end(self, job: Job, worker: int) -> bool:
        known = super().end(job, worker)
        if known:
            active = self._active[worker]
            for block in job.request.ids:
                active[block] -= 1
                if not active[block]:
                    del active[block]
        return known


class BoundedHashing(Counted):
    """Consistent hashing with bounded load (Mirrokni et al., as in KubeAI): factor 1.25, 256 points for each worker.

    From the point of the key on, the first worker that with this request has at most 1.25 times the mean load. The key
    is the first block behind the system text, where a user's own words begin.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        names = [(f"{number}/{copy}".encode(), number) for number in self.all for copy in range(256)]
        points = sorted((xxh3_64_intdigest(name), number) for name, number in names)
        self._points = [point for point, _ in points]
        self._owners = [number for _, number in points]

    def choose(self, job: Job, now: float) -> int:
        ids = job.request.ids
        key = xxh3_64_intdigest(str(ids[min(job.request.opening, len(ids) - 1)]).encode())
        bound = 1.25 * (sum(self.load) + 1) / len(self.load)
        start = bisect_left(self._points, key)
        for step in range(len(self._points)):
            number = self._owners[(start + step) % len(self._points)]
            if self.load[number] + 1 <= bound:
                return number
        return self._owners[start % len(self._points)]
