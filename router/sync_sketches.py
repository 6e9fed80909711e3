"""Sketches of all that a map holds, for digests: made in slices, and anew only of the workers that changed since."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from router.affinity import AffinityMap, Export
from router.sync_codec import Sum
from router.sync_repair import EVER
from router.sync_snapshot import Sketch, difference, tolerance
from router.workers.registry import Registry, Worker

SLICE_BLOCKS = 4_000
# What a replica has sketched so long ago may still be compared.
FRESH_SECONDS = 0.2
# From this share of its capacity on a worker's shadow drops about as much as it takes in.
FULL = 0.9


@dataclass(frozen=True, slots=True)
class _State:
    """What differs whenever the blocks that a map holds of a worker do, but for those that were restored."""

    epoch: float
    used: float
    blocks: int


class Sketches:
    """Of every worker, on the clock of the map."""

    def __init__(self, index: AffinityMap, registry: Registry, clock: Callable[[], float]) -> None:
        self._index = index
        self._registry = registry
        self._clock = clock
        self._made: dict[str, tuple[_State, Sketch]] = {}
        self._at = EVER
        # How fast the map changed when it was sketched, in blocks a second, and how long that took.
        self._pace = self._took = 0.0

    def restored(self, worker: str) -> None:
        """Blocks of a worker were restored to the map."""
        self._made.pop(worker, None)

    async def renew(self) -> None:
        """Sketch what has changed, unless that was done just now."""
        if self._clock() - self._at <= FRESH_SECONDS:
            return
        began, changed = self._clock(), self._changes()
        before, self._made = self._made, {}
        for worker in self._registry:
            export = self._index.export(worker.id)
            if export is None:
                continue
            # Before the slices: what changes between them is looked at again the next time.
            state = _State(export.epoch, self._index.last_used(worker.id), self._index.blocks_of(worker.id))
            known = before.get(worker.id)
            sketch = known[1] if known is not None and known[0] == state else await self._sketch_of(export)
            self._made[worker.id] = (state, sketch)
        self._at = self._clock()
        self._took = self._at - began
        self._pace = max(0, self._changes() - changed) / max(self._took, 0.001)

    def sums(self) -> list[Sum]:
        """What a digest says."""
        return [
            Sum(worker, state.epoch, sketch.blocks, sketch.packed())
            for worker, (state, sketch) in self._made.items()
            if sketch.blocks
        ]

    def differ(self, theirs: Sum) -> bool:
        """Whether another replica holds something else of a worker, beyond what is always on its way."""
        worker = self._registry.get(theirs.worker)
        if worker is None:
            return False
        epoch, mine = self._mine(worker)
        if epoch != theirs.epoch:
            return False
        blocks = max(mine.blocks, theirs.blocks)
        # The other took about as long; twice, for the pace varies.
        under_way = 2 * self._pace * (2 * self._took + FRESH_SECONDS / 4) * blocks / max(1, len(self._index))
        if self._index.fill(theirs.worker) > FULL:
            # What the other has more does not fit in here, where the worker's cache is taken to be smaller.
            under_way += abs(mine.blocks - theirs.blocks)
        return difference(mine.packed(), theirs.sketch) > tolerance(blocks, under_way)

    def _mine(self, worker: Worker) -> tuple[float, Sketch]:
        made = self._made.get(worker.id)
        return (worker.epoch, Sketch()) if made is None else (made[0].epoch, made[1])

    def _changes(self) -> int:
        """Grows by one with every block that comes or goes."""
        return len(self._index) + 2 * sum(self._index.evictions.values())

    async def _sketch_of(self, export: Export) -> Sketch:
        sketch = Sketch()
        while uses := export.take(SLICE_BLOCKS, self._clock()):
            sketch.add(uses)
            await asyncio.sleep(0)
        return sketch
