"""Sketches that were kept are those that would be made anew."""

from __future__ import annotations

import random
from typing import Any

import pytest

from router.affinity import AffinityMap, Touch, Use
from router.sync_codec import Sum
from router.sync_sketches import FRESH_SECONDS, Sketches
from router.workers.registry import Registry

TTL, TENTATIVE = 60.0, 5.0


class Map:
    """A map of three workers, and a clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.index = AffinityMap(400, TTL, TENTATIVE)
        self.registry = Registry()
        self.names = [self.registry.add(f"http://10.0.0.{number}:8000", slots=9).id for number in range(3)]
        for name in self.names:
            self.index.set_epoch(name, 1.0)
        self.claims: list[Touch] = []

    def sketches(self) -> Sketches:
        return Sketches(self.index, self.registry, lambda: self.now)

    async def fresh(self) -> list[Sum]:
        sketches = self.sketches()
        await sketches.renew()
        return sketches.sums()

    def happen(self, rng: random.Random, kept: Sketches) -> None:
        """Something happens to the map."""
        name = rng.choice(self.names)
        epoch = self.index.epoch_of(name)
        assert epoch is not None
        begin = rng.randrange(20) << 20
        prompt = [begin + (n << 12) for n in range(1, rng.randint(2, 12))]
        what = rng.randrange(7)
        if what == 0:
            self.index.record(name, epoch, prompt, self.now)
        elif what == 1:
            claim = self.index.claim(name, prompt, self.now)
            self.claims += [claim] if claim is not None else []
        elif what == 2 and self.claims:
            self.index.withdraw(self.claims.pop())
        elif what == 3:
            use = Use(rng.uniform(0.0, TTL), prompt[::-1], None)
            self.index.restore(name, epoch, [use], self.now)
            kept.restored(name)
        elif what == 4:
            self.index.set_capacity(name, rng.choice((None, 4_000, 40_000)))
        elif what == 5 and rng.random() < 0.2:
            self.index.set_epoch(name, epoch + 1)
        else:
            self.now += rng.choice((1.0, 1.0, TTL / 2))
            self.index.tick(self.now)


@pytest.mark.parametrize("seed", range(20))
async def test_kept_sketches_are_those_of_the_map_as_it_is(seed: int) -> None:
    rng = random.Random(seed)
    map_ = Map()
    kept = map_.sketches()
    for _ in range(60):
        for _ in range(rng.randrange(4)):
            map_.happen(rng, kept)
        map_.now += 2 * FRESH_SECONDS
        map_.index.tick(map_.now)
        await kept.renew()
        assert kept.sums() == await map_.fresh()


async def test_a_worker_of_which_nothing_has_changed_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    map_ = Map()
    for name in map_.names:
        map_.index.record(name, 1.0, [n << 12 for n in range(1, 50)], map_.now)
    kept = map_.sketches()
    await kept.renew()
    looked: list[str] = []
    sketch_of = Sketches._sketch_of

    async def watched(self: Sketches, export: Any) -> Any:
        looked.append(export.worker)
        return await sketch_of(self, export)

    monkeypatch.setattr(Sketches, "_sketch_of", watched)
    map_.now += 10.0
    map_.index.record(map_.names[1], 1.0, [1 << 30], map_.now)
    await kept.renew()
    assert looked == [map_.names[1]]
