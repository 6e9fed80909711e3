"""Uses of prompts as the ownership map keeps them, and as one map tells them to another.

A *touch* is a run of blocks of one owner that were used last at the same time, and all from the deepest of them up. An
owner's touches are a list from the oldest to the newest; a touch that has lost all its blocks leaves it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Touch:
    """Blocks of one owner that share their last use, deepest first; `expires` in the caller's clock.

    `above` is the block just above the shallowest one held here: another touch has that and the rest of the prompt.
    `used` is when it was, moved on by a hair where that is needed to tell it from an earlier one. On the deepest block
    of a `fork` several prompts hang, so it stays apart from what lies below it.
    """

    __slots__ = ("above", "blocks", "earlier", "expires", "fork", "later", "owner", "tentative", "used")

    def __init__(
        self, owner: Owner, blocks: tuple[int, ...], above: int | None, expires: float, *, tentative: bool = False
    ) -> None:
        self.owner = owner
        self.blocks = blocks
        self.above = above
        self.expires = expires
        self.tentative = tentative
        self.fork = False
        self.used = 0.0
        self.earlier: Touch | None = None
        self.later: Touch | None = None


class LastUse(NamedTuple):
    """A touch as it was at some moment; it may be used again later."""

    touch: Touch
    used: float
    tentative: bool


class Owner:
    """One epoch of one worker's cache: how much it holds, and its touches from the oldest to the newest.

    `bytes` are those that its blocks stand for, `capacity` how many its cache has room for.
    """

    __slots__ = ("bit", "bytes", "capacity", "epoch", "front", "newest", "oldest", "pairs", "restored", "worker")

    def __init__(self, worker: str, epoch: float, bit: int, capacity: float = math.inf) -> None:
        self.worker = worker
        self.epoch = epoch
        self.bit = bit
        self.pairs = 0
        self.bytes = 0
        self.capacity = capacity
        self.oldest: Touch | None = None
        self.newest: Touch | None = None
        # The entry that counts in the queue of all owners, and the touch after which the next restored one may belong.
        self.front = math.inf
        self.restored: Touch | None = None

    def __lt__(self, other: Owner) -> bool:
        return self.bit < other.bit

    def append(self, touch: Touch) -> None:
        newest = self.newest
        touch.earlier = newest
        if newest is None:
            self.oldest = touch
        else:
            newest.later = touch
        self.newest = touch

    def insert(self, touch: Touch) -> None:
        """Put a restored touch in its place; fast if the one restored before it is only a little older."""
        at = self.restored if self.restored is not None else self.oldest
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
        earlier, later = touch.earlier, touch.later
        if touch is self.restored:
            self.restored = earlier
        if earlier is None:
            self.oldest = later
        else:
            earlier.later = later
        if later is None:
            self.newest = earlier
        else:
            later.earlier = earlier
        touch.earlier = touch.later = None


class Fronts:
    """The oldest touch of all owners.

    Entries of the queue may be too early, never too late, and are corrected when met. One that differs from its owner's
    `front` has been overtaken by another.
    """

    __slots__ = ("queue",)

    def __init__(self) -> None:
        self.queue: list[tuple[float, Owner]] = []

    def add(self, touch: Touch) -> None:
        """A touch has joined its owner's list, and is older than the owner's `front`."""
        touch.owner.front = touch.used
        heapq.heappush(self.queue, (touch.used, touch.owner))

    def oldest(self, live: int) -> Touch | None:
        """The oldest touch of the owners whose bits are in `live`."""
        queue = self.queue
        while queue:
            used, owner = queue[0]
            oldest = owner.oldest
            if used != owner.front:
                heapq.heappop(queue)
            elif oldest is None or not owner.bit & live:
                owner.front = math.inf
                heapq.heappop(queue)
            elif oldest.used != used:
                owner.front = oldest.used
                heapq.heapreplace(queue, (oldest.used, owner))
            else:
                return oldest
        return None

    def compact(self, live: int, most: int) -> None:
        """Drop what counts no more, once there are more entries than `most`."""
        if len(self.queue) > most:
            self.queue = [front for front in self.queue if front[1].bit & live and front[0] == front[1].front]
            heapq.heapify(self.queue)


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
        self._next_used = 0.0 if start is None else start.used
        self._last = -math.inf

    def take(self, blocks: int, now: float) -> list[Use]:
        """The next uses, of about so many blocks; none at the end. What is used in between comes once more."""
        if not self._lives(self._owner):
            return []
        touch = self._next
        if touch is not None and (not touch.blocks or touch.used != self._next_used):
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
        if touch is not None:
            self._next_used = touch.used
        return uses


def distinct(blocks: Sequence[int]) -> tuple[int, ...]:
    """The blocks, each once: only senseless news names one twice."""
    return tuple(blocks if len(set(blocks)) == len(blocks) else dict.fromkeys(blocks))
