"""The workers' shadows: how much each is known to hold, how much it has room for, and what goes first.

Every worker has an owner for each epoch; a later epoch buries the one before. What goes is what was not used for too
long, what a worker's cache has no room for, its own oldest first, and what the map has no room for, the oldest of all
first. No call does more than a bounded number of chores beyond what it came for.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Literal

from router.hashing import weight_of
from router.holdings import Holdings
from router.touches import Block, Fronts, Owner, Touch, blocks_of

# Why blocks are dropped: the worker's cache has no more room, or the map has not; they were not used for too long; the
# cache has begun a new life; an engine turned out not to hold them.
EvictionCause = Literal["capacity", "limit", "expired", "epoch", "disproved"]
CAUSES: tuple[EvictionCause, ...] = ("capacity", "limit", "expired", "epoch", "disproved")
# Work that one call may do for pairs it does not need itself, so that no request pays for a mass expiry.
CHORES = 256
# How far apart, at least, are the times when the table of all blocks is made anew.
PACK_SECONDS = 10.0


class Shadows:
    """What the owners hold, bounded; `now` is any clock that never goes back."""

    def __init__(self, max_blocks: int, ttl_seconds: float, tentative_seconds: float) -> None:
        self.max_blocks = max_blocks
        self._ttl = ttl_seconds
        self._tentative_ttl = tentative_seconds
        self.evictions: dict[EvictionCause, int] = dict.fromkeys(CAUSES, 0)
        self._holdings = Holdings()
        self._owners: dict[str, Owner] = {}
        self._capacities: dict[str, float] = {}
        self._live = 0
        self._bits = 0
        self._free: list[int] = []
        self._pairs = 0
        self._used = -math.inf
        self._fronts = Fronts()
        self._graveyard: deque[Owner] = deque()
        self._packed = -math.inf
        self._packed_drops = 0

    @property
    def ttl(self) -> float:
        """For how many seconds a use is believed in; a change also counts for what is held."""
        return self._ttl

    @ttl.setter
    def ttl(self, seconds: float) -> None:
        self._ttl = seconds
        self._last()

    @property
    def tentative_ttl(self) -> float:
        """The same for a claim."""
        return self._tentative_ttl

    @tentative_ttl.setter
    def tentative_ttl(self, seconds: float) -> None:
        self._tentative_ttl = seconds
        self._last()

    def __len__(self) -> int:
        return self._pairs

    def blocks_of(self, worker: str) -> int:
        """How many blocks the worker owns."""
        owner = self._owners.get(worker)
        return owner.pairs if owner else 0

    def bytes_of(self, worker: str) -> int:
        """How many bytes of prompts the worker's blocks stand for."""
        owner = self._owners.get(worker)
        return owner.bytes if owner else 0

    def fill(self, worker: str) -> float:
        """The share of the worker's capacity that its blocks take; 0 while it is not known. Claims count too."""
        owner = self._owners.get(worker)
        return owner.bytes / owner.capacity if owner and owner.capacity else 0.0

    def oldest_age(self, worker: str, now: float) -> float:
        """Seconds since the last use of what the worker's cache drops next; infinite if it holds nothing."""
        owner = self._owners.get(worker)
        oldest = owner.oldest if owner else None
        return max(0.0, now - oldest.used) if oldest is not None else math.inf

    def last_used(self, worker: str) -> float:
        """When a request that leaves something there was last sent to the worker; minus infinity if none was."""
        owner = self._owners.get(worker)
        return owner.newest.used if owner is not None and owner.newest is not None else -math.inf

    def age(self, worker: str, block: Block, now: float) -> float | None:
        """Seconds since the worker's last use of a block; None if it does not own it."""
        owner = self._owners.get(worker)
        touch = self._holdings.touch_of(owner, block) if owner is not None else None
        return max(0.0, now - touch.used) if touch is not None and touch.lives(now) else None

    def epoch_of(self, worker: str) -> float | None:
        """The epoch whose blocks are held for the worker, if any."""
        owner = self._owners.get(worker)
        return owner.epoch if owner else None

    def set_epoch(self, worker: str, epoch: float) -> bool:
        """Make this the worker's epoch; a later one forgets the earlier blocks in O(1). True if anything changed."""
        owner = self._owners.get(worker)
        # An epoch that is no number would never give way to another.
        if not math.isfinite(epoch) or (owner is not None and epoch <= owner.epoch):
            return False
        if owner is not None:
            self._bury(owner)
        self._settle(worker, epoch)
        return True

    def set_capacity(self, worker: str, size: int | None) -> None:
        """Bytes of prompts that the worker's cache has room for; None if nobody knows. Holds for later epochs too.

        What is too much is evicted, at once as far as that is little, else with the next uses and ticks.
        """
        capacity = math.inf if size is None else float(max(0, size))
        if capacity == math.inf:
            self._capacities.pop(worker, None)
        else:
            self._capacities[worker] = capacity
        owner = self._owners.get(worker)
        if owner is not None and owner.capacity != capacity:
            owner.capacity = capacity
            self._shrink(owner, 8 * CHORES)

    def forget(self, worker: str) -> None:
        """Drop the worker and all it owns, in O(1)."""
        self._capacities.pop(worker, None)
        owner = self._owners.pop(worker, None)
        if owner is not None:
            self._bury(owner)

    def clear(self, worker: str) -> None:
        """Forget the worker's blocks within its epoch: its cache was emptied without a restart."""
        owner = self._owners.get(worker)
        if owner is not None:
            self._bury(owner)
            self._settle(worker, owner.epoch)

    def statistics(self) -> dict[str, int]:
        """Blocks per worker."""
        return {worker: owner.pairs for worker, owner in self._owners.items()}

    def tick(self, now: float) -> bool:
        """Bounded housekeeping, called about once a second: expire what is too old, bury the dead.

        Whether it has made the table of all blocks anew, which leaves the memory of the old one to be given back.
        """
        self._expire(now, 8 * CHORES)
        for owner in self._owners.values():
            if owner.bytes > owner.capacity:
                self._shrink(owner, 8 * CHORES)
        self._clean_graves(8 * CHORES)
        return self._pack(now)

    # -- inside ----------------------------------------------------------------------------------------------

    def _lives(self, owner: Owner) -> bool:
        return self._owners.get(owner.worker) is owner

    def _last(self) -> None:
        for owner in self._owners.values():
            owner.last(self._ttl, self._tentative_ttl)

    def _hold(self, touch: Touch) -> set[Touch]:
        owner = touch.kind.owner
        before = owner.pairs
        losers = self._holdings.hold(touch)
        self._pairs += owner.pairs - before
        return losers

    def _append(self, touch: Touch, now: float) -> None:
        """Put a touch that is in no list at the young end."""
        touch.used = self._used = now if now > self._used else math.nextafter(self._used, math.inf)
        owner = touch.kind.owner
        owner.append(touch)
        if touch.used < owner.front:
            self._fronts.add(touch)

    def _drop(self, touch: Touch, pairs: int | None = None) -> int:
        """Drop so many blocks of a touch, deepest first, or all."""
        dropped = self._holdings.drop(touch, pairs)
        if touch.kind.bit & self._live:
            self._pairs -= dropped
        return dropped

    def _tidy(self, owner: Owner, now: float) -> None:
        self._expire(now, CHORES)
        if owner.bytes > owner.capacity:
            self._shrink(owner, CHORES)
        if self._pairs > self.max_blocks:
            self._evict(self._pairs - self.max_blocks)
        if self._graveyard:
            self._clean_graves(CHORES)

    def _expire(self, now: float, chores: int) -> None:
        while chores > 0 and (oldest := self._fronts.oldest(self._live)) is not None and not oldest.lives(now):
            dropped = self._drop(oldest)
            self.evictions["expired"] += dropped
            chores -= dropped

    def _evict(self, pairs: int) -> None:
        while pairs > 0 and (oldest := self._fronts.oldest(self._live)) is not None:
            dropped = self._drop(oldest, pairs)
            self.evictions["limit"] += dropped
            pairs -= dropped

    def _shrink(self, owner: Owner, chores: int) -> None:
        """Evict what the worker's cache has no room for."""
        while owner.bytes > owner.capacity and chores > 0 and (oldest := owner.oldest) is not None:
            excess = owner.bytes - owner.capacity
            pairs = 0
            for block in blocks_of(oldest.run)[:chores]:
                pairs += 1
                excess -= weight_of(block)
                if excess <= 0:
                    break
            dropped = self._drop(oldest, pairs)
            self.evictions["capacity"] += dropped
            chores -= dropped

    def _pack(self, now: float) -> bool:
        """Give back the room of blocks that are gone, once they are half as many as those that are left."""
        drops = sum(self.evictions.values())
        if drops - self._packed_drops <= self._pairs // 2 or now - self._packed < PACK_SECONDS:
            return False
        self._packed, self._packed_drops = now, drops
        self._holdings.pack()
        return True

    def _settle(self, worker: str, epoch: float) -> None:
        if self._free:
            bit = self._free.pop()
        else:
            bit = 1 << self._bits
            self._bits += 1
        owner = Owner(worker, epoch, bit, self._capacities.get(worker, math.inf))
        owner.last(self._ttl, self._tentative_ttl)
        self._owners[worker] = owner
        self._live |= bit

    def _bury(self, owner: Owner) -> None:
        # Its pairs are cleaned away a few at a time; until then `_live` hides them, and its bit is not given out again.
        self._clean_graves(CHORES)
        self._live ^= owner.bit
        self._pairs -= owner.pairs
        self.evictions["epoch"] += owner.pairs
        self._graveyard.append(owner)
        self._fronts.compact(self._live, 2 * len(self._owners) + CHORES)

    def _clean_graves(self, chores: int) -> None:
        while self._graveyard and chores > 0:
            owner = self._graveyard[0]
            if owner.oldest is not None:
                chores -= self._drop(owner.oldest, chores)
            else:
                self._graveyard.popleft()
                self._free.append(owner.bit)
