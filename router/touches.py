"""Uses of prompts as the ownership map keeps them, and as one map tells them to another.

A *touch* is a run of blocks of one owner that were used last at the same time, and all from the deepest of them up. An
owner's touches are a list from the oldest to the newest; a touch that has lost all its blocks leaves it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

# A block's hash, which is an int. The compiler must not know: it would take the number out of its object and make
# another object of it for each look into a dict, and the map would keep both.
Block = Any
# The blocks of a touch: the only one itself, or a tuple of none or of several.
Run = Any


# What is told apart by a hair must not outlive it: uses last so much less, which is more than all hairs there ever are.
HAIR_SECONDS = 1e-6


class Kind:
    """What touches of one owner have in common, so that none has to say it: whose they are, and how they count.

    `lasts` is for how long they are believed in, in seconds. Owners have one of each kind.
    """

    __slots__ = ("bit", "fork", "lasts", "owner", "tentative", "worker")

    def __init__(self, owner: Owner, *, tentative: bool, fork: bool) -> None:
        self.owner = owner
        self.bit = owner.bit
        self.worker = owner.worker
        self.tentative = tentative
        self.fork = fork
        self.lasts = math.inf


class Touch:
    """Blocks of one owner that share their last use, deepest first.

    There may be one for every block, so it is as small as it can be. `above` is the block just above the shallowest one
    held here: another touch has that and the rest of the prompt. `used` is when it was, in the caller's clock, moved on
    by a hair where that is needed to tell it from an earlier one. On the deepest block of a fork several prompts hang,
    so it stays apart from what lies below it.
    """

    __slots__ = ("above", "earlier", "kind", "later", "run", "used")

    def __init__(self, kind: Kind, run: Run, above: int | None, used: float = 0.0) -> None:
        self.kind = kind
        self.run = run
        self.above = above
        self.used = used
        self.earlier: Touch | None = None
        self.later: Touch | None = None

    @property
    def owner(self) -> Owner:
        """Whose blocks they are."""
        return self.kind.owner

    @property
    def blocks(self) -> tuple[int, ...]:
        """All of them."""
        return blocks_of(self.run)

    @property
    def tentative(self) -> bool:
        """Whether this is a claim, which proves nothing."""
        return self.kind.tentative

    def lives(self, now: float) -> bool:
        """Whether it is believed in; it no longer is once it was not used for as long as its kind lasts."""
        return self.used + self.kind.lasts > now


class LastUse(NamedTuple):
    """A touch as it was at some moment; it may be used again later."""

    touch: Touch
    used: float
    tentative: bool


class Owner:
    """One epoch of one worker's cache: how much it holds, and its touches from the oldest to the newest.

    `bytes` are those that its blocks stand for, `capacity` how many its cache has room for. A touch is of one of four
    kinds: a use or a claim, and each of these a `fork` or not.
    """

    __slots__ = (
        "bit",
        "bytes",
        "capacity",
        "claim",
        "claim_fork",
        "epoch",
        "front",
        "newest",
        "oldest",
        "pairs",
        "restored",
        "use",
        "use_fork",
        "worker",
    )

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
        self.use = Kind(self, tentative=False, fork=False)
        self.use_fork = Kind(self, tentative=False, fork=True)
        self.claim = Kind(self, tentative=True, fork=False)
        self.claim_fork = Kind(self, tentative=True, fork=True)

    def last(self, uses: float, claims: float) -> None:
        """For how many seconds its uses and its claims are believed in, those that there are already too."""
        self.use.lasts = self.use_fork.lasts = uses - HAIR_SECONDS
        self.claim.lasts = self.claim_fork.lasts = claims - HAIR_SECONDS

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
        owner = touch.kind.owner
        owner.front = touch.used
        heapq.heappush(self.queue, (touch.used, owner))

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
        if touch is not None and (touch.run == () or touch.used != self._next_used):
            # Its blocks were used again meanwhile, or dropped: go on with the first one that was not seen.
            touch = self._owner.oldest
            while touch is not None and touch.used < self._last:
                touch = touch.later
        uses: list[Use] = []
        while touch is not None and blocks > 0:
            if not touch.tentative and touch.lives(now):
                run = touch.blocks
                uses.append(Use(now - touch.used, run, touch.above))
                blocks -= len(run)
            self._last = touch.used
            touch = touch.later
        self._next = touch
        if touch is not None:
            self._next_used = touch.used
        return uses


def blocks_of(run: Run) -> tuple[Block, ...]:
    """The blocks of a run."""
    return run if isinstance(run, tuple) else (run,)


def run_of(blocks: tuple[Block, ...]) -> Run:
    """The blocks as a touch keeps them."""
    return blocks if len(blocks) != 1 else blocks[0]


def distinct(blocks: Sequence[int]) -> tuple[int, ...]:
    """The blocks, each once: only senseless news names one twice."""
    return tuple(blocks if len(set(blocks)) == len(blocks) else dict.fromkeys(blocks))
