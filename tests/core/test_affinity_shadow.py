"""The map as a shadow of each worker's cache: weights, capacity, ages, and touches that move and are not made anew."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.affinity import AffinityMap, Delta, Touch, Use
from router.hashing import HASH_BITS, block_hashes, boundaries, end_of, weight_of
from tests.core.affinity_model import check_books

TTL = 90 * 60.0
ODD = 0x9E3779B97F4A7C15
KB = 1024


def fresh(capacity: int | None = None, max_blocks: int = 100_000) -> AffinityMap:
    index = AffinityMap(max_blocks, TTL, 10.0)
    for worker in ("w0", "w1"):
        index.set_epoch(worker, 1.0)
        index.set_capacity(worker, capacity)
    return index


def prompt(number: int, blocks: int, width: int = 0) -> list[int]:
    """Blocks that are nobody else's, each of which stands for 512 bytes shifted by the width."""
    return [(number * 1_000 + block + 1) * ODD % (1 << HASH_BITS) | width << HASH_BITS for block in range(blocks)]


def touches(index: AffinityMap, worker: str) -> list[Touch]:
    found = []
    touch = index._owners[worker].oldest
    while touch is not None:
        found.append(touch)
        touch = touch.later
    return found


# -- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 511, 512, 32 * KB, 36 * KB, 100 * KB, 1000 * KB, 9000 * KB])
def test_a_prompt_weighs_what_its_blocks_reach(size: int) -> None:
    hashes = block_hashes(bytes(size), 1)
    index = fresh()
    index.record("w0", 1.0, hashes, 0.0)
    assert index.bytes_of("w0") == end_of(len(hashes)) == sum(map(weight_of, hashes))
    assert index.blocks_of("w0") == len(boundaries(size))
    assert index.bytes_of("w1") == index.bytes_of("nobody") == 0


def test_a_replica_that_only_hears_of_a_prompt_weighs_it_alike() -> None:
    here, there, late = fresh(), fresh(), fresh()
    hashes = block_hashes(bytes(300 * KB), 1)
    for depth in (70, len(hashes)):
        delta = here.record("w0", 1.0, hashes[:depth], 0.0)
        assert delta is not None
        there.apply(delta, 0.0)
    export = there.export("w0")
    assert export is not None
    late.restore("w0", 1.0, export.take(1_000, 1.0), 1.0)
    assert here.bytes_of("w0") == there.bytes_of("w0") == late.bytes_of("w0") == end_of(len(hashes)) > 256 * KB


# -- capacity --------------------------------------------------------------------------------------------------------


def test_a_worker_never_holds_more_than_its_cache() -> None:
    """Its own oldest goes, deepest first, whatever older the other workers hold."""
    index = fresh(capacity=16 * 512)
    index.set_capacity("w1", None)
    index.record("w1", 1.0, prompt(9, 64), 0.0)
    for number in range(3):
        index.record("w0", 1.0, prompt(number, 6), float(number + 1))
    assert [index.match(prompt(number, 6), 5.0).get("w0", 0) for number in range(3)] == [4, 6, 6]
    assert index.blocks_of("w1") == 64
    assert (index.bytes_of("w0"), index.fill("w0")) == (16 * 512, 1.0)
    assert index.evictions["capacity"] == 2
    check_books(index)


def test_a_wide_block_takes_the_room_of_many_small_ones() -> None:
    index = fresh(capacity=20 * 512)
    index.record("w0", 1.0, prompt(1, 10), 0.0)
    index.record("w0", 1.0, [*prompt(2, 2), *prompt(3, 1, width=3)], 1.0)
    assert index.bytes_of("w0") == 20 * 512
    index.record("w0", 1.0, [*prompt(4, 1), *prompt(5, 1, width=2)], 2.0)
    assert index.match(prompt(1, 10), 2.0) == {"w0": 5}
    assert index.match(prompt(2, 2), 2.0) == {"w0": 2}
    index.record("w0", 1.0, prompt(6, 1, width=3), 3.0)
    assert index.match([*prompt(2, 2), *prompt(3, 1, width=3)], 3.0) == {"w0": 2}
    check_books(index)


