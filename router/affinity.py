"""The ownership map: which worker holds which blocks, flat, bounded, and forgotten with the worker's epoch.

A *touch* is one use of one prompt on one worker, and the shared "last use" of all blocks that it holds. Two views:

- `_held`: block -> the touch that used it last, or, where several workers own the block, one touch of each with a bit
  set of the owners, so that one walk over a prompt's hashes answers for the whole fleet;
- each owner's touches in order of use, a linked list. A later touch takes its blocks from the earlier ones, which
  disappear when nothing is left of them, so both views always hold the same pairs and nothing needs sweeping.

Touches list their blocks deepest first. Eviction therefore never takes a parent before its child. A tentative touch
is a claim made at dispatch, before the worker has answered: it names only blocks that are new to the worker, counts
for a few seconds, and is withdrawn if the request fails.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from router.touches import Export, Owner, Shared, Touch, Use

__all__ = ["AffinityMap", "Delta", "EvictionCause", "Export", "Touch", "Use"]

EvictionCause = Literal["capacity", "expired", "epoch", "disproved"]
# Work that one call may do for pairs it does not need itself, so that no request pays for a mass expiry.
CHORES = 256


@dataclass(slots=True)
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
        self.evictions: dict[EvictionCause, int] = {"capacity": 0, "expired": 0, "epoch": 0, "disproved": 0}
        self._held: dict[int, Touch | Shared] = {}
        self._owners: dict[str, Owner] = {}
        self._live = 0
        self._bits = 0
        self._free: list[int] = []
        self._pairs = 0
        self._used = -math.inf
        # The oldest touch of every owner; entries may be too early, never too late, and are corrected when met. One
        # that differs from its owner's `front` has been overtaken by another.
        self._fronts: list[tuple[float, Owner]] = []
        self._graveyard: deque[Owner] = deque()

    def __len__(self) -> int:
        return self._pairs

    def blocks_of(self, worker: str) -> int:
        """How many blocks the worker owns."""
        owner = self._owners.get(worker)
        return owner.pairs if owner else 0

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

    def forget(self, worker: str) -> None:
        """Drop the worker and all it owns, in O(1)."""
        owner = self._owners.pop(worker, None)
        if owner is not None:
            self._bury(owner)

    def clear(self, worker: str) -> None:
        """Forget the worker's blocks within its epoch: its cache was emptied without a restart."""
        owner = self._owners.get(worker)
        if owner is not None:
            self._bury(owner)
            self._settle(worker, owner.epoch)

    def match(self, hashes: Sequence[int], now: float) -> dict[str, int]:
        """Per worker that owns anything of the prompt, the number of leading blocks believed shared (deepest owned)."""
        depths: dict[str, int] = {}
        unseen = self._live
        held = self._held
        depth = len(hashes)
        last = None
        for block in reversed(hashes):
            holder = held.get(block)
            if holder is not None and holder is not last:
                last = holder
                if isinstance(holder, Touch):
                    if holder.owner.bit & unseen and holder.expires > now:
                        depths[holder.owner.worker] = depth
                        unseen ^= holder.owner.bit
                else:
                    found = holder.mask & unseen
                    while found:
                        bit = found & -found
                        found ^= bit
                        touch = holder.touches[bit]
                        if touch.expires > now:
                            depths[touch.owner.worker] = depth
                            unseen ^= bit
                if not unseen:
                    break
            depth -= 1
        return depths

    def claim(self, worker: str, hashes: Sequence[int], now: float) -> Touch | None:
        """A tentative touch on the blocks that are new to the worker; None if there are none or it is unknown."""
        owner = self._owners.get(worker)
        if owner is None:
            return None
        known = self._depth_of(owner, hashes, now, tentative=True)
        if known == len(hashes):
            return None
        above = hashes[known - 1] if known else None
        touch = Touch(owner, list(reversed(hashes[known:])), above, now + self.tentative_ttl, tentative=True)
        self._add(touch, now)
        return touch

    def withdraw(self, touch: Touch) -> None:
        """Take a tentative claim back: the worker did not serve the prompt after all."""
        if touch.tentative:
            self._drop(touch, len(touch.blocks))

    def record(self, worker: str, epoch: float, hashes: Sequence[int], now: float) -> Delta | None:
        """The worker served this prompt in this epoch: it owns all its blocks. None if nothing was learned.

        Returns what to tell other replicas; a use in an older epoch, or of an unknown worker, teaches nothing.
        """
        owner = self._owners.get(worker)
        if owner is None or owner.epoch != epoch or not hashes:
            return None
        known = self._depth_of(owner, hashes, now, tentative=False)
        self._add(Touch(owner, list(reversed(hashes)), None, now + self.ttl, tentative=False), now)
        return Delta(worker, epoch, hashes[known - 1] if known else None, tuple(hashes[known:]))

    def apply(self, delta: Delta, now: float) -> bool:
        """Another replica's news: its new blocks, and a touch on those before them. False if it is out of date."""
        owner = self._owners.get(delta.worker)
        if owner is None or owner.epoch != delta.epoch:
            return False
        blocks = list(reversed(delta.new))
        if delta.base is not None:
            blocks += self._chain_to(owner, delta.base)
        if blocks:
            self._add(Touch(owner, blocks, None, now + self.ttl, tentative=False), now)
        return True

    def use_of(self, worker: str, block: int) -> Touch | None:
        """The last use of a block by a worker, which stays known to its holder when a later one takes its blocks."""
        owner = self._owners.get(worker)
        return self._touch_of(owner, block) if owner is not None else None

    def blocks_since(self, worker: str, used: float, most: int) -> int:
        """How many blocks a worker has used later than that; stops counting at `most`."""
        owner = self._owners.get(worker)
        touch = owner.newest if owner is not None else None
        blocks = 0
        while touch is not None and touch.used > used and blocks < most:
            blocks += len(touch.blocks)
            touch = touch.earlier
        return blocks

    def disprove(self, touch: Touch) -> None:
        """Forget what is left of a use: its worker was found not to hold what came before that."""
        if touch.owner.bit & self._live and self._lives(touch.owner):
            self.evictions["disproved"] += self._drop(touch, len(touch.blocks))

    def export(self, worker: str, since: float = -math.inf) -> Export | None:
        """What is remembered of a worker, as far as it was used at `since` or later; None if it is unknown."""
        owner = self._owners.get(worker)
        if owner is None:
            return None
        start = owner.oldest
        if since > -math.inf:
            start, at = None, owner.newest
            while at is not None and at.used >= since:
                start, at = at, at.earlier
        return Export(self._lives, owner, start)

    def restore(self, worker: str, epoch: float, uses: Sequence[Use], now: float) -> int | None:
        """What another replica remembers, oldest first; of each block the latest use counts. Returns new pairs.

        None if it is out of date.
        """
        owner = self._owners.get(worker)
        if owner is None or owner.epoch != epoch:
            return None
        before = owner.pairs
        for use in uses:
            used = now - max(0.0, use.age)
            if used + self.ttl > now:
                self._restore(owner, use, used)
        gained = owner.pairs - before
        self._tidy(now)
        self._tidy_fronts()
        return gained

    def tick(self, now: float) -> None:
        """Bounded housekeeping, called about once a second: expire what is too old, bury the dead."""
        self._expire(now, 8 * CHORES)
        self._clean_graves(8 * CHORES)

    def statistics(self) -> dict[str, int]:
        """Blocks per worker."""
        return {worker: owner.pairs for worker, owner in self._owners.items()}

    def _lives(self, owner: Owner) -> bool:
        return self._owners.get(owner.worker) is owner

    def _touch_of(self, owner: Owner, block: int) -> Touch | None:
        holder = self._held.get(block)
        if isinstance(holder, Shared):
            return holder.touches.get(owner.bit)
        return holder if holder is not None and holder.owner is owner else None

    def _depth_of(self, owner: Owner, hashes: Sequence[int], now: float, *, tentative: bool) -> int:
        """How deep the owner's blocks reach into the prompt; claims count only if `tentative`."""
        held = self._held
        depth = len(hashes)
        for block in reversed(hashes):
            if block in held:
                touch = self._touch_of(owner, block)
                if touch is not None and touch.expires > now and (tentative or not touch.tentative):
                    break
            depth -= 1
        return depth

    def _chain_to(self, owner: Owner, base: int) -> list[int]:
        """The blocks up to and including `base`, deepest first, as the touches that used them last named them."""
        chain: list[int] = []
        block: int | None = base
        while block is not None and len(chain) < CHORES:
            touch = self._touch_of(owner, block)
            if touch is None:
                break
            chain += touch.blocks[touch.blocks.index(block) :]
            block = touch.above
        return chain or [base]

    def _add(self, touch: Touch, now: float) -> None:
        distinct = set(touch.blocks)
        if len(distinct) != len(touch.blocks):
            touch.blocks = list(dict.fromkeys(touch.blocks))
        touch.used = self._used = now if now > self._used else math.nextafter(self._used, math.inf)
        losers = self._hold(touch)
        owner = touch.owner
        owner.append(touch)
        self._queue(touch)
        for loser in losers:
            self._trim(loser, distinct)
        self._tidy(now)

    def _restore(self, owner: Owner, use: Use, used: float) -> None:
        named = list(dict.fromkeys(use.blocks))
        blocks: list[int] = []
        for block in named:
            mine = self._touch_of(owner, block)
            if mine is None or mine.tentative or mine.used < used:
                blocks.append(block)
        if not blocks:
            return
        shallowest = named.index(blocks[-1]) + 1
        above = named[shallowest] if shallowest < len(named) else use.above
        touch = Touch(owner, blocks, above, used + self.ttl, tentative=False)
        touch.used = used
        losers = self._hold(touch)
        owner.insert(touch)
        self._queue(touch)
        taken = set(blocks)
        for loser in losers:
            self._trim(loser, taken)

    def _queue(self, touch: Touch) -> None:
        owner = touch.owner
        if touch.used < owner.front:
            owner.front = touch.used
            heapq.heappush(self._fronts, (touch.used, owner))

    def _tidy(self, now: float) -> None:
        self._expire(now, CHORES)
        if self._pairs > self.max_blocks:
            self._evict(self._pairs - self.max_blocks)
        self._clean_graves(CHORES)

    def _hold(self, touch: Touch) -> set[Touch]:
        """Make the touch the holder of its blocks for its owner; returns the touches that it took blocks from."""
        owner = touch.owner
        bit = owner.bit
        held = self._held
        losers: set[Touch] = set()
        last = None
        new = 0
        for block in touch.blocks:
            holder = held.get(block)
            if holder is None:
                held[block] = touch
                new += 1
            elif not isinstance(holder, Touch):
                loser = holder.touches.get(bit)
                holder.touches[bit] = touch
                if loser is None:
                    holder.mask |= bit
                    new += 1
                else:
                    losers.add(loser)
            elif holder.owner is owner:
                held[block] = touch
                if holder is not last:
                    last = holder
                    losers.add(holder)
            else:
                held[block] = Shared(holder, touch)
                new += 1
        owner.pairs += new
        self._pairs += new
        return losers

    def _trim(self, loser: Touch, taken: set[int]) -> None:
        """Take blocks that a later touch holds now from an earlier one."""
        kept = [block for block in loser.blocks if block not in taken]
        if not kept:
            loser.owner.remove(loser)
        elif (shallowest := loser.blocks.index(kept[-1]) + 1) < len(loser.blocks):
            loser.above = loser.blocks[shallowest]
        loser.blocks = kept

    def _drop(self, touch: Touch, pairs: int) -> int:
        """Drop up to `pairs` pairs of a touch, deepest first, and the touch itself once nothing is left."""
        dropped = touch.blocks[:pairs]
        if not dropped:
            return 0
        owner = touch.owner
        held = self._held
        for block in dropped:
            holder = held[block]
            if isinstance(holder, Touch):
                del held[block]
            else:
                del holder.touches[owner.bit]
                holder.mask ^= owner.bit
                if len(holder.touches) == 1:
                    (held[block],) = holder.touches.values()
        touch.blocks = touch.blocks[len(dropped) :]
        if not touch.blocks:
            owner.remove(touch)
        owner.pairs -= len(dropped)
        if owner.bit & self._live:
            self._pairs -= len(dropped)
        return len(dropped)

    def _oldest(self) -> Touch | None:
        """The oldest touch of all live owners."""
        fronts = self._fronts
        while fronts:
            used, owner = fronts[0]
            oldest = owner.oldest
            if used != owner.front:
                heapq.heappop(fronts)
            elif oldest is None or not owner.bit & self._live:
                owner.front = math.inf
                heapq.heappop(fronts)
            elif oldest.used != used:
                owner.front = oldest.used
                heapq.heapreplace(fronts, (oldest.used, owner))
            else:
                return oldest
        return None

    def _expire(self, now: float, chores: int) -> None:
        while chores > 0 and (oldest := self._oldest()) is not None and oldest.expires <= now:
            dropped = self._drop(oldest, len(oldest.blocks))
            self.evictions["expired"] += dropped
            chores -= dropped

    def _evict(self, pairs: int) -> None:
        while pairs > 0 and (oldest := self._oldest()) is not None:
            dropped = self._drop(oldest, pairs)
            self.evictions["capacity"] += dropped
            pairs -= dropped

    def _settle(self, worker: str, epoch: float) -> None:
        if self._free:
            bit = self._free.pop()
        else:
            bit = 1 << self._bits
            self._bits += 1
        self._owners[worker] = Owner(worker, epoch, bit)
        self._live |= bit

    def _bury(self, owner: Owner) -> None:
        # Its pairs are cleaned away a few at a time; until then `_live` hides them, and its bit is not given out again.
        self._clean_graves(CHORES)
        self._live ^= owner.bit
        self._pairs -= owner.pairs
        self.evictions["epoch"] += owner.pairs
        self._graveyard.append(owner)
        self._tidy_fronts()

    def _tidy_fronts(self) -> None:
        if len(self._fronts) > 2 * len(self._owners) + CHORES:
            self._fronts = [front for front in self._fronts if front[1].bit & self._live and front[0] == front[1].front]
            heapq.heapify(self._fronts)

    def _clean_graves(self, chores: int) -> None:
        while self._graveyard and chores > 0:
            owner = self._graveyard[0]
            if owner.oldest is not None:
                chores -= self._drop(owner.oldest, chores)
            else:
                self._graveyard.popleft()
                self._free.append(owner.bit)
