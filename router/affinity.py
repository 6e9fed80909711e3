"""The ownership map: which worker holds which blocks, flat, bounded, and forgotten with the worker's epoch.

Three views of the same (owner, block) pairs:

- `_masks`: block -> bit set of owners, so that one walk over a prompt's hashes answers for the whole fleet;
- `Owner.blocks`: the owner's flat map, block -> the touch that used it last;
- `_touches`: all touches in order of use, the queue from which the oldest pairs are evicted.

A touch is one use of one prompt on one worker, and it is the shared "last use" of all blocks it names: a pair belongs
to the touch that its owner's map points to, so refreshing a block is one assignment and no queue is ever reordered.
Touches list their blocks deepest first. Eviction therefore never takes a parent before its child.

A tentative touch is a claim made at dispatch, before the worker has answered: it names only blocks that are new to
the worker, counts for a few seconds, and is withdrawn if the request fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

EvictionCause = Literal["capacity", "expired", "epoch"]
# Work that one call may do for pairs it does not need itself, so that no request pays for a mass expiry.
CHORES = 256


class Touch:
    """One use of one prompt's blocks on one owner; `blocks` is deepest first, `expires` in the caller's clock."""

    __slots__ = ("at", "blocks", "expires", "owner", "tentative")

    def __init__(self, owner: Owner, blocks: list[int], at: float, expires: float, *, tentative: bool) -> None:
        self.owner = owner
        self.blocks = blocks
        self.at = at
        self.expires = expires
        self.tentative = tentative


class Owner:
    """One epoch of one worker's cache, as the map sees it."""

    __slots__ = ("bit", "blocks", "epoch", "slot", "worker")

    def __init__(self, worker: str, epoch: float, slot: int) -> None:
        self.worker = worker
        self.epoch = epoch
        self.slot = slot
        self.bit = 1 << slot
        self.blocks: dict[int, Touch] = {}


@dataclass(frozen=True, slots=True)
class Delta:
    """What one use taught the map: blocks new for the worker, and the deepest block it already owned before them."""

    worker: str
    epoch: float
    base: int | None
    new: tuple[int, ...]


