"""Cumulative block hashes: c(i) = xxh3_64(block i, seed = c(i-1)), started from a keyed BLAKE2b.

The hash of a block is the lower 56 bits of c(i), and above them four that say how much the block stands for:
`BLOCK_BYTES` shifted by them. So whoever holds a hash, or hears it from another replica, knows its weight. A number of
60 bits takes a third less memory than one of 64, and one whose lower bits differ is found sooner in a dictionary.

Appending to a prompt leaves every earlier hash as it was, which is why a growing conversation keeps its worker.
A collision can only misroute a request, never mix answers, so a fast hash is enough for the blocks; the start is
keyed so that nobody outside can aim for one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any

from xxhash import xxh3_64_intdigest

BLOCK_BYTES = 512
DENSE_BYTES = 32 * 1024
DENSE_BLOCKS = DENSE_BYTES // BLOCK_BYTES
# Beyond the dense blocks, checkpoints divide every doubling of the prefix into this many steps.
STEPS_PER_DOUBLING = 8
# Longer than any window of today, and what bounds the hashes of one request.
HORIZON_BYTES = 8 << 20
HASH_BITS = 56
WIDTH_MASK = 15
# Blocks from here on stand for more than the least.
WIDE = 1 << HASH_BITS


def _ladder() -> tuple[int, ...]:
    ends = list(range(BLOCK_BYTES, DENSE_BYTES + 1, BLOCK_BYTES))
    while ends[-1] < HORIZON_BYTES:
        begin = ends[-1]
        step = begin // STEPS_PER_DOUBLING
        ends.extend(range(begin + step, 2 * begin + 1, step))
    return tuple(ends)


def _width(size: int) -> int:
    return min(WIDTH_MASK, max(1, size // BLOCK_BYTES).bit_length() - 1) << HASH_BITS


LADDER = _ladder()
MOST_BLOCKS = len(LADDER)
_CHAIN_MASK = WIDE - 1
_LADDER_WIDTHS = tuple(_width(upper - lower) for lower, upper in pairwise(LADDER[DENSE_BLOCKS - 1 :]))


def boundaries(prefix_bytes: int) -> Sequence[int]:
    """End offsets of the whole blocks of a prefix; the unfinished block at the end changes with the next turn.

    Blocks of 512 bytes to 32 KB, then 8 checkpoints a doubling (104 offsets for 1 MB). A longer prefix only adds
    offsets, so every earlier hash stays as it was. Everything that must know where blocks lie asks here.
    """
    return LADDER[: bisect_right(LADDER, prefix_bytes)]


def end_of(blocks: int) -> int:
    """The bytes that so many leading blocks stand for; 0 for none."""
    return LADDER[blocks - 1] if blocks > 0 else 0


def chain_start(secret: bytes, tenant: str, model: str, salt: str) -> int:
    """The seed of the first block: unsigned 64 bits that differ by secret, tenant, model or adapter, and cache salt."""
    digest = blake2b(key=_key(secret), digest_size=8)
    for part in (tenant, model, salt):
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(4, "little"))
        digest.update(encoded)
    return int.from_bytes(digest.digest(), "little")


def block_hashes(prefix: bytes, start: int) -> list[int]:
    """The hash of every whole block within the horizon, shallowest first; unsigned 60-bit integers."""
    digest = xxh3_64_intdigest
    ends = boundaries(len(prefix))
    hashes: list[int] = []
    add = hashes.append
    # Of no type, or the compiler would take each number out of its object and put it into another.
    chain: Any = start
    mask: Any = _CHAIN_MASK
    lower = 0
    for upper in ends[:DENSE_BLOCKS]:
        chain = digest(prefix[lower:upper], chain)
        add(chain & mask)
        lower = upper
    if len(ends) > DENSE_BLOCKS:
        # A view costs more than a copy of a small block, and less than one of a wide step.
        view = memoryview(prefix)
        for upper, width in zip(ends[DENSE_BLOCKS:], _LADDER_WIDTHS, strict=False):
            chain = digest(view[lower:upper], chain)
            add(chain & mask | width)
            lower = upper
    return hashes


def hashes_at(prefix: bytes, start: int, ends: Sequence[int]) -> list[int]:
    """The same for other blocks: the hash of the prefix up to each of the ascending end offsets."""
    view = memoryview(prefix)
    hashes: list[int] = []
    chain = start
    lower = 0
    for upper in ends:
        chain = xxh3_64_intdigest(view[lower:upper], chain)
        hashes.append(chain & _CHAIN_MASK | _width(upper - lower))
        lower = upper
    return hashes


def weight_of(block: int) -> int:
    """The bytes of prompt that a block stands for, rounded down to a power of two."""
    return BLOCK_BYTES << (block >> HASH_BITS & WIDTH_MASK)


def fingerprint(secret: bytes) -> str:
    """Sixteen hex digits that agree exactly where two replicas would compute the same hashes."""
    layout = f"v3:{BLOCK_BYTES}:{DENSE_BYTES}:{STEPS_PER_DOUBLING}:{HORIZON_BYTES}".encode()
    return blake2b(layout, key=_key(secret), digest_size=8).hexdigest()


def _key(secret: bytes) -> bytes:
    # BLAKE2b takes keys of up to 64 bytes; cutting a longer one off would make two secrets equal.
    return secret if len(secret) <= 64 else blake2b(secret).digest()