def test_a_prompt_larger_than_the_cache_leaves_its_beginning() -> None:
    index = fresh(capacity=10 * 512)
    index.record("w0", 1.0, prompt(0, 64), 0.0)
    assert index.match(prompt(0, 64), 0.0) == {"w0": 10}
    index.set_capacity("w0", 0)
    assert index.match(prompt(0, 64), 0.0) == {}
    assert index.fill("w0") == 0.0


def test_capacity_outlives_an_epoch_and_not_the_worker() -> None:
    index = fresh(capacity=10 * 512)
    index.set_epoch("w0", 2.0)
    index.record("w0", 2.0, prompt(0, 20), 0.0)
    assert index.blocks_of("w0") == 10
    index.clear("w0")
    index.record("w0", 2.0, prompt(0, 20), 1.0)
    assert index.blocks_of("w0") == 10
    index.forget("w0")
    index.set_epoch("w0", 3.0)
    index.record("w0", 3.0, prompt(0, 20), 2.0)
    assert (index.blocks_of("w0"), index.fill("w0")) == (20, 0.0)


def test_capacity_may_be_known_before_the_worker_and_be_unknown_again() -> None:
    index = AffinityMap(1_000, TTL, 10.0)
    index.set_capacity("w0", 5 * 512)
    index.set_epoch("w0", 1.0)
    index.record("w0", 1.0, prompt(0, 20), 0.0)
    assert index.blocks_of("w0") == 5
    index.set_capacity("w0", None)
    index.record("w0", 1.0, prompt(0, 20), 1.0)
    assert index.blocks_of("w0") == 20


def test_a_cache_found_much_smaller_is_emptied_in_pieces() -> None:
    index = fresh()
    for number in range(500):
        index.record("w0", 1.0, prompt(number, 64), float(number))
    index.set_capacity("w0", 1_000 * 512)
    rounds = 0
    before = index.blocks_of("w0")
    assert 32_000 - before <= 2_048
    while index.bytes_of("w0") > 1_000 * 512:
        index.tick(500.0)
        assert before - index.blocks_of("w0") <= 2_048
        before = index.blocks_of("w0")
        rounds += 1
    assert rounds >= 14
    assert index.blocks_of("w0") == 1_000
    assert index.match(prompt(499, 64), 500.0) == {"w0": 64}
    check_books(index)


def test_a_claim_takes_room_until_it_is_withdrawn() -> None:
    index = fresh(capacity=100 * 512)
    claim = index.claim("w0", prompt(0, 40), 0.0)
    assert claim is not None
    assert index.fill("w0") == pytest.approx(0.4)
    index.withdraw(claim)
    assert index.fill("w0") == 0.0
    assert index.fill("nobody") == 0.0


def test_what_is_about_to_be_used_is_not_evicted_meanwhile() -> None:
    """A request on its way to the oldest prefix keeps that and its claim; the next oldest go."""
    index = fresh(capacity=40 * 512)
    for number in range(4):
        index.record("w0", 1.0, prompt(number, 10), float(number))
    follow_up = [*prompt(0, 10), *prompt(7, 4)]
    index.claim("w0", follow_up, 5.0)
    index.record("w0", 1.0, prompt(8, 16), 6.0)
    assert index.match(follow_up, 6.0) == {"w0": 14}
    assert [index.match(prompt(number, 10), 6.0).get("w0", 0) for number in (1, 2, 3)] == [0, 0, 10]
    # Only then the claim, and behind it the prefix, deepest first.
    index.record("w0", 1.0, prompt(9, 13), 7.0)
    assert index.match(follow_up, 7.0) == {"w0": 11}
    check_books(index)


def test_what_a_full_cache_would_drop_at_once_is_not_taken_over() -> None:
    index = fresh(capacity=10 * 512)
    index.record("w0", 1.0, prompt(0, 10), 100.0)
    old = Use(50.0, prompt(1, 5)[::-1], None)
    young = Use(2.0, prompt(2, 5)[::-1], None)
    assert index.restore("w0", 1.0, [old], 110.0) == 0
    assert index.restore("w0", 1.0, [young], 110.0) == 5
    assert index.match(prompt(2, 5), 110.0) == {"w0": 5}
    assert index.match(prompt(0, 10), 110.0) == {"w0": 5}
    check_books(index)


