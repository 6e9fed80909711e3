"""Uses of prompts as the ownership map keeps them, and as one map tells them to another.

An owner's touches are a list from the oldest to the newest; a touch that has lost all its blocks leaves it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


class Touch:
    """One use of one prompt on one owner, and the blocks it still holds; `expires` in the caller's clock.

    `above` is the block just above the shallowest one held here: a later and shorter prompt took the rest.
    `used` is when it was, moved on by a hair where that is needed to tell it from an earlier one.
    """

    __slots__ = ("above", "blocks", "earlier", "expires", "later", "owner", "tentative", "used")

    def __init__(self, owner: Owner, blocks: list[int], above: int | None, expires: float, *, tentative: bool) -> None:
        self.owner = owner
        self.blocks = blocks
        self.above = above
        self.expires = expires
        self.tentative = tentative
        self.used = 0.0
        self.earlier: Touch | None = None
        self.later: Touch | None = None


class Owner:
    """One epoch of one worker's cache: how many blocks it holds, and its touches from the oldest to the newest."""

    __slots__ = ("bit", "epoch", "front", "newest", "oldest", "pairs", "restored", "worker")

    def __init__(self, worker: str, epoch: float, bit: int) -> None:
        self.worker = worker
        self.epoch = epoch
        self.bit = bit
        self.pairs = 0
        self.oldest: Touch | None = None
        self.newest: Touch | None = None
        # The entry that counts in the queue of all owners, and the touch after which the next restored one may belong.
        self.front = math.inf
        self.restored: Touch | None = None

    def __lt__(self, other: Owner) -> bool:
        return self.bit < other.bit

    def append(self, touch: Touch) -> None:
        touch.earlier = self.newest
        if self.newest is None:
            self.oldest = touch
        else:
            self.newest.later = touch
        self.newest = touch

    def insert(self, touch: Touch) -> None:
        """Put a restored touch in its place; fast if the one restored before it is only a little older."""
        at = self.restored if self.restored is not None and self.restored.blocks else self.oldest
        while at is not None and at.used > touch.used:
            at = at.earlier
        while at is not None and at.later is not None and at.later.used <= touch.used:
            at = at.later
        touch.earlier = at
        touch.later = self.oldest if at is None else at.later
        if touch.earlier is None:
            self.oldest = touch
        else:
            touch.earlier.later = touch
        if touch.later is None:
            self.newest = touch
        else:
            touch.later.earlier = touch
        self.restored = touch

    def remove(self, touch: Touch) -> None:
        if touch.earlier is None:
            self.oldest = touch.later
        else:
            touch.earlier.later = touch.later
        if touch.later is None:
            self.newest = touch.earlier
        else:
            touch.later.earlier = touch.earlier
        touch.earlier = touch.later = None


class Shared:
    """A block that several owners hold: their bits, and each one's touch by its bit."""

    __slots__ = ("mask", "touches")

    def __init__(self, first: Touch, second: Touch) -> None:
        self.touches = {first.owner.bit: first, second.owner.bit: second}
        self.mask = first.owner.bit | second.owner.bit


@dataclass(frozen=True, slots=True)
class Use:
    """A use as one map tells another: seconds ago, what it still holds (deepest first), and the block above that."""

    age: float
    blocks: Sequence[int]
    above: int | None


class Export:
    """What a map remembers of one worker, oldest use first, in slices between which the map may change."""

    def __init__(self, lives: Callable[[Owner], bool], owner: Owner, start: Touch | None) -> None:
        self.worker = owner.worker
        self.epoch = owner.epoch
        self._lives = lives
        self._owner = owner
        self._next = start
        self._last = -math.inf

    def take(self, blocks: int, now: float) -> list[Use]:
        """The next uses, of about so many blocks; none at the end. What is used in between comes once more."""
        if not self._lives(self._owner):
            return []
        touch = self._next
        if touch is not None and not touch.blocks:
            # Its blocks were used again meanwhile, or dropped: go on with the first one that was not seen.
            touch = self._owner.oldest
            while touch is not None and touch.used < self._last:
                touch = touch.later
        uses: list[Use] = []
        while touch is not None and blocks > 0:
            if touch.expires > now and not touch.tentative:
                uses.append(Use(now - touch.used, touch.blocks, touch.above))
                blocks -= len(touch.blocks)
            self._last = touch.used
            touch = touch.later
        self._next = touch
        return uses
