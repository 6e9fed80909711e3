"""From a prompt to a worker, in one synchronous step: filter, match, choose, take the lease, claim the blocks.

The step is synchronous so that two requests in one turn of the event loop see each other. Within it, the request may be
sent as soon as its worker is chosen: the lease and the claim are taken while the worker is at work already.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import islice

from xxhash import xxh3_64_intdigest

from router.affinity import AffinityMap, Delta
from router.calibration import TokenRatios
from router.errors import ModelNotFound, Unavailable
from router.hashing import block_hashes, chain_start, end_of
from router.policy import POLICIES, Ask, Decision, Match, Reason, SlackTable
from router.policy_work import WEIGHTS, Terms, View, choose_work, pressure, terms
from router.prompt import Prompt
from router.quota import Quota
from router.settings import CacheSettings, ModelSettings, Settings
from router.work import REUSE_SHARE
from router.workers import passive
from router.workers.evidence import CHEAP_POOL, Seen, every, removed_from
from router.workers.inquiry import WITH_PREFIX, Inquiry, equal_to_all, profile_of, worth
from router.workers.placement import Placement
from router.workers.registry import Registry, Worker
from router.workers.roster import HOLDERS, Rank, Roster, Rosters, by_load, by_work

__all__ = ["WITH_PREFIX", "Inquiry", "Placement", "Selector", "profile_of"]

_WITHOUT_MATCH = frozenset({Reason.MISS, Reason.ONLY})
RANKS: dict[str, Rank] = {"work": by_work, "slack": by_load}


class Choice:
    """A worker chosen for a request, and what of; nothing holds it yet, see `Selector.settle`."""

    __slots__ = ("decision", "field", "now", "pool", "worker")

    def __init__(self, decision: Decision[Worker], field: Field, pool: Sequence[Worker], now: float) -> None:
        self.decision = decision
        self.field = field
        self.now = now
        self.pool = pool
        self.worker = decision.worker


class Field:
    """Among whom to choose: candidates, those with a free slot, and what they hold; `short` if only the best are."""

    __slots__ = ("candidates", "free", "matches", "short")

    def __init__(
        self, candidates: Sequence[Worker], free: Sequence[Worker], matches: dict[str, Match], short: bool
    ) -> None:
        self.candidates = candidates
        self.free = free
        self.matches = matches
        self.short = short


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
        self._draw = draw
        self._secret = settings.affinity.hash_secret.get_secret_value().encode()
        self._plain = ModelSettings()
        self._starts: dict[tuple[str, str, str], int] = {}
        self._spared: dict[str, float] = {}
        self._turn = 0
        # Large fleets in order, for the policies that need it.
        self._rosters = Rosters()
        registry.hooks.moved.append(self._rosters.moved)
        affinity = settings.affinity
        self.quota = Quota(affinity.max_blocks, affinity.ttl_seconds, lambda tenant: 1.0)
        self.reconfigure(settings)

    def reconfigure(self, settings: Settings) -> None:
        """Choose by other settings from now on; the hash secret stays."""
        self._settings = settings
        # None: by work, which looks at more than a candidate's load.
        self._policy = POLICIES.get(settings.policy.name)
        self._rosters.rank_by(RANKS.get(settings.policy.name))
        self._table = SlackTable(settings.policy.slack, settings.policy.slack_above)
        self._caches = {name: model.cache for name, model in settings.models.items() if model.cache != CacheSettings()}
        # Without salts the engines share what tenants have in common, and then so does the map.
        self._apart = settings.tenancy.salt_secret is not None

    def inquire(self, prompt: Prompt, tenant: str = "") -> Inquiry:
        """Resolve the model and hash the prompt; raises ModelNotFound."""
        model = prompt.model or self.registry.only_base_model() or ""
        if not self.registry.serving(model):
            raise self._no_such_model(model)
        settings = self._settings.models.get(model, self._plain)
        hashes: list[int] = []
        whole = 0
        if prompt.form in WITH_PREFIX and settings.reuse != "off":
            start = self.start(tenant if self._apart else "", model, prompt.salt)
            hashes = block_hashes(prompt.prefix, start)
            if hashes and self._policy is None:
                whole = xxh3_64_intdigest(memoryview(prompt.prefix)[end_of(len(hashes)) :], hashes[-1])
        tokens_per_byte = self.ratios.ratio(model)
        tokens = prompt.tokens
        if tokens is None:
            tokens = int(prompt.size * tokens_per_byte)
        elif prompt.size:
            tokens_per_byte = tokens / prompt.size
        key = hashes[0] if hashes else xxh3_64_intdigest(prompt.prefix)
        cache = self._caches.get(model)
        return Inquiry(prompt, model, hashes, tokens, tokens_per_byte, key, settings, cache, whole=whole, tenant=tenant)

    def place(self, inquiry: Inquiry, now: float, tried: Collection[str] = ()) -> Placement | None:
        """Choose a worker and take its lease; None when every candidate's slots are taken.

        `tried` workers are not asked again. Raises Unavailable when nothing can serve the model now.
        """
        choice = self.choose(inquiry, now, tried)
        return None if choice is None else self.settle(inquiry, choice)

    def choose(self, inquiry: Inquiry, now: float, tried: Collection[str] = ()) -> Choice | None:
        """The first half of `place`; the other one must follow before anything else is chosen or ends."""
        pool = self.registry.serving(inquiry.model)
        field = self._field(inquiry, now, pool, tried)
        if not field.free:
            return None
        self._turn += 1
        return Choice(self._choose(inquiry, field, now), field, pool, now)

    def settle(self, inquiry: Inquiry, choice: Choice) -> Placement:
        """Take the lease of the worker that was chosen, and claim what it is going to hold."""
        decision, field, pool = choice.decision, choice.field, choice.pool
        seen: Seen | None = None
        if len(pool) <= CHEAP_POOL or self._turn % every(len(pool)) == 0:
            seen = _seen(inquiry, pool, field, decision)
        if field.matches and self._policy is None:
            self._note_reuse(inquiry, field.matches, decision, choice.now)
        return Placement(self, inquiry, decision, choice.now, seen)

    def spare(self, worker: Worker, until: float) -> None:
        """Leave a worker alone that refuses for want of room, as long as others are there."""
        self._spared[worker.id] = until

    def candidates(self, inquiry: Inquiry, now: float, tried: Collection[str] = ()) -> Sequence[Worker]:
        """Workers that passed every filter but the free slot; raises Unavailable when there are none."""
        able = passive.candidates(self.registry, inquiry.model, now)
        able = [worker for worker in able if worker.id not in tried] if tried else able
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
        if not inquiry.hashes:
            return {}
        return self._with_twins(inquiry, worth(inquiry, self.index.match(inquiry.hashes, now), self.registry))

    def _with_twins(self, inquiry: Inquiry, matches: dict[str, Match]) -> dict[str, Match]:
        twins = self.registry.work.twins
        if inquiry.whole and inquiry.whole in twins:
            # Whoever will compute just this prompt will have all of it.
            for name in twins[inquiry.whole]:
                worker = self.registry.get(name)
                if worker is not None:
                    matches[name] = equal_to_all(inquiry, worker, matches.get(name))
        return matches

    def preview(self, inquiry: Inquiry, now: float) -> tuple[Decision[Worker], dict[str, Match], Sequence[Worker]]:
        """What would be chosen now, without choosing it: the decision, all matches, the candidates."""
        candidates = self.candidates(inquiry, now)
        field = self._field(inquiry, now, self.registry.serving(inquiry.model), ())
        if not field.free:
            field.free = field.candidates
        return self._choose(inquiry, field, now), self.matches(inquiry, now), candidates

    def terms(
        self, inquiry: Inquiry, candidates: Sequence[Worker], matches: dict[str, Match], now: float
    ) -> dict[str, Terms]:
        """What each candidate's score is made of, under policy `work`."""
        if self._policy is not None:
            return {}
        steering, ask = self._ask(inquiry, matches)
        view = self._view(now)
        return {worker.id: terms(worker, steering, ask, view) for worker in candidates}

    def _field(self, inquiry: Inquiry, now: float, pool: Sequence[Worker], tried: Collection[str]) -> Field:
        """Among whom to choose: all candidates, or in a large fleet those that may be the best."""
        depths = self.index.match(inquiry.hashes, now) if inquiry.hashes else {}
        roster = self._rosters.of(inquiry.model, pool)
        if roster is not None and not tried and inquiry.pinned is None and not self.cut_off():
            listed = self._short_list(roster, inquiry, depths, now)
            free = [worker for worker in listed if worker.load < worker.slots]
            if free:
                near = {worker.id: depths[worker.id] for worker in listed if worker.id in depths}
                return Field(listed, free, self._with_twins(inquiry, worth(inquiry, near, self.registry)), True)
        candidates = self.candidates(inquiry, now, tried)
        free = [worker for worker in candidates if worker.load < worker.slots]
        return Field(candidates, free, self._with_twins(inquiry, worth(inquiry, depths, self.registry)), False)

    def _short_list(self, roster: Roster, inquiry: Inquiry, depths: dict[str, int], now: float) -> list[Worker]:
        model, need, spared = inquiry.model, inquiry.window, self._spared

        def able(worker: Worker) -> bool:
            card = worker.facts.models.get(model)
            if card is None or (card.window is not None and card.window < need):
                return False
            return not spared or spared.get(worker.id, 0.0) <= now

        def fits(worker: Worker) -> bool:
            return worker.load < worker.slots and able(worker)

        found: dict[Worker, None] = {}
        # The map names the deepest first. One that is full is a candidate too: it may be the reason of a spill.
        for name in (*islice(depths, HOLDERS), *islice(self.registry.work.twins.get(inquiry.whole, ()), HOLDERS)):
            worker = self.registry.get(name)
            if worker is not None and worker.usable and able(worker):
                found[worker] = None
        if self._policy is None:
            by_rank = roster.least_work(inquiry.key, now, fits)
        else:
            by_rank = roster.lowest(inquiry.key, fits)
        found.update(dict.fromkeys(by_rank))
        return list(found)

    def _choose(self, inquiry: Inquiry, field: Field, now: float) -> Decision[Worker]:
        candidates, free, matches = field.candidates, field.free, field.matches
        steering, ask = self._ask(inquiry, matches)
        if self._policy is None:
            decision = choose_work(free, steering, ask, self._view(now))
        else:
            decision = self._policy(free, steering, ask, self._table)
        if field.short and decision.reason is Reason.ONLY:
            decision.reason = Reason.MISS  # there were more to choose from than were listed
        if inquiry.settings.reuse == "observe":
            # It did not steer, and is compared with what the engine reports all the same.
            decision.match = matches.get(decision.worker.id, decision.match)
        if steering and len(free) < len(candidates) and decision.reason in _WITHOUT_MATCH:
            full = [worker for worker in candidates if worker not in free and worker.id in steering]
            deepest = max(full, key=lambda worker: steering[worker.id].resumable, default=None)
            if deepest is not None and steering[deepest.id].resumable > 0:
                decision.reason, decision.runner_up = Reason.SPILL, deepest
        return decision

    def _ask(self, inquiry: Inquiry, matches: dict[str, Match]) -> tuple[dict[str, Match], Ask]:
        """What may steer, and the request as the policies see it."""
        short = inquiry.tokens < self._settings.policy.short_tokens
        steering = matches if inquiry.settings.reuse == "on" and not short else {}
        bypass = inquiry.prompt.form not in WITH_PREFIX or inquiry.settings.reuse == "off"
        draw = (self._draw(), self._draw()) if self._settings.policy.name == "power_of_two" else (0.0, 0.0)
        blocks = 0 if short else len(inquiry.hashes)
        return steering, Ask(blocks, inquiry.tokens, inquiry.key, draw, self._turn, bypass, self.cut_off())

    def _view(self, now: float) -> View:
        index, interval = self.index, self.registry.work.interval

        def pushed_out(worker: str) -> float:
            fill = index.fill(worker)
            return pressure(fill, index.oldest_age(worker, now), interval) if fill >= WEIGHTS.full else 0.0

        return View(now, pushed_out, index.last_used)

    def _note_reuse(self, inquiry: Inquiry, matches: dict[str, Match], decision: Decision[Worker], now: float) -> None:
        """Learn after what time prefixes are used again."""
        name = next(iter(matches))  # the map names the deepest first
        blocks = matches[name].blocks
        if decision.match.blocks >= blocks:
            name, blocks = decision.worker.id, decision.match.blocks
        share = inquiry.end(blocks) / max(1, inquiry.prompt.size)
        if blocks and share >= REUSE_SHARE:
            age = self.index.age(name, inquiry.hashes[blocks - 1], now)
            if age is not None:
                self.registry.work.reused(age, share)

    def start(self, tenant: str, model: str, salt: str) -> int:
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


def _seen(inquiry: Inquiry, pool: Sequence[Worker], field: Field, decision: Decision[Worker]) -> Seen:
    """What the decision saw, before the lease is taken, which changes a load."""
    candidates, free = field.candidates, field.free
    removed = removed_from(pool, candidates) if len(pool) != len(candidates) and not field.short else ()
    loads = [worker.load for worker in candidates]
    scores = decision.scores
    decoding = [worker.work.decoding for worker in free] if scores is not None else None
    return (candidates, free, loads, field.matches, removed, inquiry.key, scores, decoding)


def _with_window(able: list[Worker], inquiry: Inquiry) -> Sequence[Worker]:
    """Those whose window is large enough by estimate, or else the largest: only the engine counts tokens exactly."""
    need, model, widest = inquiry.window, inquiry.model, 0
    fitting = []
    for worker in able:
        card = worker.facts.models.get(model)
        window = card.window if card is not None else None
        if window is None or window >= need:
            fitting.append(worker)
        else:
            widest = max(widest, window)
    if fitting:
        return fitting
    return [worker for worker in able if worker.facts.models[inquiry.model].window == widest]
