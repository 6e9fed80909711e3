"""Which touch holds each block for each owner, flat: one look for each block, whatever hangs on it.

A block of one owner is mapped to its touch. One that several own is mapped to the touches of each with a bit set of the
owners, so that one walk over a prompt's hashes answers for the whole fleet.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.hashing import BLOCK_BYTES, WIDE, weight_of
from router.touches import Block, Owner, Touch, blocks_of, run_of

# The longest way up that is followed: longer than any prompt's, and bounded where senseless news leads in circles.
MOST_ABOVE = 256

# The touches of a prompt from the deepest on, with how many blocks of each, from the deepest on, are not the prompt's.
Lineage = dict[Touch, int]


class Shared:
    """A block that several owners hold: their bits, and each one's touch, in the order of the bits.

    There may be one for every block, so it is as small as it can be.
    """

    __slots__ = ("mask", "touches")

    def __init__(self, touch: Touch) -> None:
        self.touches: tuple[Touch, ...] = (touch,)
        self.mask = touch.kind.bit

    def get(self, bit: int) -> Touch | None:
        """The touch of the owner with this bit."""
        mask = self.mask
        return self.touches[(mask & bit - 1).bit_count()] if mask & bit else None

    def put(self, touch: Touch) -> Touch | None:
        """Make this its owner's touch; returns the one before, if there was one."""
        bit = touch.kind.bit
        touches = self.touches
        at = (self.mask & bit - 1).bit_count()
        before = touches[at] if self.mask & bit else None
        self.touches = (*touches[:at], touch, *touches[at + (before is not None) :])
        self.mask |= bit
        return before

    def take(self, bit: int) -> None:
        """The owner with this bit, which is one of them, is none any more."""
        at = (self.mask & bit - 1).bit_count()
        self.touches = (*self.touches[:at], *self.touches[at + 1 :])
        self.mask ^= bit


Holder = Touch | Shared


def see(holder: Holder, depth: int, unseen: int, now: float, depths: dict[str, int]) -> int:
    """Note the depth of the unseen owners among a block's; `unseen` are their bits, and those left are returned."""
    if isinstance(holder, Touch):
        kind = holder.kind
        if kind.bit & unseen and holder.used + kind.lasts > now:
            depths[kind.worker] = depth
            return unseen ^ kind.bit
        return unseen
    if holder.mask & unseen:
        for touch in holder.touches:
            kind = touch.kind
            if kind.bit & unseen and touch.used + kind.lasts > now:
                depths[kind.worker] = depth
                unseen ^= kind.bit
    return unseen


def any_of(holder: Holder | None, unseen: int, now: float) -> bool:
    """Whether an unseen owner is among a block's."""
    if holder is None:
        return False
    if isinstance(holder, Touch):
        return bool(holder.kind.bit & unseen) and holder.lives(now)
    if holder.mask & unseen:
        for touch in holder.touches:
            if touch.kind.bit & unseen and touch.lives(now):
                return True
    return False


