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
from collections.abc import Sequence
from dataclasses import dataclass

from router.holdings import Lineage, any_of, reach, see, unproven
from router.shadows import CHORES, EvictionCause, Shadows
from router.touches import Block, Export, LastUse, Owner, Touch, Use, blocks_of, distinct, run_of

__all__ = ["AffinityMap", "Delta", "EvictionCause", "Export", "LastUse", "Touch", "Use"]


# Every how many blocks, from the end of a prompt on, the map is asked first.
STRIDE = 8


@dataclass(slots=True)
class Delta:
    """What one use taught the map: blocks new for the worker, and the deepest block it already owned before them."""

    worker: str
    epoch: float
    base: int | None
    new: tuple[int, ...]


class AffinityMap(Shadows):
    """Bounded map from blocks to owners; `now` is any clock that never goes back."""

    # -- requests --------------------------------------------------------------------------------------------

    def match(self, hashes: Sequence[Block], now: float) -> dict[str, int]:
        """Per worker that owns anything of the prompt, the number of leading blocks believed shared (deepest owned).

        Whoever owns a block owns those above it, so few need to be looked at. News that was lost can hide a worker from
        this, but never, on a run of blocks as long as a stride, the one with the most.
        """
        held = self._holdings.held
        depths: dict[str, int] = {}
        last = probe = len(hashes) - 1
        while probe >= 0 and hashes[probe] not in held:
            probe -= STRIDE
        if probe < 0 and (not hashes or hashes[0] not in held):
            return depths
        for at in range(min(last, probe + STRIDE - 1), -1, -1):
            holder = held.get(hashes[at])
            if holder is not None:
                unseen = see(holder, at + 1, self._live, now, depths)
                if depths:
                    self._join(hashes, at, unseen, now, depths)
                    break
        return depths

    def _join(self, hashes: Sequence[Block], end: int, unseen: int, now: float, depths: dict[str, int]) -> None:
        """Find the unseen workers that own only some of the blocks before `end`, the next one always by halving."""
        held = self._holdings.held
        while end > 0 and any_of(held.get(hashes[0]), unseen, now):
            low, high = 0, end
            while high - low > 1:
                middle = (low + high) // 2
                if any_of(held.get(hashes[middle]), unseen, now):
                    low = middle
                else:
                    high = middle
            unseen = see(held[hashes[low]], low + 1, unseen, now, depths)
            end = low

    def claim(self, worker: str, hashes: Sequence[Block], now: float) -> Touch | None:
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
            touch = Touch(owner.claim, run_of(blocks), above)
            self._enter(touch, now)
        for upper, deeper in self._holdings.lineage(owner, above).items():
            self._move(upper, deeper, now)
        self._tidy(owner, now)
        return touch

    def withdraw(self, touch: Touch) -> None:
        """Take a tentative claim back: the worker did not serve the prompt after all."""
        if touch.kind.tentative:
            self._drop(touch)

    def record(self, worker: str, epoch: float, hashes: Sequence[Block], now: float) -> Delta | None:
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
            # Senseless news can put something above a prompt's first block.
            known = max(0, len(blocks) - new - unproven(lineage, now))
            self._use(owner, blocks[:new], above, lineage, now)
        else:
            known = self._holdings.proven_depth(owner, hashes, now)
            self._enter(Touch(owner.use, run_of(distinct(blocks)), None), now)
        self._tidy(owner, now)
        return Delta(worker, epoch, hashes[known - 1] if known else None, tuple(hashes[known:]))

    def use_of(self, worker: str, block: Block) -> LastUse | None:
        """The last use of a block by a worker, until now."""
        owner = self._owners.get(worker)
        touch = self._holdings.touch_of(owner, block) if owner is not None else None
        return LastUse(touch, touch.used, touch.kind.tentative) if touch is not None else None

    def bytes_since(self, worker: str, used: float, most: int) -> int:
        """About how many bytes the blocks stand for that the worker used later than that; at most `most` uses count."""
        owner = self._owners.get(worker)
        touch = owner.newest if owner is not None else None
        blocks = 0
        while touch is not None and touch.used > used and most > 0:
            blocks += len(blocks_of(touch.run))
            most -= 1
            touch = touch.earlier
        return blocks * owner.bytes // owner.pairs if owner is not None and owner.pairs else 0

    def disprove(self, use: LastUse) -> None:
        """Forget what was not used since that use: its worker was found not to hold what came before that."""
        touch = use.touch
        if touch.used == use.used and self._lives(touch.kind.owner):
            self.evictions["disproved"] += self._drop(touch)

    # -- replicas --------------------------------------------------------------------------------------------

    def apply(self, delta: Delta, now: float) -> bool:
        """Another replica's news: its new blocks, and a touch on those before them. False if it is out of date."""
        owner = self._owners.get(delta.worker)
        if owner is None or owner.epoch != delta.epoch:
            return False
        blocks: tuple[Block, ...] = delta.new[::-1]
        base = delta.base
        new = self._holdings.new_to(owner, blocks)
        above = blocks[new] if new < len(blocks) else base
        lineage = self._holdings.lineage(owner, above)
        end = reach(lineage, blocks, new)
        if end is not None and end >= len(blocks) and (base is None or self._holdings.touch_of(owner, base)):
            self._use(owner, blocks[:new], above, lineage, now)
        else:
            chain = blocks if base is None else (*blocks, *self._chain_to(owner, base))
            self._enter(Touch(owner.use, run_of(distinct(chain)), None), now)
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

    # -- inside ----------------------------------------------------------------------------------------------

    def _chain_to(self, owner: Owner, base: Block) -> list[Block]:
        """The blocks up to and including `base`, deepest first, as far as they are held."""
        lineage = self._holdings.lineage(owner, base)
        return [block for touch, deeper in lineage.items() for block in blocks_of(touch.run)[deeper:]] or [base]

    def _use(self, owner: Owner, new: tuple[Block, ...], above: Block | None, lineage: Lineage, now: float) -> None:
        """A prompt was used: blocks that nobody holds for the owner, and the touches above them.

        They become one touch, but for the forks among them, on which other prompts hang too: those would only be taken
        apart again.
        """
        whole = None
        if new:
            whole = Touch(owner.use, run_of(distinct(new)), above)
            self._hold(whole)
        for touch, deeper in lineage.items():
            if deeper:
                part = self._holdings.split(touch, deeper)
            else:
                part = touch
                owner.remove(touch)
            if part.kind.tentative:
                part.kind = owner.use_fork if part.kind.fork else owner.use
            if whole is None:
                whole = part
            elif part.kind.fork:
                self._append(whole, now)
                whole = part
            else:
                whole = self._holdings.join(whole, part)
        if whole is not None:
            self._append(whole, now)

    def _move(self, touch: Touch, deeper: int, now: float) -> None:
        """A request that hangs on these blocks was sent: they are as young as its claim, and stay for as long."""
        if deeper and not touch.kind.tentative:
            touch = self._holdings.split(touch, deeper)
        else:
            touch.kind.owner.remove(touch)
        self._append(touch, now)

    def _enter(self, touch: Touch, now: float) -> None:
        """Add a touch, whoever holds its blocks for the owner."""
        losers = self._hold(touch)
        self._append(touch, now)
        if losers:
            taken = set(blocks_of(touch.run))
            for loser in losers:
                self._holdings.trim(loser, taken)

    def _restore(self, owner: Owner, use: Use, used: float) -> None:
        if owner.bytes >= owner.capacity and owner.oldest is not None and used < owner.oldest.used:
            return  # it would be evicted at once
        named: tuple[Block, ...] = distinct(use.blocks)
        blocks: list[Block] = []
        for block in named:
            mine = self._holdings.touch_of(owner, block)
            if mine is None or mine.kind.tentative or mine.used < used:
                blocks.append(block)
        if not blocks:
            return
        shallowest = named.index(blocks[-1]) + 1
        above = named[shallowest] if shallowest < len(named) else use.above
        touch = Touch(owner.use, run_of(tuple(blocks)), above, used)
        losers = self._hold(touch)
        owner.insert(touch)
        if used < owner.front:
            self._fronts.add(touch)
        taken = set(blocks)
        for loser in losers:
            self._holdings.trim(loser, taken)
