"""What a worker's KV cache keeps. Pure: no clock and no I/O.

`PrefixCache` is all the engine knows; a cache with other groups (sliding window, recurrent state) only has to keep to
it. The one here is plain attention: blocks held by running requests, the rest in the order they were last used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from loadtest.simworker.tokens import Prompt


@dataclass(slots=True)
class Hold:
    """The blocks one running request keeps from being evicted."""

    cached_tokens: int
    private: int
    blocks: list[int] = field(default_factory=list)
    load_seconds: float = 0.0  # to read what is cached back from where it lies


class PrefixCache(Protocol):
    """Block bookkeeping behind the engine. Hashes are chained, so a block stands for everything before it."""

    def match(self, prompt: Prompt) -> int:
        """Tokens of the prompt that need not be computed."""

    def reserve(self, prompt: Prompt, total_tokens: int) -> Hold | None:
        """Pin what matches and set aside room for the rest; None while there is no room."""

    def commit(self, hold: Hold, hashes: Sequence[int]) -> None:
        """The blocks up to the end of `hashes` are computed now and can be matched."""

    def release(self, hold: Hold) -> None:
        """The request is over: its blocks stay cached until room is needed."""

    def clear(self) -> bool:
        """Forget all; False, and nothing forgotten, while requests are running."""

    @property
    def usage(self) -> float:
        """Share of the blocks that running requests hold, 0 to 1."""

    @property
    def resident(self) -> int:
        """Blocks that could be matched."""


class BlockCache:
    """Full-attention cache of `num_blocks` blocks: hits are whole blocks and leave at least one token to compute."""

    def __init__(self, block_size: int, num_blocks: int, *, enabled: bool = True) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.enabled = enabled
        self.evicted = 0
        self._held: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._private = 0

    def match(self, prompt: Prompt) -> int:
        return self._depth(prompt) * self.block_size

    def _depth(self, prompt: Prompt) -> int:
        if not self.enabled:
            return 0
        limit = min(len(prompt.hashes), (prompt.tokens - 1) // self.block_size)
        held, idle = self._held, self._idle
        for depth in range(limit):
            key = prompt.hashes[depth]
            if key not in held and key not in idle:
                return depth
        return max(limit, 0)

    def reserve(self, prompt: Prompt, total_tokens: int) -> Hold | None:
        depth = self._depth(prompt)
        matched = prompt.hashes[:depth]
        waking = sum(1 for key in matched if key not in self._held)
        private = max(-(-total_tokens // self.block_size) - depth, 0)
        if len(self._held) + waking + self._private + private > self.num_blocks:
            return None
        hold = Hold(depth * self.block_size, private)
        self._private += private
        for key in matched:
            self._pin(key)
        hold.blocks.extend(matched)
        self._make_room()
        return hold

    def commit(self, hold: Hold, hashes: Sequence[int]) -> None:
        if not self.enabled:
            return
        done = len(hold.blocks)
        for key in hashes[done : done + hold.private]:
            self._pin(key)
            hold.blocks.append(key)
            hold.private -= 1
            self._private -= 1

    def release(self, hold: Hold) -> None:
        self._private -= hold.private
        hold.private = 0
        # Deepest first, so that the end of a prompt is evicted before its beginning.
        for key in reversed(hold.blocks):
            count = self._held[key] - 1
            if count:
                self._held[key] = count
            else:
                del self._held[key]
                self._idle[key] = None
        hold.blocks.clear()

    def clear(self) -> bool:
        if self._held or self._private:
            return False
        self._idle.clear()
        return True

    @property
    def usage(self) -> float:
        return (len(self._held) + self._private) / self.num_blocks

    @property
    def resident(self) -> int:
        return len(self._held) + len(self._idle)

    def _pin(self, key: int) -> None:
        held = self._held
        count = held.get(key)
        if count is not None:
            held[key] = count + 1
            return
        self._idle.pop(key, None)
        held[key] = 1

    def _make_room(self) -> None:
        busy = len(self._held) + self._private
        while busy + len(self._idle) > self.num_blocks:
            self._idle.popitem(last=False)
            self.evicted += 1
