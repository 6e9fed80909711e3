"""The fleet: every worker, what is known of it, and which of them may be chosen for a model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal, NamedTuple

from router.cachemodel import CacheProfile
from router.touches import Touch
from router.work import Key, Waiting, WorkQueue, WorkState
from router.workers.health import Event, State, after


def worker_id(url: str) -> str:
    """Eight hex digits of the URL's hash: the worker's name everywhere, so that its URL appears nowhere."""
    return blake2b(url.encode(), digest_size=4).hexdigest()


@dataclass(frozen=True, slots=True)
class Model:
    """One served name on one worker: the card as the worker sent it, its window in tokens, its base if an adapter."""

    name: str
    card: bytes
    window: int | None = None
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What a worker said about itself at the last successful probe."""

    models: Mapping[str, Model] = field(default_factory=dict)
    profile: CacheProfile = field(default_factory=CacheProfile)
    running: int | None = None
    waiting: int | None = None
    # When its process started, as Unix time, if its metrics say so.
    started: float | None = None
    # Counters of vLLM's prefix cache, in tokens.
    cache_queries: float | None = None
    cache_hits: float | None = None


class Part(NamedTuple):
    """What one replica has on a worker: requests in flight, those of them that wait for their first byte, and the
    prompt tokens that the worker has to compute for these."""

    in_flight: int = 0
    waiting: int = 0
    queued_tokens: int = 0


class Worker:
    """One vLLM server. Mutable, and changed only through the registry, leases and probes."""

    __slots__ = (
        "api_key",
        "asleep",
        "draining",
        "ejections",
        "epoch",
        "facts",
        "id",
        "last_served",
        "leaving",
        "load",
        "local",
        "local_queued_tokens",
        "local_waiting",
        "probation_busy",
        "queued_tokens",
        "refused",
        "remote",
        "removed",
        "slots",
        "state",
        "strikes",
        "turn",
        "until",
        "url",
        "waiting",
        "work",
    )

    def __init__(self, url: str, *, slots: int, api_key: str | None, work: WorkQueue | None = None) -> None:
        self.url = url
        self.id = worker_id(url)
        self.api_key = api_key
        self.slots = slots
        self.facts = Facts()
        self.epoch = 0.0
        self.state = State.STARTING
        # Leaving: to be removed as soon as others can do without it.
        self.draining = self.leaving = self.removed = False
        # In flight, and of that what waits for its first byte: from this replica, from each other one, and in all.
        self.local = self.local_waiting = self.local_queued_tokens = 0
        self.remote: dict[str, Part] = {}
        self.load = self.waiting = self.queued_tokens = 0
        # The same requests one by one, and the number of the last one that this replica gave it.
        self.work = work or WorkQueue(self.id, {})
        self.turn = 0
        # What the last probe found: nobody listening, or an engine that sleeps.
        self.refused = False
        self.asleep = False
        # Passive health: failures in a row, recent ejections and falls, the end of the last one, a probation's request.
        self.strikes = 0
        self.ejections = 0
        self.until = 0.0
        self.probation_busy = False
        self.last_served = float("-inf")

    @property
    def own_part(self) -> Part:
        """What this replica has on the worker."""
        return Part(self.local, self.local_waiting, self.local_queued_tokens)

    def recount(self) -> None:
        """Bring the totals up to date after a change of a part."""
        self.load, self.waiting, self.queued_tokens = map(sum, zip(self.own_part, *self.remote.values(), strict=True))

    @property
    def usable(self) -> bool:
        """May be chosen, but for slots and window."""
        if self.draining or self.removed:
            return False
        return self.state is State.READY or (self.state is State.PROBATION and not self.probation_busy)

    def __repr__(self) -> str:
        return f"<Worker {self.id} {self.state} load={self.load}>"


WorkerHook = Callable[[Worker], None]
# What may become of a request on its worker.
Step = Literal["started", "answered", "ended"]