# -- ages ------------------------------------------------------------------------------------------------------------


def test_ages_are_those_of_the_last_use() -> None:
    index = fresh()
    hashes = prompt(0, 20)
    index.record("w0", 1.0, hashes, 10.0)
    index.record("w0", 1.0, prompt(1, 3), 20.0)
    assert index.oldest_age("w0", 25.0) == 15.0
    index.record("w0", 1.0, hashes[:5], 30.0)
    assert [index.age("w0", hashes[at], 40.0) for at in (0, 4, 5, 19)] == [10.0, 10.0, 30.0, 30.0]
    assert index.oldest_age("w0", 40.0) == 30.0
    index.claim("w0", hashes, 50.0)
    assert index.age("w0", hashes[19], 50.0) == 0.0
    assert index.oldest_age("w0", 50.0) == 30.0
    assert index.age("w1", hashes[0], 40.0) is index.age("nobody", hashes[0], 40.0) is None
    assert index.age("w0", hashes[0], 50.0 + TTL) is None
    assert index.oldest_age("w1", 40.0) == index.oldest_age("nobody", 40.0) == math.inf


# -- touches ---------------------------------------------------------------------------------------------------------


def test_a_growing_conversation_is_one_touch() -> None:
    index = fresh()
    said = prompt(0, 40)
    for turn in range(20):
        said += prompt(turn + 1, 3)
        index.claim("w0", said, float(turn))
        delta = index.record("w0", 1.0, said, turn + 0.5)
        assert delta is not None
        assert len(delta.new) == (3 if turn else 43)
    assert [touch.blocks for touch in touches(index, "w0")] == [tuple(said[::-1])]
    check_books(index)


def test_conversations_with_a_common_beginning_divide_it_once() -> None:
    """What they share stays a touch of its own, younger than what hangs on it."""
    index = fresh()
    beginning = prompt(0, 30)
    said = [[*beginning, *prompt(number + 1, 5)] for number in range(3)]
    for turn in range(6):
        for number, conversation in enumerate(said):
            conversation += prompt(100 + 10 * turn + number, 2)
            now = turn + number / 10
            index.claim("w0", conversation, now)
            index.record("w0", 1.0, conversation, now)
            held = touches(index, "w0")
            assert len(held) <= 4
            assert sum(touch.blocks[-1] == beginning[0] for touch in held) == 1
    assert touches(index, "w0")[-1].blocks == tuple(beginning[::-1])
    check_books(index)


def test_a_claim_is_made_true_and_not_made_anew() -> None:
    index = fresh()
    claim = index.claim("w0", prompt(0, 30), 0.0)
    assert claim is not None
    index.record("w0", 1.0, prompt(0, 30), 1.0)
    assert touches(index, "w0") == [claim]
    assert not claim.tentative
    index.withdraw(claim)
    assert index.match(prompt(0, 30), TTL) == {"w0": 30}


def test_a_claim_that_lost_its_end_is_recorded_whole() -> None:
    index = fresh(capacity=30 * 512)
    hashes = prompt(0, 30)
    index.claim("w0", hashes, 0.0)
    index.record("w0", 1.0, prompt(1, 20), 1.0)
    assert index.match(hashes, 1.0) == {"w0": 10}
    delta = index.record("w0", 1.0, hashes, 2.0)
    assert delta == Delta("w0", 1.0, None, tuple(hashes))
    assert index.match(hashes, 2.0) == {"w0": 30}
    check_books(index)


def test_what_another_claim_names_beyond_a_record_stays_a_claim() -> None:
    index = fresh()
    longer, shorter = prompt(0, 30), prompt(0, 12)
    claim = index.claim("w0", longer, 0.0)
    assert claim is not None
    assert index.record("w0", 1.0, shorter, 1.0) == Delta("w0", 1.0, None, tuple(shorter))
    assert index.match(longer, 5.0) == {"w0": 30}
    assert index.match(longer, 10.0) == {"w0": 12}
    index.withdraw(claim)
    assert index.match(longer, 5.0) == {"w0": 12}
    check_books(index)


