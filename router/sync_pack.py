"""What each request adds to messages, encoded as it comes up, and lists of block hashes. Pure; it is compiled."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

import msgspec

_encode = msgspec.msgpack.Encoder().encode


def encoded(worker: str, epoch: float, base: int | None, new: Sequence[int]) -> msgspec.Raw:
    """A delta as it travels. Made when it comes up, so that not all of a message are made while one request waits."""
    return msgspec.Raw(_encode((worker, epoch, base, pack(new))))


def pack(blocks: Sequence[int]) -> bytes:
    """Block hashes, 8 little-endian bytes each."""
    return _quads(len(blocks)).pack(*blocks)


def unpack(packed: bytes) -> tuple[int, ...]:
    """The reverse of `pack`; raises struct.error."""
    return _quads(len(packed) // 8).unpack(packed)


@lru_cache(maxsize=512)
def _quads(count: int) -> struct.Struct:
    # By the format, the module would find it with more than the packing itself takes.
    return struct.Struct(f"<{count}Q")
