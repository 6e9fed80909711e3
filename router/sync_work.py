"""Each request's start, first byte and end, told to the other replicas and taken from them.

A start also names the blocks that its worker is going to hold, so that a burst of equal prompts that is split between
replicas meets where the first of them went, and their tokens are not counted once for each replica.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from router.affinity import AffinityMap, Touch
from router.hashing import weight_of
from router.sync_codec import MAX_MESSAGE, Message
from router.sync_pack import pack, unpack
from router.sync_steps import (
    ANSWERED,
    ENDED,
    MAX_STEPS,
    MAX_WORKERS,
    STARTED,
    STARTED_SILENT,
    Openings,
    Step,
    Steps,
    open_at,
    open_bytes,
    permille_of,
    step_bytes,
)
from router.work import Key, Waiting
from router.workers.registry import Lease, Registry, Worker
from router.workers.registry import Step as What

ROOM = MAX_MESSAGE - 512

Item = TypeVar("Item")


# What has become of a request since its replica has last spoken.
_HAS: dict[What, int] = {"started": 1, "answered": 2, "ended": 4}
_IN_ORDER: tuple[What, ...] = ("started", "answered", "ended")
_NEW, _OVER = _HAS["started"], _HAS["ended"]


class OwnWork:
    """What this replica has to tell. The oldest steps give way to newer ones; the next account makes that good.

    What is over before anybody has heard of it stays untold, and so does a first byte that came with the end.
    """

    def __init__(self, registry: Registry, most: int) -> None:
        self._registry = registry
        self._most = most
        self._steps: dict[Lease, int] = {}

    def add(self, lease: Lease, what: What) -> None:
        """Something happened to a request of this replica."""
        steps = self._steps
        if what == "ended":
            has = steps.pop(lease, 0)
            if has & _NEW:
                return
            if lease.work.silent:
                has = 0
            steps[lease] = has | _OVER
        else:
            steps[lease] = steps.get(lease, 0) | _HAS[what]
        if len(steps) > self._most:
            del steps[next(iter(steps))]

    def clear(self) -> None:
        """Nobody hears it."""
        self._steps.clear()

    def messages(self) -> list[Message]:
        """All steps that wait, those of a request in their order, and none any more."""
        if not self._steps:
            return []
        waiting = [told(lease, what) for lease, has in self._steps.items() for what in _IN_ORDER if has & _HAS[what]]
        self._steps.clear()
        return [Steps(batch) for batch in _batches(waiting, step_bytes, MAX_STEPS)]

    def account(self) -> list[Message]:
        """All requests that this replica has under way."""
        open_ = [open_at(worker.id, worker.work.open_of("")) for worker in self._registry if worker.local]
        return [Openings(batch) for batch in _batches(open_, open_bytes, MAX_WORKERS)]


def _batches(items: Iterable[Item], size: Callable[[Item], int], most: int) -> Iterator[list[Item]]:
    """The items in order, so many and so large at a time that each batch fits into a message."""
    batch: list[Item] = []
    room = ROOM
    for item in items:
        room -= size(item)
        if batch and (room < 0 or len(batch) == most):
            yield batch
            batch, room = [], ROOM - size(item)
        batch.append(item)
    if batch:
        yield batch


class TheirWork:
    """What the other replicas tell. Messages that come late or twice are passed over."""

    def __init__(
        self, registry: Registry, index: AffinityMap, clock: Callable[[], float], dropped: dict[str, int]
    ) -> None:
        self._registry = registry
        self._index = index
        self._clock = clock
        self._heard: dict[str, int] = {}
        self._claims: dict[Key, Touch] = {}
        self._dropped = dropped

    def take(self, sender: str, sequence: int, message: Steps | Openings) -> None:
        """A message of a replica that is alive."""
        if sequence <= self._heard.get(sender, 0):
            return
        self._heard[sender] = sequence
        now = self._clock()
        if isinstance(message, Steps):
            for step in message.steps:
                worker = self._registry.get(step.worker)
                if worker is None:
                    self._dropped["unknown_worker"] += step.what <= STARTED_SILENT
                else:
                    self.take_step(worker, sender, step, now)
        else:
            for one in message.workers:
                worker = self._registry.get(one.worker)
                if worker is not None:
                    worker.work.restate(sender, one.as_of(sender), now)
                    self._registry.moved(worker)

    def drop(self, sender: str) -> None:
        """A replica is gone; the registry forgets what it had in flight, this what was to come of it."""
        self._heard.pop(sender, None)
        for key in [key for key in self._claims if key[0] == sender]:
            self._index.withdraw(self._claims.pop(key))

    def take_step(self, worker: Worker, sender: str, step: Step, now: float) -> None:
        """What became of another replica's request."""
        key = (sender, step.number)
        if step.what == ANSWERED:
            # What it owns now comes with the news; until then the claim stands.
            self._claims.pop(key, None)
            worker.work.first_byte(key, now)
        elif step.what == ENDED:
            claim = self._claims.pop(key, None)
            if claim is not None:
                self._index.withdraw(claim)
            worker.work.ended(key, now)
        else:
            uncached = self._claim(worker, key, step, now)
            light = step.lighter / 1_000 * uncached / max(1, step.uncached)
            worker.work.started(key, Waiting(uncached, step.what == STARTED_SILENT, step.whole, light), now)
        self._registry.moved(worker)

    def _claim(self, worker: Worker, key: Key, step: Step, now: float) -> float:
        """Note what the worker is going to hold; the tokens that it does not compute for another request anyway."""
        twins = self._registry.work.twins.get(step.whole)
        if twins is not None and worker.id in twins:
            return 0.0
        try:
            new = unpack(step.new)
        except struct.error:
            return step.uncached
        if not new or self._index.epoch_of(worker.id) is None:
            return step.uncached
        claim = self._index.claim(worker.id, new if step.base is None else (step.base, *new), now)
        if claim is None:
            return 0.0
        self._claims[key] = claim
        return step.uncached * min(1.0, sum(map(weight_of, claim.blocks)) / sum(map(weight_of, new)))


def told(lease: Lease, what: What) -> Step:
    """What other replicas are told of a request."""
    if what == "answered":
        return Step(lease.worker.id, lease.key[1], ANSWERED)
    if what == "ended":
        return Step(lease.worker.id, lease.key[1], ENDED)
    work, claim = lease.work, lease.claim
    kind = STARTED_SILENT if work.silent else STARTED
    base, new = None, b""
    if claim is not None and claim.tentative:
        base, new = claim.above, pack(claim.blocks[::-1])
    # By place: it is a third of the time that names take.
    return Step(lease.worker.id, lease.key[1], kind, int(work.uncached), permille_of(work), work.whole, base, new)
