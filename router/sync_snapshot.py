"""A map's memory in messages: chunks of it for a replica that misses something, and sketches that show a difference.

Pure. A chunk's body is zlib over msgpack [[worker, epoch, [[age, above, blocks], ...]], ...], oldest use first, the age
in milliseconds and the blocks packed as in the codec. Hashes do not compress; the rest does.

A sketch sorts a worker's blocks into cells and keeps the exclusive or of each, 2 bytes in a message. It does not depend
on order, and the share of the cells in which two sketches differ tells how many blocks differ, up to about a thousand.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Annotated, NamedTuple

import msgspec

from router.affinity import Export, Use
from router.sync_codec import Block, Epoch, Name, Refused
from router.sync_pack import pack, unpack

# Before compression, which adds at most some bytes to what it can't compress.
MAX_RAW = 62_000
# A level higher costs more time and gains nothing on hashes.
LEVEL = 1
AT_ONCE = 256
CELLS = 256
# The largest difference that a sketch tells reliably from a larger one.
_TELLING = 700.0

_Age = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class _WireUse(msgspec.Struct, array_like=True):
    age: _Age
    above: Block | None
    blocks: bytes


class _WirePart(msgspec.Struct, array_like=True):
    worker: Name
    epoch: Epoch
    uses: list[_WireUse]


class Memory(NamedTuple):
    """Some of what a replica remembers of one worker."""

    worker: str
    epoch: float
    uses: list[Use]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_WirePart]).decode
# Upper bounds of the encoded size of a use without its blocks, and of a worker without its uses.
_USE_BYTES = 24
_PART_BYTES = 4 * 64 + 24


class Snapshot:
    """The answer to one want, made a chunk at a time so that nothing waits for the whole of it."""

    def __init__(self, exports: Iterable[Export]) -> None:
        self._exports = deque(exports)
        # Uses that were taken from the first export and are not told yet.
        self._taken: deque[Use] = deque()
        self.done = False

    def chunk(self, now: float) -> bytes:
        """The next body, which may be empty; the last one if the snapshot is `done` afterwards."""
        parts: list[_WirePart] = []
        room = MAX_RAW
        while self._exports and room > _PART_BYTES + _USE_BYTES + 8:
            export = self._exports[0]
            part = _WirePart(export.worker, export.epoch, [])
            room = self._fill(part, export, room - _PART_BYTES, now)
            if part.uses:
                parts.append(part)
        self.done = not self._exports
        return zlib.compress(_encode(parts), LEVEL)

    def _fill(self, part: _WirePart, export: Export, room: int, now: float) -> int:
        """Add what fits of one worker; returns the room that is left, and drops an export that has ended."""
        while room >= _USE_BYTES + 8:
            if not self._taken:
                self._taken.extend(export.take(AT_ONCE, now))
                if not self._taken:
                    self._exports.popleft()
                    return room
            use = self._taken.popleft()
            fitting = (room - _USE_BYTES) // 8
            if len(use.blocks) > fitting:
                self._taken.appendleft(Use(use.age, use.blocks[fitting:], use.above))
                use = Use(use.age, use.blocks[:fitting], use.blocks[fitting])
            room -= _USE_BYTES + 8 * len(use.blocks)
            part.uses.append(_WireUse(round(use.age * 1000), use.above, pack(use.blocks)))
        return room


def open_chunk(body: bytes) -> list[Memory]:
    """What a chunk's body tells; Refused if it is larger than any sender makes it, or something is out of range."""
    unzip = zlib.decompressobj()
    try:
        raw = unzip.decompress(body, MAX_RAW)
    except zlib.error:
        raise Refused("malformed") from None
    if not unzip.eof:
        raise Refused("oversized" if unzip.unconsumed_tail else "malformed")
    try:
        return [
            Memory(part.worker, part.epoch, [Use(use.age / 1000, unpack(use.blocks), use.above) for use in part.uses])
            for part in _decode(raw)
        ]
    except (msgspec.MsgspecError, RecursionError, struct.error):
        raise Refused("malformed") from None


def slices(memory: Memory, blocks: int) -> Iterator[list[Use]]:
    """The uses in groups of at least so many blocks each, but for the last one."""
    group: list[Use] = []
    size = 0
    for use in memory.uses:
        group.append(use)
        size += len(use.blocks)
        if size >= blocks:
            yield group
            group, size = [], 0
    if group:
        yield group


class Sketch:
    """A worker's blocks, seen from far away."""

    __slots__ = ("_cells", "blocks")

    def __init__(self) -> None:
        self.blocks = 0
        self._cells = [0] * CELLS

    def add(self, uses: Iterable[Use]) -> None:
        """Take in blocks, each of which must come once."""
        cells = self._cells
        for use in uses:
            self.blocks += len(use.blocks)
            for block in use.blocks:
                # By other bits than those that travel.
                cells[block >> 8 & CELLS - 1] ^= block

    def packed(self) -> bytes:
        """The cells as they travel."""
        return struct.pack(f"<{CELLS}H", *[cell >> 16 & 0xFFFF for cell in self._cells])


def difference(one: bytes, two: bytes) -> float:
    """About how many blocks are in only one of the two maps; sketches of other lengths differ in all cells."""
    differing = CELLS
    if len(one) == len(two) == 2 * CELLS:
        differing = sum(a != b for a, b in zip(memoryview(one).cast("H"), memoryview(two).cast("H"), strict=True))
    # Of d blocks thrown into n cells at random, n * exp(-d/n) cells get none.
    return -CELLS * math.log(max(1, CELLS - differing) / CELLS)


def tolerance(blocks: int, under_way: float = 0.0) -> float:
    """How large a difference is normal: beyond it something was lost.

    `under_way` blocks changed while both sides looked. Infinite where a sketch can't tell so many from all: a map that
    changes so fast has forgotten in seconds what it missed.
    """
    allowed = 64.0 + blocks / 100 + under_way
    return min(allowed, _TELLING) if under_way < _TELLING / 2 else math.inf
