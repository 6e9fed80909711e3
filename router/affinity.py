"""The ownership map: which worker holds which blocks, flat, bounded, and forgotten with the worker's epoch.

Of each worker it is a shadow of the cache: least recently used out, never more than the cache has room for, where that
is known. Two views hold the same pairs of worker and block, so nothing needs sweeping:

- `Holdings`: block -> the touch that holds it, for one walk over a prompt's hashes that answers for the whole fleet;
- each owner's touches in order of use, a linked list. A use moves the prompt's touches to its young end, deepest first,
  and takes blocks from those that only share its beginning.

Touches list their blocks deepest first too. Eviction therefore never takes a parent before its child. A tentative touch
is a claim made at dispatch, before the worker has answered: it names only blocks that are new to the worker, counts
for a few seconds, and is withdrawn if the request fails.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from router.hashing import BLOCK_BYTES, WIDTH_MASK
from router.holdings import Holdings, Lineage, reach, unproven
from router.touches import Export, Fronts, LastUse, Owner, Touch, Use, distinct

__all__ = ["AffinityMap", "Delta", "EvictionCause", "Export", "LastUse", "Touch", "Use"]

# Why blocks are dropped: the worker's cache has no more room, or the map has not; they were not used for too long; the
# cache has begun a new life; an engine turned out not to hold them.
EvictionCause = Literal["capacity", "limit", "expired", "epoch", "disproved"]
CAUSES: tuple[EvictionCause, ...] = ("capacity", "limit", "expired", "epoch", "disproved")
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

    def __len__(self) -> int:
        return self._pairs

    # -- workers ---------------------------------------------------------------------------------------------

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

    def age(self, worker: str, block: int, now: float) -> float | None:
        """Seconds since the worker's last use of a block; None if it does not own it."""
        owner = self._owners.get(worker)
        touch = self._holdings.touch_of(owner, block) if owner is not None else None
        return max(0.0, now - touch.used) if touch is not None and touch.expires > now else None

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

    # -- requests --------------------------------------------------------------------------------------------

    def match(self, hashes: Sequence[int], now: float) -> dict[str, int]:
        """Per worker that owns anything of the prompt, the number of leading blocks believed shared (deepest owned)."""
        depths: dict[str, int] = {}
        unseen = self._live
        held = self._holdings.held
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
        """A tentative touch on the blocks that are new to the worker; None if there are none or it is unknown.

        The blocks that it owns are used with this: they stay younger than what hangs on them.
        """
        owner = self._owners.get(worker)
        if owner is None:
            return None
        known = self._holdings.depth_of(owner, hashes, now)
        above = hashes[known - 1] if known else None
        touch = None
        if known < len(hashes):
            blocks = distinct(hashes[: known - 1 : -1] if known else hashes[::-1])
            touch = Touch(owner, blocks, above, now + self.tentative_ttl, tentative=True)
            self._enter(touch, now)
        for upper, deeper in self._holdings.lineage(owner, above).items():
            self._move(upper, deeper, now)
        self._tidy(owner, now)
        return touch

    def withdraw(self, touch: Touch) -> None:
        """Take a tentative claim back: the worker did not serve the prompt after all."""
        if touch.tentative:
            self._drop(touch, len(touch.blocks))

    def record(self, worker: str, epoch: float, hashes: Sequence[int], now: float) -> Delta | None:
        """The worker served this prompt in this epoch: it owns all its blocks. None if nothing was learned.

        Returns what to tell other replicas; a use in an older epoch, or of an unknown worker, teaches nothing. Cheap
        after a claim, which it makes true.
        """
        owner = self._owners.get(worker)
        if owner is None or owner.epoch != epoch or not hashes:
            return None
        blocks = tuple(hashes[::-1])
        new = self._holdings.new_to(owner, blocks)
        above = blocks[new] if new < len(blocks) else None
        lineage = self._holdings.lineage(owner, above)
        if reach(lineage, blocks, new) == len(blocks):
            known = len(blocks) - new - unproven(lineage, now)
            self._use(owner, blocks[:new], above, lineage, now)
        else:
            known = self._holdings.proven_depth(owner, hashes, now)
            self._enter(Touch(owner, distinct(blocks), None, now + self.ttl), now)
        self._tidy(owner, now)
        return Delta(worker, epoch, hashes[known - 1] if known else None, tuple(hashes[known:]))

    def use_of(self, worker: str, block: int) -> LastUse | None:
        """The last use of a block by a worker, until now."""
        owner = self._owners.get(worker)
        touch = self._holdings.touch_of(owner, block) if owner is not None else None
        return LastUse(touch, touch.used, touch.tentative) if touch is not None else None

    def bytes_since(self, worker: str, used: float, most: int) -> int:
        """About how many bytes the blocks stand for that the worker used later than that; at most `most` uses count."""
        owner = self._owners.get(worker)
        touch = owner.newest if owner is not None else None
        blocks = 0
        while touch is not None and touch.used > used and most > 0:
            blocks += len(touch.blocks)
            most -= 1
            touch = touch.earlier
        return blocks * owner.bytes // owner.pairs if owner is not None and owner.pairs else 0

    def disprove(self, use: LastUse) -> None:
        """Forget what was not used since that use: its worker was found not to hold what came before that."""
        touch = use.touch
        if touch.used == use.used and self._lives(touch.owner):
            self.evictions["disproved"] += self._drop(touch, len(touch.blocks))

    # -- replicas --------------------------------------------------------------------------------------------

    def apply(self, delta: Delta, now: float) -> bool:
        """Another replica's news: its new blocks, and a touch on those before them. False if it is out of date."""
        owner = self._owners.get(delta.worker)
        if owner is None or owner.epoch != delta.epoch:
            return False
        blocks, base = delta.new[::-1], delta.base
        new = self._holdings.new_to(owner, blocks)
        above = blocks[new] if new < len(blocks) else base
        lineage = self._holdings.lineage(owner, above)
        end = reach(lineage, blocks, new)
        if end is not None and end >= len(blocks) and (base is None or self._holdings.touch_of(owner, base)):
            self._use(owner, blocks[:new], above, lineage, now)
        else:
            chain = blocks if base is None else (*blocks, *self._chain_to(owner, base))
            self._enter(Touch(owner, distinct(chain), None, now + self.ttl), now)
        self._tidy(owner, now)
        return True

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
        self._shrink(owner, CHORES + gained)
        self._tidy(owner, now)
        self._fronts.compact(self._live, 2 * len(self._owners) + CHORES)
        return gained

    def tick(self, now: float) -> None:
        """Bounded housekeeping, called about once a second: expire what is too old, bury the dead."""
        self._expire(now, 8 * CHORES)
        for owner in self._owners.values():
            if owner.bytes > owner.capacity:
                self._shrink(owner, 8 * CHORES)
        self._clean_graves(8 * CHORES)

    # -- inside ----------------------------------------------------------------------------------------------

    def _lives(self, owner: Owner) -> bool:
        return self._owners.get(owner.worker) is owner

    def _chain_to(self, owner: Owner, base: int) -> list[int]:
        """The blocks up to and including `base`, deepest first, as far as they are held."""
        lineage = self._holdings.lineage(owner, base)
        return [block for touch, deeper in lineage.items() for block in touch.blocks[deeper:]] or [base]

    def _use(self, owner: Owner, new: tuple[int, ...], above: int | None, lineage: Lineage, now: float) -> None:
        """A prompt was used: blocks that nobody holds for the owner, and the touches above them.

        They become one touch, but for the forks among them, on which other prompts hang too: those would only be taken
        apart again.
        """
        whole = None
        if new:
            whole = Touch(owner, distinct(new), above, 0.0)
            self._hold(whole)
        for touch, deeper in lineage.items():
            if deeper:
                part = self._holdings.split(touch, deeper)
            else:
                part = touch
                owner.remove(touch)
            part.tentative = False
            if whole is None:
                whole = part
            elif part.fork:
                self._append(whole, now, now + self.ttl)
                whole = part
            else:
                whole = self._holdings.join(whole, part)
        if whole is not None:
            self._append(whole, now, now + self.ttl)

    def _move(self, touch: Touch, deeper: int, now: float) -> None:
        """A request that hangs on these blocks was sent: they are as young as its claim. Claims age all the same."""
        if deeper and not touch.tentative:
            self._append(self._holdings.split(touch, deeper), now, now + self.ttl)
        else:
            touch.owner.remove(touch)
            self._append(touch, now, touch.expires if touch.tentative else now + self.ttl)

    def _enter(self, touch: Touch, now: float) -> None:
        """Add a touch, whoever holds its blocks for the owner."""
        losers = self._hold(touch)
        self._append(touch, now, touch.expires)
        if losers:
            taken = set(touch.blocks)
            for loser in losers:
                self._holdings.trim(loser, taken)

    def _restore(self, owner: Owner, use: Use, used: float) -> None:
        if owner.bytes >= owner.capacity and owner.oldest is not None and used < owner.oldest.used:
            return  # it would be evicted at once
        named = distinct(use.blocks)
        blocks: list[int] = []
        for block in named:
            mine = self._holdings.touch_of(owner, block)
            if mine is None or mine.tentative or mine.used < used:
                blocks.append(block)
        if not blocks:
            return
        shallowest = named.index(blocks[-1]) + 1
        above = named[shallowest] if shallowest < len(named) else use.above
        touch = Touch(owner, tuple(blocks), above, used + self.ttl)
        touch.used = used
        losers = self._hold(touch)
        owner.insert(touch)
        if used < owner.front:
            self._fronts.add(touch)
        taken = set(blocks)
        for loser in losers:
            self._holdings.trim(loser, taken)

    def _hold(self, touch: Touch) -> set[Touch]:
        before = touch.owner.pairs
        losers = self._holdings.hold(touch)
        self._pairs += touch.owner.pairs - before
        return losers

    def _append(self, touch: Touch, now: float, expires: float) -> None:
        """Put a touch that is in no list at the young end."""
        touch.used = self._used = now if now > self._used else math.nextafter(self._used, math.inf)
        touch.expires = expires
        owner = touch.owner
        owner.append(touch)
        if touch.used < owner.front:
            self._fronts.add(touch)

    def _drop(self, touch: Touch, pairs: int) -> int:
        dropped = self._holdings.drop(touch, pairs)
        if touch.owner.bit & self._live:
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
        while chores > 0 and (oldest := self._fronts.oldest(self._live)) is not None and oldest.expires <= now:
            dropped = self._drop(oldest, len(oldest.blocks))
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
            for block in oldest.blocks[:chores]:
                pairs += 1
                excess -= BLOCK_BYTES << (block & WIDTH_MASK)
                if excess <= 0:
                    break
            dropped = self._drop(oldest, pairs)
            self.evictions["capacity"] += dropped
            chores -= dropped

    def _settle(self, worker: str, epoch: float) -> None:
        if self._free:
            bit = self._free.pop()
        else:
            bit = 1 << self._bits
            self._bits += 1
        self._owners[worker] = Owner(worker, epoch, bit, self._capacities.get(worker, math.inf))
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
