"""The deeper horizon: dense blocks to 32 KB, then checkpoints over the whole prefix."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.hashing import (
    BLOCK_BYTES,
    DENSE_BYTES,
    HORIZON_BYTES,
    MOST_BLOCKS,
    block_hashes,
    boundaries,
    chain_start,
    end_of,
    hashes_at,
    weight_of,
)

KB = 1024


def test_the_dense_blocks_come_first() -> None:
    for size in (0, 511, 512, 32 * KB - 1, 32 * KB):
        assert list(boundaries(size)) == list(range(BLOCK_BYTES, size + 1, BLOCK_BYTES))


def test_eight_checkpoints_a_doubling() -> None:
    deep = [end // KB for end in boundaries(128 * KB) if end > 32 * KB]
    assert deep == [36, 40, 44, 48, 52, 56, 60, 64, 72, 80, 88, 96, 104, 112, 120, 128]


@pytest.mark.parametrize(
    ("size", "count"), [(32 * KB, 64), (36 * KB - 1, 64), (64 * KB, 72), (1024 * KB, 104), (1 << 30, 128)]
)
def test_how_many_there_are(size: int, count: int) -> None:
    assert len(boundaries(size)) == count


def test_what_a_checkpoint_leaves_out_is_at_most_an_eighth() -> None:
    ends = boundaries(1 << 30)
    assert ends[-1] == HORIZON_BYTES
    assert len(ends) == MOST_BLOCKS
    assert all(after - before <= max(512, before // 8) for before, after in pairwise(ends))


@given(st.integers(0, 150_000), st.integers(0, 60_000))
def test_appending_leaves_every_hash_as_it_was(size: int, longer: int) -> None:
    start = chain_start(b"", "", "m", "")
    whole = random.Random(size).randbytes(size + longer)
    prefix, more = whole[:size], whole[size:]
    before = block_hashes(prefix, start)
    after = block_hashes(prefix + more, start)
    assert after[: len(before)] == before


def test_a_change_changes_every_hash_from_there_on() -> None:
    start = chain_start(b"", "", "m", "")
    prefix = bytes(200 * KB)
    changed = prefix[: 50 * KB] + b"x" + prefix[50 * KB + 1 :]
    same = [a == b for a, b in zip(block_hashes(prefix, start), block_hashes(changed, start), strict=True)]
    assert same == [end <= 50 * KB for end in boundaries(len(prefix))]


def test_a_number_of_blocks_stands_for_the_bytes_up_to_its_end() -> None:
    assert [end_of(blocks) for blocks in (0, 1, 64, 65, 72)] == [0, 512, 32 * KB, 36 * KB, 64 * KB]
    assert [end_of(blocks) for blocks in range(1, MOST_BLOCKS + 1)] == list(boundaries(HORIZON_BYTES))


def test_a_hash_says_how_much_its_block_stands_for() -> None:
    hashes = block_hashes(random.Random(1).randbytes(9 << 20), 7)
    ends = boundaries(9 << 20)
    assert [weight_of(block) for block in hashes] == [upper - lower for lower, upper in pairwise([0, *ends])]


def test_other_blocks_are_chained_alike_and_weighed_by_powers_of_two() -> None:
    prefix = random.Random(1).randbytes(300 * KB)
    assert hashes_at(prefix, 7, boundaries(len(prefix))) == block_hashes(prefix, 7)
    odd = hashes_at(prefix, 7, [512, 1_024, 3 * 1_024, DENSE_BYTES, 300 * KB])
    assert [weight_of(block) for block in odd] == [512, 512, 2 * KB, 16 * KB, 256 * KB]
    assert odd[:2] == block_hashes(prefix, 7)[:2]
