"""The prefix cache of a modelled worker: blocks of 512 tokens, least recently used out, those in use pinned."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockCache:
    """Blocks by id. One that a running request uses stays; the others wait to be evicted, deepest of a prompt first.

    Every block keeps the length of the last prompt that used it, for engines whose hits depend on where it ended.
    """

    __slots__ = ("_idle", "_lengths", "_private", "_used", "capacity")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._idle: OrderedDict[int, float] = OrderedDict()  # id -> when it was let go, oldest first
        self._used: dict[int, int] = {}  # id -> running requests that use it
        self._lengths: dict[int, int] = {}
        self._private = 0

    def __contains__(self, block: int) -> bool:
        return block in self._lengths

    @property
    def pinned(self) -> int:
        """Blocks in use."""
        return len(self._used) + self._private

    @property
    def fill(self) -> float:
        """Share of the capacity that holds something."""
        return (len(self._lengths) + self._private) / self.capacity

    def oldest(self) -> float | None:
        """When the block that would go next was let go."""
        return next(iter(self._idle.values()), None)

    def shared(self, ids: Sequence[int]) -> int:
        """How many leading blocks are held."""
        held = self._lengths
        depth = 0
        for block in ids:
            if block not in held:
                break
            depth += 1
        return depth

    def length_at(self, block: int) -> int:
        """The length of the last prompt that used the block."""
        return self._lengths[block]

    def admit(self, ids: Sequence[int], private: int, length: int, *, force: bool = False) -> bool:
        """Pin a prompt's blocks and `private` ones that nobody will share; False if there is no room now."""
        idle, used = self._idle, self._used
        again = sum(block in idle for block in ids)
        new = sum(block not in used for block in ids) - again + private
        room = self.capacity - len(used) - self._private - again
        if new > room and not force:
            return False
        lengths = self._lengths
        for block in ids:
            count = used.get(block)
            if count is None:
                idle.pop(block, None)
                used[block] = 1
            else:
                used[block] = count + 1
            lengths[block] = length
        self._private += private
        self._shrink()
        return True

    def release(self, ids: Sequence[int], private: int, now: float) -> None:
        """Let a finished request's blocks go, deepest first, so that it goes before its parents."""
        used, idle = self._used, self._idle
        for block in reversed(ids):
            count = used[block] - 1
            if count:
                used[block] = count
            else:
                del used[block]
                idle[block] = now
        self._private -= private
        self._shrink()

    def _shrink(self) -> None:
        idle, lengths = self._idle, self._lengths
        while idle and len(lengths) + self._private > self.capacity:
            block, _ = idle.popitem(last=False)
            del lengths[block]