@dataclass(slots=True)
class Hooks:
    """Whom to tell: lists of functions that are called at once and must not raise."""

    state: list[Callable[[Worker, State, State], None]] = field(default_factory=list)
    added: list[WorkerHook] = field(default_factory=list)
    epoch: list[WorkerHook] = field(default_factory=list)
    removed: list[WorkerHook] = field(default_factory=list)
    learned: list[WorkerHook] = field(default_factory=list)
    freed: list[WorkerHook] = field(default_factory=list)
    step: list[Callable[[Lease, Step], None]] = field(default_factory=list)
    # The worker's state, load or work has changed, from whatever side.
    moved: list[WorkerHook] = field(default_factory=list)


def _stands_still() -> float:
    return 0.0


class Registry:
    """All workers by id, and per model those that serve it.

    `clock` tells when requests start and are answered; one that stands still shows no progress of their prefill.
    """

    def __init__(self, clock: Callable[[], float] = _stands_still) -> None:
        self.hooks = Hooks()
        self.clock = clock
        self.work = WorkState()
        self.requests = 0
        self._workers: dict[str, Worker] = {}
        self._pools: dict[str, tuple[Worker, ...]] = {}

    def __iter__(self) -> Iterator[Worker]:
        return iter(tuple(self._workers.values()))

    def __len__(self) -> int:
        return len(self._workers)

    def get(self, worker: str) -> Worker | None:
        """The worker of this id, if it is configured."""
        return self._workers.get(worker)

    def add(self, url: str, *, slots: int, api_key: str | None = None) -> Worker:
        """Add a worker, or return the one that listens there already."""
        known = self._workers.get(worker_id(url))
        if known is not None:
            known.leaving = False
            return known
        worker = Worker(url, slots=slots, api_key=api_key, work=self.work.queue(worker_id(url)))
        self._workers[worker.id] = worker
        self.changed()
        for hook in self.hooks.added:
            hook(worker)
        return worker

    def remove(self, worker: Worker) -> None:
        """Take a worker out; requests in flight on it go on."""
        if worker.removed:
            return  # the same URL may have been added again since
        worker.removed = True
        self._workers.pop(worker.id, None)
        self.work.remove(worker.id)
        self.changed()
        for hook in self.hooks.removed:
            hook(worker)

    def changed(self) -> None:
        """Forget derived lists after any change in models or membership."""
        self._pools.clear()

    def serving(self, model: str) -> tuple[Worker, ...]:
        """All workers that list the model, whatever their state."""
        pool = self._pools.get(model)
        if pool is None:
            pool = tuple(worker for worker in self._workers.values() if model in worker.facts.models)
            if pool:  # names that nobody serves come from clients and must not fill the cache
                self._pools[model] = pool
        return pool

    def models(self) -> dict[str, Model]:
        """The union of all workers' models; the first worker's card wins."""
        union: dict[str, Model] = {}
        for worker in self._workers.values():
            for name, model in worker.facts.models.items():
                union.setdefault(name, model)
        return union

    def only_base_model(self) -> str | None:
        """The name that an absent `model` means: the fleet's single base model, if all serve the same."""
        roots = set()
        for worker in self._workers.values():
            names = [name for name, model in worker.facts.models.items() if model.parent is None]
            if names:
                roots.add(names[0])
        return roots.pop() if len(roots) == 1 else None

    def feed(self, worker: Worker, event: Event) -> bool:
        """Move a worker through the health table; True if its state changed."""
        before = worker.state
        worker.state = after(before, event)
        if worker.state is before:
            return False
        if worker.state is State.READY:
            worker.strikes = 0
        self.moved(worker)
        for hook in self.hooks.state:
            hook(worker, before, worker.state)
        if worker.usable:
            self.notify_freed(worker)
        return True

    def learn(self, worker: Worker, facts: Facts) -> None:
        """Replace what is known of a worker."""
        changed = facts.models.keys() != worker.facts.models.keys()
        worker.facts = facts
        if changed:
            self.changed()
        for hook in self.hooks.learned:
            hook(worker)

    def correct(self, worker: Worker, profile: CacheProfile) -> None:
        """Replace what is known of a worker's cache; the next probe says what it declares again."""
        worker.facts = dataclasses.replace(worker.facts, profile=profile)

    def set_epoch(self, worker: Worker, epoch: float) -> bool:
        """Offer an epoch; the larger wins, whoever saw it. True if it is new."""
        if not worker.epoch < epoch < math.inf:
            return False
        worker.epoch = epoch
        worker.work.reset()
        self.moved(worker)
        for hook in self.hooks.epoch:
            hook(worker)
        return True

    def set_draining(self, worker: Worker, draining: bool) -> None:
        """Stop or resume choosing the worker; its requests in flight go on."""
        worker.draining = draining
        self.moved(worker)
        if not draining:
            self.notify_freed(worker)

    def set_remote(
        self, worker: Worker, replica: str, in_flight: int, waiting: int = 0, queued_tokens: int = 0
    ) -> None:
        """What another replica has on a worker; nothing in flight removes the entry."""
        before = worker.load
        if in_flight > 0:
            waiting = min(max(0, waiting), in_flight)
            worker.remote[replica] = Part(in_flight, waiting, max(0, queued_tokens) if waiting else 0)
        else:
            worker.remote.pop(replica, None)
            worker.work.restate(replica, {}, self.clock())
        worker.recount()
        self.moved(worker)
        if worker.load < before:
            self.notify_freed(worker)

    def drop_replica(self, replica: str) -> None:
        """Forget what a replica that is gone had in flight."""
        # Its steps may have come where its counts have not.
        for worker in self._workers.values():
            self.set_remote(worker, replica, 0)

    def moved(self, worker: Worker) -> None:
        """The worker's state, load or work has changed."""
        for hook in self.hooks.moved:
            hook(worker)

    def notify_freed(self, worker: Worker) -> None:
        """A slot may have become free."""
        for hook in self.hooks.freed:
            hook(worker)


