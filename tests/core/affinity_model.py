"""The ownership map by brute force, and a check of the real one's inner bookkeeping."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from router.affinity import AffinityMap
from router.hashing import weight_of
from router.holdings import Shared
from router.touches import Owner, Touch


@dataclass
class Use:
    """One use of a prompt: its blocks from the deepest up, for as long as they belong to it."""

    worker: str
    blocks: list[int]
    expires: float
    tentative: bool


@dataclass
class Model:
    """Every pair by name; `parents` tells the block above each block."""

    max_blocks: int
    ttl: float
    tentative_ttl: float
    parents: dict[int, int | None]
    epochs: dict[str, float] = field(default_factory=dict)
    uses: list[Use] = field(default_factory=list)
    pairs: dict[tuple[str, int], Use] = field(default_factory=dict)
    capacities: dict[str, int] = field(default_factory=dict)

    def live(self, worker: str, block: int | None, now: float) -> Use | None:
        use = self.pairs.get((worker, block)) if block is not None else None
        return use if use is not None and use.expires > now else None

    def has_hole(self, hashes: list[int], now: float) -> bool:
        """Whether some worker holds a block and not the one above it: only a claim whose parent was withdrawn does."""
        for worker in self.epochs:
            held = [self.live(worker, block, now) is not None for block in hashes]
            if any(below and not above for above, below in pairwise(held)):
                return True
        return False

    def match(self, hashes: list[int], now: float) -> dict[str, int]:
        found: dict[str, int] = {}
        for worker in self.epochs:
            depths = [depth for depth, block in enumerate(hashes, 1) if self.live(worker, block, now)]
            if depths:
                found[worker] = depths[-1]
        return found

    def depth(self, worker: str, hashes: list[int], now: float, *, tentative: bool) -> int:
        for depth in range(len(hashes), 0, -1):
            use = self.live(worker, hashes[depth - 1], now)
            if use is not None and (tentative or not use.tentative):
                return depth
        return 0

    def add(self, use: Use, now: float) -> None:
        self.enter(use)
        self.settle(use.worker, now)

    def enter(self, use: Use) -> None:
        for block in use.blocks:
            self.pairs[use.worker, block] = use
        self.uses.append(use)

    def claim(self, worker: str, hashes: list[int], now: float) -> Use | None:
        """A tentative use of what is new; what is known is used, each claim among it with all that it claims."""
        known = self.depth(worker, hashes, now, tentative=True)
        use = None
        if known < len(hashes):
            use = Use(worker, hashes[known:][::-1], now + self.tentative_ttl, tentative=True)
            self.enter(use)
        proven = []
        for block in reversed(hashes[:known]):
            held = self.pairs.get((worker, block))
            if held is None:
                break
            if not held.tentative:
                proven.append(block)
            else:
                held.expires = now + self.tentative_ttl
                if held is not self.uses[-1]:
                    self.uses = [other for other in self.uses if other is not held] + [held]
        if proven:
            self.enter(Use(worker, proven, now + self.ttl, tentative=False))
        self.settle(worker, now)
        return use

    def settle(self, worker: str, now: float) -> None:
        """Expire, then evict from the worker what its cache has no room for, then from all what the map has not."""
        self.expire(now)
        self.shrink(worker)
        for pair in self.order():
            if len(self.pairs) > self.max_blocks:
                del self.pairs[pair]
        self.tidy()

    def shrink(self, worker: str) -> None:
        for pair in self.order():
            if pair[0] == worker and self.bytes_of(worker) > self.capacities.get(worker, 1 << 60):
                del self.pairs[pair]
        self.tidy()

    def bytes_of(self, worker: str) -> int:
        return sum(weight_of(block) for name, block in self.pairs if name == worker)

    def order(self) -> list[tuple[str, int]]:
        """All pairs, the one that goes first first."""
        pairs = [((use.worker, block), use) for use in self.uses for block in use.blocks]
        return [pair for pair, use in pairs if self.pairs.get(pair) is use]

    def expire(self, now: float) -> None:
        """From the oldest use on, as far as they have expired."""
        self.tidy()
        while self.uses and self.uses[0].expires <= now:
            self.drop(self.uses[0])
            self.tidy()

    def drop(self, use: Use) -> None:
        for pair in [pair for pair, held in self.pairs.items() if held is use]:
            del self.pairs[pair]

    def tidy(self) -> None:
        held = {id(use) for use in self.pairs.values()}
        self.uses = [use for use in self.uses if id(use) in held]

    def forget(self, worker: str) -> None:
        self.pairs = {pair: use for pair, use in self.pairs.items() if pair[0] != worker}
        self.tidy()

    def ancestry(self, block: int) -> list[int]:
        chain = [block]
        while (parent := self.parents[chain[-1]]) is not None:
            chain.append(parent)
        return chain


def check_books(index: AffinityMap) -> None:
    """The two views agree, nothing is counted twice, and nothing is left over."""
    dead = list(index._graveyard)
    live = list(index._owners.values())
    assert len({owner.bit for owner in live + dead}) == len(live + dead)
    assert index._live == sum(owner.bit for owner in live)
    assert len(index) == sum(index.statistics().values()) == sum(owner.pairs for owner in live)
    assert len(index) <= index.max_blocks
    held: dict[tuple[int, int], Touch] = {}
    for block, holder in index._holdings.held.items():
        if isinstance(holder, Shared):
            assert len(holder.touches) > 1
            assert holder.mask == sum(touch.owner.bit for touch in holder.touches)
            assert list(holder.touches) == sorted(holder.touches, key=lambda touch: touch.owner.bit)
        for touch in holder.touches if isinstance(holder, Shared) else [holder]:
            held[touch.owner.bit, block] = touch
    for owner in live + dead:
        check_owner(owner, held)
    assert not held
    for owner in live:
        if owner.oldest is not None:
            assert owner.front <= owner.oldest.used
            assert (owner.front, owner) in index._fronts.queue


def check_owner(owner: Owner, held: dict[tuple[int, int], Touch]) -> None:
    """The owner's touches name exactly what it holds; they are taken out of `held`."""
    touch, earlier, pairs, size = owner.oldest, None, 0, 0
    while touch is not None:
        assert touch.owner is owner
        assert touch.earlier is earlier
        assert earlier is None or earlier.used <= touch.used
        assert touch.blocks
        assert isinstance(touch.run, tuple) is (len(touch.blocks) > 1)
        for block in touch.blocks:
            assert held.pop((owner.bit, block)) is touch
            size += weight_of(block)
        pairs += len(touch.blocks)
        earlier, touch = touch, touch.later
    assert owner.newest is earlier
    assert owner.pairs == pairs
    assert owner.bytes == size
