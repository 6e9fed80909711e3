"""The product's own policies through its own code: `Selector` with registry, leases, map and claims, as when serving.

Only what comes in is made up: prompts of synthetic bytes, and a clock. Where a wider horizon is asked for, hashes and
the bytes they stand for come from it, and nothing else differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from router.affinity import AffinityMap, Delta
from router.calibration import TokenRatios
from router.hashing import DENSE_BYTES, boundaries, hashes_at
from router.prompt import Form, Prompt
from router.replay.rules import MakeRule, News, Open, Rule, Setting
from router.replay.trace import BYTES_PER_TOKEN, ID_TOKENS
from router.replay.worker import Job
from router.settings import PolicySettings, Settings
from router.sync_work import TheirWork, told
from router.work import ASSUMED_RATE
from router.workers.health import State
from router.workers.registry import Facts, Lease, Model, Registry, Worker
from router.workers.selection import Inquiry, Placement, Selector

MODEL = "replayed"
ID_BYTES = ID_TOKENS * BYTES_PER_TOKEN
# More than ever wait in a replay: what is compared is the choice of a worker, not admission.
SLOTS = 1 << 30
TICK_SECONDS = 1.0
_MASK = (1 << 64) - 1

Horizon = Callable[[int], Sequence[int]]


def whole_boundaries(prefix_bytes: int) -> Sequence[int]:
    """End offsets of all blocks of the trace: nothing of the prompt is left out."""
    return range(ID_BYTES, prefix_bytes + 1, ID_BYTES)


def dense_boundaries(prefix_bytes: int) -> Sequence[int]:
    """The dense blocks alone."""
    return boundaries(min(prefix_bytes, DENSE_BYTES))


HORIZONS: Mapping[str, Horizon] = {
    "dense": dense_boundaries,
    "ladder": boundaries,
    "whole": whole_boundaries,
}


def synthetic_prefix(ids: Sequence[int], size: int) -> bytes:
    """Bytes that are equal for equal ids, 2 KB for each, cut to the prompt's size."""
    return b"".join([(block & _MASK).to_bytes(8, "little") * (ID_BYTES // 8) for block in ids])[:size]


def prompt_of(job: Job) -> Prompt:
    """The job's prompt as if it had been read from a body."""
    size = job.request.prompt_tokens * BYTES_PER_TOKEN
    return Prompt(
        Form.COMPLETIONS,
        MODEL,
        stream=not job.silent,
        prefix=synthetic_prefix(job.request.ids, size),
        size=size,
        tokens=job.estimate,
    )


def inquire_at(selector: Selector, horizon: Horizon, prompt: Prompt) -> Inquiry:
    """As `selector.inquire`, with hashes where another horizon than the product's has them."""
    inquiry = selector.inquire(prompt)
    inquiry.ends = horizon(len(prompt.prefix))
    inquiry.hashes = hashes_at(prompt.prefix, selector.start("", inquiry.model, prompt.salt), inquiry.ends)
    return inquiry


@dataclass(slots=True)
class _Owned:
    """Collects what one use taught the map."""

    delta: Delta | None = None

    def __call__(self, delta: Delta) -> None:
        self.delta = delta


class ProductRule:
    """One replica of the product with one of its policies."""

    def __init__(self, setting: Setting, policy: str, horizon: str | None = None) -> None:
        settings = Settings(policy=PolicySettings.model_validate({"name": policy}))
        limits = settings.affinity
        self.now = 0.0
        self.registry = Registry(lambda: self.now)
        self.index = AffinityMap(limits.max_blocks, limits.ttl_seconds, limits.tentative_seconds)
        self.workers = _fleet(self.registry, self.index, setting)
        self.selector = Selector(settings, self.registry, self.index, TokenRatios(), setting.rng.random)
        self._horizon = HORIZONS[horizon] if horizon is not None else None
        self._numbers = {worker.id: number for number, worker in enumerate(self.workers)}
        self._owned = _Owned()
        self.selector.owned_hooks.append(self._owned)
        self._theirs = TheirWork(self.registry, self.index, lambda: self.now, {})
        self._placed: dict[int, Placement] = {}
        self._ticked = 0.0

    def place(self, job: Job, now: float) -> int:
        self.now = now
        if now - self._ticked >= TICK_SECONDS:
            self._ticked = now
            self.index.tick(now)
        placement = self.selector.place(self._inquire(job), now)
        assert placement is not None, "slots are never all taken"
        self._placed[job.number] = placement
        job.believed = placement.lease.uncached
        job.note = placement.lease
        return self._numbers[placement.worker.id]

    def least_queued(self, now: float) -> float:
        """Tokens queued at the worker with the least of them."""
        return min(worker.work.ahead(now) for worker in self.workers)

    def service_seconds(self, job: Job, now: float) -> float:
        """Predicted seconds of prefill, on the worker that holds the most of its prompt."""
        inquiry = job.note = self._inquire(job)
        held = max((match.expected for match in self.selector.matches(inquiry, now).values()), default=0)
        rate = max(worker.work.rate for worker in self.workers) or ASSUMED_RATE
        return max(0, inquiry.tokens - held) / rate

    def _inquire(self, job: Job) -> Inquiry:
        if isinstance(job.note, Inquiry):
            return job.note  # it was held, and is hashed
        prompt = prompt_of(job)
        if self._horizon is None:
            inquiry = self.selector.inquire(prompt)
        else:
            inquiry = inquire_at(self.selector, self._horizon, prompt)
        inquiry.prompt.prefix = b""  # hundreds of KB for each request that waits
        return inquiry

    def answered(self, job: Job, now: float) -> object:
        self.now = now
        self._owned.delta = None
        placement = self._placed[job.number]
        placement.lease.first_byte()
        placement.own(now)
        return self._owned.delta

    def ended(self, job: Job, now: float) -> None:
        self.now = now
        self._placed.pop(job.number).release()

    def hear(self, news: News, now: float) -> None:
        self.now = now
        lease, sender = _lease_of(news.job), str(news.job.replica)
        worker = self.workers[news.job.worker]
        self.registry.set_remote(worker, sender, news.in_flight)
        self._theirs.take_step(worker, sender, told(lease, news.event), now)
        if isinstance(news.note, Delta):
            self.index.apply(news.note, now)

    def hear_open(self, replica: int, open_: Open, now: float) -> None:
        self.now = now
        sender = str(replica)
        for number, jobs in open_.items():
            worker = self.workers[number]
            self.registry.set_remote(worker, sender, len(jobs))
            found = {
                (sender, lease.key[1]): None if answered else lease.work
                for lease, answered in ((_lease_of(job), answered) for job, answered in jobs)
            }
            worker.work.restate(sender, found, now)


def _lease_of(job: Job) -> Lease:
    assert isinstance(job.note, Lease)
    return job.note


def _fleet(registry: Registry, index: AffinityMap, setting: Setting) -> list[Worker]:
    facts = Facts(models={MODEL: Model(MODEL, b"{}")}, profile=setting.engine.profile)
    workers = []
    for number in range(setting.workers):
        worker = registry.add(f"http://worker-{number}:8000", slots=SLOTS)
        worker.state = State.READY
        worker.epoch = 1.0
        registry.learn(worker, facts)
        index.set_epoch(worker.id, worker.epoch)
        index.set_capacity(worker.id, int(setting.engine.cache_tokens * setting.capacity_factor * BYTES_PER_TOKEN))
        workers.append(worker)
    return workers


def product(policy: str, horizon: str | None = None) -> MakeRule:
    """A rule of the product's, as it stands or with another horizon."""

    def make(setting: Setting) -> Rule:
        return ProductRule(setting, policy, horizon)

    return make