class AffinityMap:
    """Bounded map from blocks to owners; `now` is any clock that never goes back."""

    def __init__(self, max_blocks: int, ttl_seconds: float, tentative_seconds: float) -> None:
        self.max_blocks = max_blocks
        self.ttl = ttl_seconds
        self.tentative_ttl = tentative_seconds
        self.evictions: dict[EvictionCause, int] = {"capacity": 0, "expired": 0, "epoch": 0}
        self._masks: dict[int, int] = {}
        self._owners: dict[str, Owner] = {}
        self._slots: list[Owner | None] = []
        self._free: list[int] = []
        self._live = 0
        self._touches: deque[Touch] = deque()
        self._queued = 0
        self._pairs = 0
        self._graveyard: deque[Owner] = deque()

    def __len__(self) -> int:
        return self._pairs

    def blocks_of(self, worker: str) -> int:
        """How many blocks the worker owns."""
        owner = self._owners.get(worker)
        return len(owner.blocks) if owner else 0

    def epoch_of(self, worker: str) -> float | None:
        """The epoch whose blocks are held for the worker, if any."""
        owner = self._owners.get(worker)
        return owner.epoch if owner else None

    def set_epoch(self, worker: str, epoch: float) -> bool:
        """Make this the worker's epoch; a later one forgets the earlier blocks in O(1). True if anything changed."""
        owner = self._owners.get(worker)
        if owner is not None:
            if epoch <= owner.epoch:
                return False
            self._bury(owner)
        slot = self._free.pop() if self._free else len(self._slots)
        fresh = Owner(worker, epoch, slot)
        if slot == len(self._slots):
            self._slots.append(fresh)
        else:
            self._slots[slot] = fresh
        self._owners[worker] = fresh
        self._live |= fresh.bit
        return True

    def forget(self, worker: str) -> None:
        """Drop the worker and all it owns, in O(1)."""
        owner = self._owners.pop(worker, None)
        if owner is not None:
            self._bury(owner)

    def clear(self, worker: str) -> None:
        """Forget the worker's blocks within its epoch: its cache was emptied without a restart."""
        owner = self._owners.pop(worker, None)
        if owner is not None:
            self._bury(owner)
            self.set_epoch(worker, owner.epoch)

    def match(self, hashes: Sequence[int], now: float) -> dict[str, int]:
        """Per worker that owns anything of the prompt, the number of leading blocks believed shared (deepest owned)."""
        depths: dict[str, int] = {}
        unseen = self._live
        masks = self._masks
        for depth in range(len(hashes), 0, -1):
            block = hashes[depth - 1]
            found = masks.get(block, 0) & unseen
            while found:
                bit = found & -found
                found ^= bit
                owner = self._slots[bit.bit_length() - 1]
                if owner is not None and owner.blocks[block].expires > now:
                    depths[owner.worker] = depth
                    unseen ^= bit
            if not unseen:
                break
        return depths

    def claim(self, worker: str, hashes: Sequence[int], now: float) -> Touch | None:
        """A tentative touch on the blocks that are new to the worker; None if there are none or it is unknown."""
        owner = self._owners.get(worker)
        if owner is None:
            return None
        known = owner.blocks
        new = [block for block in reversed(hashes) if (held := known.get(block)) is None or held.expires <= now]
        if not new:
            return None
        touch = Touch(owner, new, now, now + self.tentative_ttl, tentative=True)
        self._add(touch, now)
        return touch

    def withdraw(self, touch: Touch) -> None:
        """Take a tentative claim back: the worker did not serve the prompt after all."""
        if touch.tentative:
            for block in touch.blocks:
                if touch.owner.blocks.get(block) is touch:
                    self._drop(touch.owner, block)

    def record(self, worker: str, epoch: float, hashes: Sequence[int], now: float) -> Delta | None:
        """The worker served this prompt in this epoch: it owns all its blocks. None if nothing was learned.

        Returns what to tell other replicas; a use in an older epoch, or of an unknown worker, teaches nothing.
        """
        owner = self._owners.get(worker)
        if owner is None or owner.epoch != epoch or not hashes:
            return None
        known = owner.blocks
        base = None
        first_new = len(hashes)
        while first_new and ((touch := known.get(hashes[first_new - 1])) is None or touch.tentative):
            first_new -= 1
        if first_new:
            base = hashes[first_new - 1]
        self._add(Touch(owner, list(reversed(hashes)), now, now + self.ttl, tentative=False), now)
        return Delta(worker, epoch, base, tuple(hashes[first_new:]))

    def apply(self, delta: Delta, now: float) -> bool:
        """Another replica's news: its new blocks, and a touch on those before them. False if it is out of date."""
        owner = self._owners.get(delta.worker)
        if owner is None or owner.epoch != delta.epoch:
            return False
        blocks = list(reversed(delta.new))
        if delta.base is not None:
            blocks += self._chain_to(owner, delta.base)
        if blocks:
            self._add(Touch(owner, blocks, now, now + self.ttl, tentative=False), now)
        return True

    def tick(self, now: float) -> None:
        """Bounded housekeeping, called about once a second: expire what is too old, bury the dead."""
        self._expire(now, 8 * CHORES)
        self._clean_graves(8 * CHORES)

    def statistics(self) -> dict[str, int]:
        """Blocks per worker."""
        return {worker: len(owner.blocks) for worker, owner in self._owners.items()}

    def _chain_to(self, owner: Owner, base: int) -> list[int]:
        """The blocks up to and including `base`, deepest first, as the touch that used it last named them."""
        touch = owner.blocks.get(base)
        return touch.blocks[touch.blocks.index(base) :] if touch else [base]

    def _add(self, touch: Touch, now: float) -> None:
        owner = touch.owner
        known = owner.blocks
        masks = self._masks
        bit = owner.bit
        before = len(known)
        for block in touch.blocks:
            if block not in known:
                masks[block] = masks.get(block, 0) | bit
            known[block] = touch
        self._pairs += len(known) - before
        self._touches.append(touch)
        self._queued += len(touch.blocks)
        self._expire(now, CHORES)
        if self._pairs > self.max_blocks:
            self._evict(self._pairs - self.max_blocks, "capacity")
        if self._queued > 2 * self.max_blocks + 4 * CHORES:
            self._compact()
        self._clean_graves(CHORES)

    def _drop(self, owner: Owner, block: int) -> None:
        del owner.blocks[block]
        self._pairs -= 1
        self._unmask(block, owner.bit)

    def _unmask(self, block: int, bit: int) -> None:
        mask = self._masks.get(block, 0) & ~bit
        if mask:
            self._masks[block] = mask
        else:
            self._masks.pop(block, None)

    def _expire(self, now: float, chores: int) -> None:
        while self._touches and self._touches[0].expires <= now and chores > 0:
            chores -= len(self._touches[0].blocks)
            self._evict_from(self._touches[0], len(self._touches[0].blocks), "expired")

    def _evict(self, pairs: int, cause: EvictionCause) -> None:
        while pairs > 0 and self._touches:
            pairs -= self._evict_from(self._touches[0], pairs, cause)

    def _evict_from(self, touch: Touch, pairs: int, cause: EvictionCause) -> int:
        """Drop up to `pairs` pairs of the oldest touch, deepest first, and the touch itself once nothing is left."""
        known = touch.owner.blocks
        dropped = looked = 0
        for block in touch.blocks:
            if dropped >= pairs:
                break
            looked += 1
            if known.get(block) is touch:
                self._drop(touch.owner, block)
                dropped += 1
        self._queued -= looked
        if looked == len(touch.blocks):
            self._touches.popleft()
        else:
            del touch.blocks[:looked]
        self.evictions[cause] += dropped
        return dropped

    def _compact(self) -> None:
        """Forget queue entries that a later touch has taken over; amortised over as many touches as it removes."""
        kept: deque[Touch] = deque()
        queued = 0
        for touch in self._touches:
            known = touch.owner.blocks
            touch.blocks = [block for block in touch.blocks if known.get(block) is touch]
            if touch.blocks:
                kept.append(touch)
                queued += len(touch.blocks)
        self._touches = kept
        self._queued = queued

    def _bury(self, owner: Owner) -> None:
        self._live &= ~owner.bit
        self._pairs -= len(owner.blocks)
        self.evictions["epoch"] += len(owner.blocks)
        self._slots[owner.slot] = None
        # The bits in `_masks` are cleaned a few at a time; until then `_live` hides them.
        corpse = Owner(owner.worker, owner.epoch, owner.slot)
        corpse.blocks, owner.blocks = owner.blocks, {}
        self._graveyard.append(corpse)

    def _clean_graves(self, chores: int) -> None:
        while self._graveyard and chores > 0:
            corpse = self._graveyard[0]
            for block in _take(corpse.blocks, chores):
                self._unmask(block, corpse.bit)
                chores -= 1
            if not corpse.blocks:
                self._graveyard.popleft()
                self._free.append(corpse.slot)


def _take(blocks: dict[int, Touch], limit: int) -> Iterable[int]:
    while blocks and limit > 0:
        yield blocks.popitem()[0]
        limit -= 1
