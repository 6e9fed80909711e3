"""From a prompt to a worker, in one synchronous step: filter, match, choose, take the lease, claim the blocks.

The step is synchronous so that two requests in one turn of the event loop see each other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from xxhash import xxh3_64_intdigest

from router.affinity import AffinityMap, Delta, Touch
from router.cachemodel import CacheProfile, Resumability, resumable
from router.calibration import TokenRatios
from router.errors import ModelNotFound, Unavailable
from router.hashing import BLOCK_BYTES, MOST_BLOCKS, block_hashes, chain_start, end_of
from router.policy import POLICIES, Ask, Decision, Match, Reason, SlackTable
from router.prompt import Form, Prompt
from router.settings import CacheSettings, ModelSettings, Settings
from router.workers import passive
from router.workers.evidence import CHEAP_POOL, Seen, every, removed_from
from router.workers.registry import Lease, Registry, Worker

# Forms whose prompts an engine can resume; the others are routed by load alone.
WITH_PREFIX = frozenset({Form.CHAT, Form.COMPLETIONS, Form.RESPONSES, Form.MESSAGES})
_WITHOUT_MATCH = frozenset({Reason.MISS, Reason.ONLY})


@dataclass(slots=True)
class Inquiry:
    """A prompt made ready for choosing: resolved model, hashes, sizes in tokens."""

    prompt: Prompt
    model: str
    hashes: list[int]
    tokens: int
    tokens_per_byte: float
    key: int
    settings: ModelSettings
    # What the operator has set about the model's cache, if anything.
    cache: CacheSettings | None = None
    # The worker that keeps what the request refers to; any other would not know it.
    pinned: str | None = None

    @property
    def window(self) -> int:
        """Tokens of context that the request needs."""
        return self.tokens + self.prompt.max_tokens


class Placement:
    """A request on its worker: the decision, its lease, and its claim on the map until the worker has answered."""

    __slots__ = ("_claim", "_selector", "decision", "epoch", "evidence", "inquiry", "lease", "prior", "worker")

    def __init__(self, selector: Selector, inquiry: Inquiry, decision: Decision[Worker], now: float) -> None:
        self._selector = selector
        self.inquiry = inquiry
        self.decision = decision
        self.worker = decision.worker
        self.epoch = decision.worker.epoch
        # What the decision saw, unless taking it down would have cost too much.
        self.evidence: Seen | None = None
        uncached = inquiry.tokens - decision.match.resumable
        self.lease = Lease(selector.registry, decision.worker, uncached)
        self._claim: Touch | None = selector.index.claim(self.worker.id, inquiry.hashes, now)
        # The use of the matched prefix before this one, from the moment that this one counts.
        self.prior: Touch | None = None

    def own(self, now: float) -> None:
        """The worker has answered with success: it owns the prompt's blocks."""
        self._claim = None
        match = self.decision.match
        if match.resumable > 0:
            self.prior = self._selector.index.use_of(self.worker.id, self.inquiry.hashes[match.blocks - 1])
        delta = self._selector.index.record(self.worker.id, self.epoch, self.inquiry.hashes, now)
        if delta is not None:
            for hook in self._selector.owned_hooks:
                hook(delta)

    def release(self) -> None:
        """End the lease, and the claim if the worker did not answer; idempotent."""
        if self._claim is not None:
            self._selector.index.withdraw(self._claim)
            self._claim = None
        self.lease.end()

    def predicted(self, prompt_tokens: int) -> int:
        """Cached tokens that the engine should report, given the prompt's exact length."""
        match = self.decision.match
        if match.resumable <= 0:
            return 0
        share = min(1.0, end_of(match.blocks) / max(1, self.inquiry.prompt.size))
        hit = resumable(profile_of(self.worker, self.inquiry), int(share * prompt_tokens), prompt_tokens)
        return hit.tokens + hit.wait

    def step(self, prompt_tokens: int) -> int:
        """The coarser of the engine's and the map's steps, in tokens."""
        size = self.inquiry.prompt.size
        matched = self.decision.match.blocks
        # What is shared ends somewhere before the next block's end, where one follows.
        following = end_of(min(matched + 1, MOST_BLOCKS))
        gap = max(BLOCK_BYTES, min(following, size) - end_of(matched))
        return max(gap * prompt_tokens // max(1, size) + 1, profile_of(self.worker, self.inquiry).unit)

    @property
    def at_horizon(self) -> bool:
        """The match may go on where the map does not look."""
        return self.decision.match.blocks == MOST_BLOCKS


class Selector:
    """Ties the registry, the map and the policy together; everything it needs is in memory."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        index: AffinityMap,
        ratios: TokenRatios,
        draw: Callable[[], float],
    ) -> None:
        self.registry = registry
        self.index = index
        self.ratios = ratios
        self.owned_hooks: list[Callable[[Delta], None]] = []
        # Whether the other replicas, which may hold what this one does not know of, can't be heard.
        self.cut_off: Callable[[], bool] = lambda: False
        self._settings = settings
        self._draw = draw
        self._secret = settings.affinity.hash_secret.get_secret_value().encode()
        self._policy = POLICIES[settings.policy.name]
        self._table = SlackTable(settings.policy.slack, settings.policy.slack_above)
        self._plain = ModelSettings()
        self._caches = {name: model.cache for name, model in settings.models.items() if model.cache != CacheSettings()}
        self._starts: dict[tuple[str, str, str], int] = {}
        self._spared: dict[str, float] = {}
        self._turn = 0

    def inquire(self, prompt: Prompt, tenant: str = "") -> Inquiry:
        """Resolve the model and hash the prompt; raises ModelNotFound."""
        model = prompt.model or self.registry.only_base_model() or ""
        if not self.registry.serving(model):
            raise self._no_such_model(model)
        settings = self._settings.models.get(model, self._plain)
        hashes: list[int] = []
        if prompt.form in WITH_PREFIX and settings.reuse != "off":
            hashes = block_hashes(prompt.prefix, self._start(tenant, model, prompt.salt))
        tokens_per_byte = self.ratios.ratio(model)
        tokens = prompt.tokens
        if tokens is None:
            tokens = int(prompt.size * tokens_per_byte)
        elif prompt.size:
            tokens_per_byte = tokens / prompt.size
        key = hashes[0] if hashes else xxh3_64_intdigest(prompt.prefix)
        return Inquiry(prompt, model, hashes, tokens, tokens_per_byte, key, settings, self._caches.get(model))

    def place(self, inquiry: Inquiry, now: float, tried: Collection[str] = ()) -> Placement | None:
        """Choose a worker and take its lease; None when every candidate's slots are taken.

        `tried` workers are not asked again. Raises Unavailable when nothing can serve the model now.
        """
        candidates = self.candidates(inquiry, now, tried)
        free = [worker for worker in candidates if worker.load < worker.slots]
        if not free:
            return None
        self._turn += 1
        matches = self.matches(inquiry, now)
        pool = self.registry.serving(inquiry.model)
        seen: Seen | None = None
        if len(pool) <= CHEAP_POOL or self._turn % every(len(pool)) == 0:
            removed = removed_from(pool, candidates) if len(pool) != len(candidates) else ()
            seen = (candidates, free, [worker.load for worker in candidates], matches, removed, inquiry.key)
        placement = Placement(self, inquiry, self._choose(inquiry, candidates, free, matches), now)
        placement.evidence = seen
        return placement

    def spare(self, worker: Worker, until: float) -> None:
        """Leave a worker alone that refuses for want of room, as long as others are there."""
        self._spared[worker.id] = until

    def candidates(self, inquiry: Inquiry, now: float, tried: Collection[str] = ()) -> Sequence[Worker]:
        """Workers that passed every filter but the free slot; raises Unavailable when there are none."""
        able = [worker for worker in passive.candidates(self.registry, inquiry.model, now) if worker.id not in tried]
        if not able:
            raise Unavailable(f"No worker can serve the model '{inquiry.model[:200]}' at the moment.", retry_after=2)
        if inquiry.pinned is not None:
            able = [worker for worker in able if worker.id == inquiry.pinned] or able
        if self._spared:
            self._spared = {worker: until for worker, until in self._spared.items() if until > now}
            able = [worker for worker in able if worker.id not in self._spared] or able
        return _with_window(able, inquiry)

    def matches(self, inquiry: Inquiry, now: float) -> dict[str, Match]:
        """What each worker is believed to hold, and what its engine could resume of it."""
        matches: dict[str, Match] = {}
        if not inquiry.hashes:
            return matches
        for worker_id, blocks in self.index.match(inquiry.hashes, now).items():
            worker = self.registry.get(worker_id)
            if worker is not None:
                matches[worker_id] = _worth(worker, blocks, inquiry)
        return matches

    def preview(self, inquiry: Inquiry, now: float) -> tuple[Decision[Worker], dict[str, Match], Sequence[Worker]]:
        """What would be chosen now, without choosing it: the decision, all matches, the candidates."""
        candidates = self.candidates(inquiry, now)
        free = [worker for worker in candidates if worker.load < worker.slots] or candidates
        matches = self.matches(inquiry, now)
        return self._choose(inquiry, candidates, free, matches), matches, candidates

    def _choose(
        self, inquiry: Inquiry, candidates: Sequence[Worker], free: Sequence[Worker], matches: dict[str, Match]
    ) -> Decision[Worker]:
        short = inquiry.tokens < self._settings.policy.short_tokens
        steering = matches if inquiry.settings.reuse == "on" and not short else {}
        bypass = inquiry.prompt.form not in WITH_PREFIX or inquiry.settings.reuse == "off"
        draw = (self._draw(), self._draw()) if self._settings.policy.name == "power_of_two" else (0.0, 0.0)
        blocks = 0 if short else len(inquiry.hashes)
        ask = Ask(blocks, inquiry.tokens, inquiry.key, draw, self._turn, bypass, self.cut_off())
        decision = self._policy(free, steering, ask, self._table)
        if inquiry.settings.reuse == "observe":
            # It did not steer, and is compared with what the engine reports all the same.
            decision.match = matches.get(decision.worker.id, decision.match)
        if steering and len(free) < len(candidates) and decision.reason in _WITHOUT_MATCH:
            full = [worker for worker in candidates if worker not in free and worker.id in steering]
            deepest = max(full, key=lambda worker: steering[worker.id].resumable, default=None)
            if deepest is not None and steering[deepest.id].resumable > 0:
                return dataclasses.replace(decision, reason=Reason.SPILL, runner_up=deepest)
        return decision

    def _start(self, tenant: str, model: str, salt: str) -> int:
        key = (tenant, model, salt)
        start = self._starts.get(key)
        if start is None:
            start = chain_start(self._secret, tenant, model, salt)
            if len(self._starts) >= 1_000:
                self._starts.clear()
            self._starts[key] = start
        return start

    def _no_such_model(self, model: str) -> ModelNotFound | Unavailable:
        if not self.registry.models():
            return Unavailable("No worker is ready yet.", retry_after=2)
        if not model:
            return ModelNotFound("The request names no model, and the workers serve more than one.", param="model")
        return ModelNotFound(f"The model '{model[:200]}' does not exist.", param="model")


def _worth(worker: Worker, blocks: int, inquiry: Inquiry) -> Match:
    shared = end_of(blocks) * inquiry.tokens_per_byte
    hit: Resumability = resumable(profile_of(worker, inquiry), int(shared), inquiry.tokens)
    withheld = Reason(hit.reason) if hit.reason is not None else None
    return Match(blocks, hit.tokens, withheld)


def profile_of(worker: Worker, inquiry: Inquiry) -> CacheProfile:
    """The worker's cache as its metrics describe it, corrected by what the operator has set for the model."""
    profile, cache = worker.facts.profile, inquiry.cache
    return profile if cache is None else _corrected(profile, cache.enabled, cache.block_size, cache.hit_unit)


@lru_cache(maxsize=1_000)
def _corrected(profile: CacheProfile, enabled: bool | None, block: int | None, unit: int | None) -> CacheProfile:
    if enabled is not None:
        profile = dataclasses.replace(profile, enabled=enabled)
    if block is not None or unit is not None:
        block = block or profile.block_size
        # A unit that does not divide the block is one that hits land on nevertheless: the block gives way.
        profile = dataclasses.replace(
            profile, block_size=block if unit is None or block % unit == 0 else unit, match_unit=unit, groups=()
        )
    return profile


def _with_window(able: list[Worker], inquiry: Inquiry) -> Sequence[Worker]:
    """Those whose window is large enough by estimate, or else the largest: only the engine counts tokens exactly."""
    need = inquiry.window
    fitting = []
    widest = 0
    for worker in able:
        window = worker.facts.models[inquiry.model].window if inquiry.model in worker.facts.models else None
        if window is None or window >= need:
            fitting.append(worker)
        else:
            widest = max(widest, window)
    if fitting:
        return fitting
    return [worker for worker in able if worker.facts.models[inquiry.model].window == widest]
