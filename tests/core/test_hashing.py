"""Block hashes: cumulative, keyed, whole blocks only."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from router.hashing import (
    BLOCK_BYTES,
    DENSE_BLOCKS,
    DENSE_BYTES,
    HASH_BITS,
    HORIZON_BYTES,
    block_hashes,
    boundaries,
    chain_start,
    fingerprint,
)

START = chain_start(b"", "", "m", "")
# Long texts from small draws: a few bytes, repeated.
texts = st.lists(
    st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=8), st.integers(1, 400)), max_size=6
).map(b"".join)


def common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading bytes or hashes both share, counted one by one."""
    shared = 0
    for mine, theirs in zip(first, second, strict=False):
        if mine != theirs:
            break
        shared += 1
    return shared


@pytest.mark.parametrize(
    ("size", "blocks"),
    [(0, 0), (1, 0), (511, 0), (512, 1), (513, 1), (1023, 1), (1024, 2), (32_767, 63), (32_768, 64), (1 << 20, 104)],
)
def test_only_whole_blocks_are_hashed(size: int, blocks: int) -> None:
    assert len(block_hashes(b"x" * size, START)) == len(boundaries(size)) == blocks


def test_boundaries_ascend_and_stay_within_the_prefix_and_the_horizon() -> None:
    for size in (0, 700, 5_000, 40_000, 1 << 22, 1 << 30):
        ends = boundaries(size)
        assert list(ends) == sorted(set(ends))
        assert all(end <= min(size, HORIZON_BYTES) for end in ends)
        assert len(ends) <= 128
    assert boundaries(HORIZON_BYTES)[DENSE_BLOCKS - 1] == DENSE_BYTES


def test_the_chain_is_what_it_is_said_to_be() -> None:
    prefix = bytes(range(256)) * 8
    chain = START
    expected = []
    for at in range(0, len(prefix), BLOCK_BYTES):
        chain = xxh3_64_intdigest(prefix[at : at + BLOCK_BYTES], seed=chain)
        expected.append(chain & (1 << HASH_BITS) - 1)
    assert block_hashes(prefix, START) == expected
    assert all(0 <= block < 1 << HASH_BITS for block in expected)


def test_dictionaries_go_by_lower_bits_and_find_all_of_them() -> None:
    """Bits that are alike would send all blocks to the same few places, also where a block stands for more."""
    hashes = block_hashes(bytes(HORIZON_BYTES), START)
    for part in (hashes[:DENSE_BLOCKS], hashes[DENSE_BLOCKS:]):
        assert len({hash(block) & 15 for block in part}) > 8


@given(texts, texts)
def test_appending_leaves_every_earlier_hash_as_it_was(prefix: bytes, more: bytes) -> None:
    before = block_hashes(prefix, START)
    assert block_hashes(prefix + more, START)[: len(before)] == before


@given(texts, texts, texts)
def test_two_prompts_share_exactly_the_whole_blocks_of_what_they_share(a: bytes, b: bytes, c: bytes) -> None:
    first, second = a + b, a + c
    expected = len(boundaries(common(first, second)))
    assert common(block_hashes(first, START), block_hashes(second, START)) == expected


@given(texts.filter(bool), st.data())
def test_a_changed_byte_changes_its_block_and_all_after_it(prefix: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(prefix) - 1))
    changed = prefix[:at] + bytes([prefix[at] ^ 1]) + prefix[at + 1 :]
    before, after = block_hashes(prefix, START), block_hashes(changed, START)
    assert [mine == theirs for mine, theirs in zip(before, after, strict=True)] == [
        end <= at for end in boundaries(len(prefix))
    ]


STARTS = {
    "plain": (b"", "", "m", ""),
    "secret": (b"s", "", "m", ""),
    "tenant": (b"", "t", "m", ""),
    "model": (b"", "", "adapter", ""),
    "salt": (b"", "", "m", "pepper"),
    "salt as tenant": (b"", "pepper", "m", ""),
    "moved boundary": (b"", "", "mp", "epper"),
    "model as tenant": (b"", "m", "", ""),
    "lone surrogate": (b"", "", "m", "\ud800"),
    "question mark": (b"", "", "m", "?"),
    "long secret": (b"k" * 64, "", "m", ""),
    "longer secret": (b"k" * 64 + b"1", "", "m", ""),
    "as long, other end": (b"k" * 64 + b"2", "", "m", ""),
}


def test_secret_tenant_model_and_salt_each_lead_to_other_hashes() -> None:
    prefix = b"the same prompt " * 64
    chains = {name: tuple(block_hashes(prefix, chain_start(*parts))) for name, parts in STARTS.items()}
    seen: set[int] = set()
    for name, chain in chains.items():
        assert not seen & set(chain), name
        seen.update(chain)


@given(st.binary(max_size=100), st.text(), st.text(), st.text())
def test_the_start_is_an_unsigned_64_bit_number_and_always_the_same(
    secret: bytes, tenant: str, model: str, salt: str
) -> None:
    start = chain_start(secret, tenant, model, salt)
    assert 0 <= start < 1 << 64
    assert chain_start(secret, tenant, model, salt) == start


def test_nobody_can_find_the_start_without_the_secret() -> None:
    """Without the key the same parts give another number, so blocks that collide can't be prepared outside."""
    parts = b"".join(len(part).to_bytes(4, "little") + part for part in (b"", b"m", b""))
    assert chain_start(b"", "", "m", "") == int.from_bytes(blake2b(parts, digest_size=8).digest(), "little")
    assert chain_start(b"secret", "", "m", "") != chain_start(b"", "", "m", "")


def test_the_fingerprint_agrees_where_the_hashes_do_and_shows_nothing_of_the_secret() -> None:
    secrets = [b"", b"secret", b"k" * 64, b"k" * 64 + b"1", b"k" * 64 + b"2"]
    prints = [fingerprint(secret) for secret in secrets]
    assert len(set(prints)) == len(secrets)
    assert fingerprint(b"secret") == prints[1]
    assert all(len(each) == 16 and int(each, 16) >= 0 for each in prints)
    assert prints[1] != f"{chain_start(b'secret', '', '', ''):016x}"