# -- doubts ----------------------------------------------------------------------------------------------------------


def test_what_was_not_used_since_a_use_can_be_disproved() -> None:
    """The prompt itself was used again; what hung on the same beginning elsewhere is in doubt."""
    index = fresh()
    beginning = prompt(0, 10)
    branch, other = [*beginning, *prompt(1, 5)], [*beginning, *prompt(2, 5)]
    index.record("w0", 1.0, branch, 0.0)
    use = index.use_of("w0", beginning[-1])
    assert use is not None
    assert (use.used, use.tentative) == (0.0, False)
    index.claim("w0", other, 1.0)
    index.record("w0", 1.0, other, 2.0)
    index.disprove(use)
    assert index.match(branch, 3.0) == {"w0": 10}
    assert index.match(other, 3.0) == {"w0": 15}
    assert index.evictions["disproved"] == 5
    index.disprove(use)
    assert index.evictions["disproved"] == 5
    check_books(index)


def test_a_use_that_was_followed_by_another_disproves_nothing() -> None:
    index = fresh()
    index.record("w0", 1.0, prompt(0, 10), 0.0)
    use = index.use_of("w0", prompt(0, 10)[-1])
    assert use is not None
    index.record("w0", 1.0, prompt(0, 10), 1.0)
    index.disprove(use)
    assert index.match(prompt(0, 10), 1.0) == {"w0": 10}
    index.set_epoch("w0", 2.0)
    index.disprove(use)
    assert index.evictions["disproved"] == 0
    assert index.use_of("w0", 1) is index.use_of("nobody", 1) is None
    check_books(index)


def test_how_much_was_used_since() -> None:
    index = fresh()
    index.record("w0", 1.0, prompt(0, 10), 0.0)
    index.record("w0", 1.0, prompt(1, 10, width=2), 1.0)
    index.record("w0", 1.0, prompt(2, 5), 2.0)
    # Blocks count as much as the worker's do in the mean.
    held = 512 * (10 + 40 + 5)
    assert [index.bytes_since("w0", used, 9) for used in (-1.0, 0.0, 1.0)] == [held, 15 * held // 25, 5 * held // 25]
    assert index.bytes_since("w0", -1.0, 1) == 5 * held // 25
    assert index.bytes_since("w0", 2.0, 9) == 0
    assert index.bytes_since("nobody", 0.0, 9) == 0


# -- senseless news ----------------------------------------------------------------------------------------------------

few = st.integers(0, 12)
senseless = st.one_of(
    st.tuples(st.just("apply"), st.none() | few, st.lists(few, max_size=6)),
    st.tuples(st.just("restore"), st.none() | few, st.lists(few, max_size=6)),
    st.tuples(st.just("record"), few, st.lists(few, max_size=6)),
    st.tuples(st.just("claim"), few, st.lists(few, max_size=6)),
)


@settings(max_examples=150)
@given(st.lists(senseless, max_size=40), st.sampled_from([None, 20_000, 200_000]))
def test_blocks_in_no_order_at_all_leave_the_books_in_order(
    steps: list[tuple[str, int | None, list[int]]], capacity: int | None
) -> None:
    """Nothing of it is a prompt: blocks come twice, above each other in circles, and under several parents."""
    index = fresh(capacity)
    claims = []
    for now, (kind, block, blocks) in enumerate(steps):
        if kind == "apply":
            index.apply(Delta("w0", 1.0, block, tuple(blocks)), float(now))
        elif kind == "restore":
            index.restore("w0", 1.0, [Use(float(block or 0), blocks, block)], float(now))
        elif kind == "record":
            index.record("w0", 1.0, blocks, float(now))
        elif (claim := index.claim("w0", blocks, float(now))) is not None:
            claims.append(claim)
        check_books(index)
    for claim in claims:
        index.withdraw(claim)
        check_books(index)