class Lease:
    """One request counted on one worker, from the decision until the answer has ended; ends exactly once.

    Until its first byte it also counts as waiting, with the prompt tokens that the worker has to compute for it.
    `silent`: its answer is not streamed, so the first byte comes with the end. `whole`: the hash of its whole prompt.
    `lighter`: how much less work it is than one that decodes.
    """

    __slots__ = ("_ended", "_registry", "_trial", "_waiting", "claim", "key", "uncached", "work", "worker")

    def __init__(
        self,
        registry: Registry,
        worker: Worker,
        uncached_tokens: int = 0,
        *,
        silent: bool = False,
        whole: int = 0,
        lighter: float = 0.0,
    ) -> None:
        self._registry = registry
        self.worker = worker
        self._ended = False
        self._waiting = True
        self.uncached = max(0, uncached_tokens)
        registry.requests += 1
        worker.turn = registry.requests
        self.key: Key = ("", registry.requests)
        self.work = Waiting(self.uncached, silent, whole, lighter)
        # What the worker is going to hold, if the answer comes.
        self.claim: Touch | None = None
        worker.work.started(self.key, self.work, registry.clock())
        worker.local += 1
        worker.load += 1
        self._wait(1)
        # The one request that decides a probation; older ones that still run do not stand for it.
        self._trial = worker.state is State.PROBATION and not worker.probation_busy
        if self._trial:
            worker.probation_busy = True
        self._tell("started")

    def first_byte(self, *, computed: bool = True) -> None:
        """The worker has begun to answer, and has computed the prompt for that; further calls do nothing."""
        if not self._waiting:
            return
        self._waiting = False
        self._wait(-1)
        self.worker.work.first_byte(self.key, self._registry.clock(), computed=computed)
        self._tell("answered")

    def end(self) -> None:
        """Give the slot back; further calls do nothing."""
        if self._ended:
            return
        self._ended = True
        worker = self.worker
        worker.local -= 1
        worker.load -= 1
        if self._waiting:
            self._waiting = False
            self._wait(-1)
        worker.work.ended(self.key, self._registry.clock())
        if self._trial:
            worker.probation_busy = False
        self._tell("ended")
        for hook in self._registry.hooks.freed:
            hook(worker)

    def _wait(self, change: int) -> None:
        worker, tokens = self.worker, change * self.uncached
        worker.local_waiting += change
        worker.waiting += change
        worker.local_queued_tokens += tokens
        worker.queued_tokens += tokens

    def _tell(self, step: Step) -> None:
        hooks = self._registry.hooks
        for hook in hooks.moved:
            hook(self.worker)
        for told in hooks.step:
            told(self, step)
