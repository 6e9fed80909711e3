"""Cumulative block hashes: h(i) = xxh3_64(block i, seed = h(i-1)), started from a keyed BLAKE2b.

Appending to a prompt leaves every earlier hash as it was, which is why a growing conversation keeps its worker.
A collision can only misroute a request, never mix answers, so a fast hash is enough for the blocks; the start is
keyed so that nobody outside can aim for one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b

from xxhash import xxh3_64_intdigest

BLOCK_BYTES = 512
HORIZON_BYTES = 32 * 1024
DENSE_BLOCKS = HORIZON_BYTES // BLOCK_BYTES
# Beyond the dense blocks, checkpoints divide every doubling of the prefix into this many steps.
STEPS_PER_DOUBLING = 8
LADDER_BYTES = 1 << 30


def boundaries(prefix_bytes: int) -> list[int]:
    """End offsets of the whole blocks of a prefix; the unfinished block at the end changes with the next turn.

    Everything that must know where blocks lie asks here, so a deeper horizon only extends this list.
    """
    return list(range(BLOCK_BYTES, min(prefix_bytes, HORIZON_BYTES) + 1, BLOCK_BYTES))


def _ladder() -> tuple[int, ...]:
    ends = list(range(BLOCK_BYTES, HORIZON_BYTES + 1, BLOCK_BYTES))
    while ends[-1] < LADDER_BYTES:
        begin = ends[-1]
        step = begin // STEPS_PER_DOUBLING
        ends.extend(range(begin + step, 2 * begin + 1, step))
    return tuple(ends)


LADDER = _ladder()


def ladder_boundaries(prefix_bytes: int) -> Sequence[int]:
    """End offsets over the whole prefix: dense blocks to 32 KB, then 8 checkpoints a doubling (104 for 1 MB).

    A longer prefix only adds offsets, so every earlier hash stays as it was.
    """
    return LADDER[: bisect_right(LADDER, prefix_bytes)]


def chain_start(secret: bytes, tenant: str, model: str, salt: str) -> int:
    """The seed of the first block: unsigned 64 bits that differ by secret, tenant, model or adapter, and cache salt."""
    digest = blake2b(key=_key(secret), digest_size=8)
    for part in (tenant, model, salt):
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(4, "little"))
        digest.update(encoded)
    return int.from_bytes(digest.digest(), "little")


def block_hashes(prefix: bytes, start: int) -> list[int]:
    """The hash of every whole block within the horizon, shallowest first; unsigned 64-bit integers."""
    return hashes_at(prefix, start, boundaries(len(prefix)))


def hashes_at(prefix: bytes, start: int, ends: Sequence[int]) -> list[int]:
    """The hash of the prefix up to each of the ascending end offsets."""
    digest = xxh3_64_intdigest
    hashes: list[int] = []
    add = hashes.append
    chain = start
    lower = 0
    for upper in ends:
        chain = digest(prefix[lower:upper], chain)
        add(chain)
        lower = upper
    return hashes


def fingerprint(secret: bytes) -> str:
    """Sixteen hex digits that agree exactly where two replicas would compute the same hashes."""
    layout = f"v1:{BLOCK_BYTES}:{HORIZON_BYTES}".encode()
    return blake2b(layout, key=_key(secret), digest_size=8).hexdigest()


def _key(secret: bytes) -> bytes:
    # BLAKE2b takes keys of up to 64 bytes; cutting a longer one off would make two secrets equal.
    return secret if len(secret) <= 64 else blake2b(secret).digest()