class Holdings:
    """All blocks of all owners. Keeps each owner's `pairs` and `bytes`; its list of touches is the caller's."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held: dict[Block, Holder] = {}

    def pack(self) -> None:
        """Make the table of blocks anew, as small as it can be: it keeps a place for each block that was ever dropped.

        Left alone it would double at last and stay so. Takes some 10 ms for 200,000 blocks.
        """
        packed: dict[Block, Holder] = {}
        # A copy would be as large, and have the same places.
        packed.update(self.held)
        self.held = packed

    def touch_of(self, owner: Owner, block: Block) -> Touch | None:
        """The owner's touch that holds the block."""
        holder = self.held.get(block)
        if holder is None:
            return None
        if isinstance(holder, Touch):
            return holder if holder.kind.owner is owner else None
        return holder.get(owner.bit)

    def depth_of(self, owner: Owner, hashes: Sequence[Block], now: float) -> int:
        """How deep the owner's blocks reach into the prompt, those that it only may hold included."""
        held = self.held
        depth = len(hashes)
        for block in reversed(hashes):
            if block in held:
                touch = self.touch_of(owner, block)
                if touch is not None and touch.lives(now):
                    break
            depth -= 1
        return depth

    def proven_depth(self, owner: Owner, hashes: Sequence[Block], now: float) -> int:
        """The same without claims."""
        for depth in range(len(hashes), 0, -1):
            touch = self.touch_of(owner, hashes[depth - 1])
            if touch is not None and not touch.kind.tentative and touch.lives(now):
                return depth
        return 0

    def new_to(self, owner: Owner, blocks: Sequence[Block]) -> int:
        """How many of a prompt's deepest blocks, which come first, the owner does not have."""
        held = self.held
        for position, block in enumerate(blocks):
            if block in held and self.touch_of(owner, block) is not None:
                return position
        return len(blocks)

    def lineage(self, owner: Owner, block: Block | None) -> Lineage:
        """The owner's touches from a block up to the first one of its prompt, as far as they are held."""
        held = self.held
        lineage: Lineage = {}
        room = MOST_ABOVE
        while block is not None and room > 0:
            touch = held.get(block)
            if touch is not None and not isinstance(touch, Touch):
                touch = touch.get(owner.bit)
            if touch is None or touch.kind.owner is not owner or touch in lineage:
                break
            run = touch.run
            if isinstance(run, tuple):
                lineage[touch] = skipped = 0 if run[0] == block else run.index(block)
                room -= len(run) - skipped
            else:
                lineage[touch] = 0
                room -= 1
            block = touch.above
        return lineage

    def hold(self, touch: Touch) -> set[Touch]:
        """Make the touch the holder of its blocks for its owner; returns the touches that it took blocks from."""
        owner = touch.kind.owner
        held = self.held
        losers: set[Touch] = set()
        last = None
        pairs = wide = 0
        run = touch.run
        for block in run if isinstance(run, tuple) else (run,):
            holder = held.get(block)
            if holder is None:
                held[block] = touch
            elif not isinstance(holder, Touch):
                loser = holder.put(touch)
                if loser is not None:
                    losers.add(loser)
                    continue
            elif holder.kind.owner is owner:
                held[block] = touch
                if holder is not last:
                    last = holder
                    losers.add(holder)
                continue
            else:
                held[block] = shared = Shared(holder)
                shared.put(touch)
            pairs += 1
            if block >= WIDE:
                wide += weight_of(block) - BLOCK_BYTES
        owner.pairs += pairs
        owner.bytes += pairs * BLOCK_BYTES + wide
        return losers

    def drop(self, touch: Touch, pairs: int | None) -> int:
        """Drop up to so many blocks of a touch, deepest first, or all; without any it leaves its owner's list."""
        blocks = blocks_of(touch.run)
        dropped = blocks[:pairs]
        if not dropped:
            return 0
        owner = touch.kind.owner
        held = self.held
        wide = 0
        for block in dropped:
            holder = held[block]
            if block >= WIDE:
                wide += weight_of(block) - BLOCK_BYTES
            if isinstance(holder, Touch):
                del held[block]
            else:
                holder.take(owner.bit)
                if len(holder.touches) == 1:
                    (held[block],) = holder.touches
        touch.run = run_of(blocks[len(dropped) :])
        if len(dropped) == len(blocks):
            owner.remove(touch)
        owner.pairs -= len(dropped)
        owner.bytes -= len(dropped) * BLOCK_BYTES + wide
        return len(dropped)

    def trim(self, loser: Touch, taken: set[Block]) -> None:
        """Take blocks that a later touch holds now from an earlier one."""
        blocks = blocks_of(loser.run)
        kept = tuple([block for block in blocks if block not in taken])
        if not kept:
            loser.kind.owner.remove(loser)
        elif (shallowest := blocks.index(kept[-1]) + 1) < len(blocks):
            loser.above = blocks[shallowest]
        loser.run = run_of(kept)

    def split(self, touch: Touch, deeper: int) -> Touch:
        """A new touch, in no list yet, with all but the deepest so many blocks of a touch; the fork of two prompts."""
        owner, blocks = touch.kind.owner, blocks_of(touch.run)
        upper_blocks = blocks[deeper:]
        kind = owner.claim_fork if touch.kind.tentative else owner.use_fork
        upper = Touch(kind, run_of(upper_blocks), touch.above, touch.used)
        touch.run = run_of(blocks[:deeper])
        touch.above = upper_blocks[0]
        self._give(upper_blocks, upper)
        return upper

    def join(self, deep: Touch, upper: Touch) -> Touch:
        """One touch of two uses that are in no list, `upper` right above `deep`; the other has no blocks afterwards."""
        deep_blocks, upper_blocks = blocks_of(deep.run), blocks_of(upper.run)
        if len(deep_blocks) <= len(upper_blocks):
            self._give(deep_blocks, upper)
            upper.kind = deep.kind
            whole, rest = upper, deep
        else:
            self._give(upper_blocks, deep)
            deep.above = upper.above
            whole, rest = deep, upper
        whole.run = deep_blocks + upper_blocks
        rest.run = ()
        return whole

    def _give(self, blocks: Sequence[Block], touch: Touch) -> None:
        held = self.held
        for block in blocks:
            holder = held[block]
            if isinstance(holder, Touch):
                held[block] = touch
            else:
                holder.put(touch)


def unproven(lineage: Lineage, now: float) -> int:
    """Blocks on the way up before the first that are more than claimed, and not too old."""
    blocks = 0
    for touch, skipped in lineage.items():
        if not touch.kind.tentative and touch.lives(now):
            break
        run = touch.run
        blocks += (len(run) if isinstance(run, tuple) else 1) - skipped
    return blocks


def reach(lineage: Lineage, blocks: Sequence[Block], at: int) -> int | None:
    """Up to which position the touches hold a prompt's blocks, deepest first, from `at` on; None if they are others.

    The hash of a block stands for all before it, so the ends of each touch tell.
    """
    for touch, skipped in lineage.items():
        if at >= len(blocks):
            break
        run = touch.run
        if not isinstance(run, tuple):
            if run != blocks[at]:
                return None
            at += 1
            continue
        end = at + len(run) - skipped
        last = min(end, len(blocks)) - 1
        if run[skipped] != blocks[at] or run[skipped + last - at] != blocks[last]:
            return None
        at = end
    return at
