"""The ownership map: epochs, age, claims, news, and the bounds that hold whatever is thrown at it."""

from __future__ import annotations

import gc
import math
import time
import tracemalloc
from collections.abc import Callable

import pytest

from router.affinity import AffinityMap, Delta
from tests.core.affinity_model import check_books

TTL = 90 * 60.0
TENTATIVE = 10.0
# An odd number times a counter is as good as a hash here, and never the same twice.
ODD = 0x9E3779B97F4A7C15


def fresh(max_blocks: int = 1000, workers: int = 2) -> AffinityMap:
    index = AffinityMap(max_blocks, TTL, TENTATIVE)
    for number in range(workers):
        index.set_epoch(f"w{number}", 1.0)
    return index


def prompt(number: int, blocks: int = 64) -> list[int]:
    return [(number * blocks + block + 1) * ODD % (1 << 64) for block in range(blocks)]


# -- matching --------------------------------------------------------------------------------------------------------


def test_the_deepest_block_that_a_worker_owns_is_its_match() -> None:
    index = fresh(workers=3)
    hashes = prompt(0, 8)
    index.record("w0", 1.0, hashes[:3], 0.0)
    index.record("w1", 1.0, hashes[:8], 0.0)
    assert index.match(hashes, 1.0) == {"w0": 3, "w1": 8}
    assert index.match(hashes[:5], 1.0) == {"w0": 3, "w1": 5}
    assert index.match([*hashes[:4], 1, 2, 3], 1.0) == {"w0": 3, "w1": 4}
    assert index.match(prompt(1, 8), 1.0) == {}
    assert index.match([], 1.0) == {}


def test_an_unknown_worker_owns_nothing() -> None:
    index = fresh()
    assert index.record("w9", 1.0, prompt(0), 0.0) is None
    assert index.claim("w9", prompt(0), 0.0) is None
    assert not index.apply(Delta("w9", 1.0, None, (1, 2)), 0.0)
    assert (index.blocks_of("w9"), index.epoch_of("w9"), len(index)) == (0, None, 0)
    index.forget("w9")
    index.clear("w9")
    check_books(index)


def test_a_prompt_without_blocks_teaches_nothing() -> None:
    index = fresh()
    assert index.record("w0", 1.0, [], 0.0) is None
    assert index.claim("w0", [], 0.0) is None
    assert index.apply(Delta("w0", 1.0, None, ()), 0.0)
    assert len(index) == 0


def test_nothing_older_than_ninety_minutes_is_considered() -> None:
    index = fresh()
    index.record("w0", 1.0, prompt(0), 100.0)
    index.record("w1", 1.0, prompt(0)[:10], 200.0)
    assert index.match(prompt(0), 100.0 + TTL - 0.001) == {"w0": 64, "w1": 10}
    assert index.match(prompt(0), 100.0 + TTL) == {"w1": 10}
    assert index.match(prompt(0), 200.0 + TTL) == {}
    index.tick(200.0 + TTL)
    assert len(index) == 0
    assert {cause: count for cause, count in index.evictions.items() if count} == {"expired": 74}


def test_a_use_makes_a_prompt_young_again() -> None:
    index = fresh()
    index.record("w0", 1.0, prompt(0), 0.0)
    index.record("w0", 1.0, prompt(0)[:20], 1000.0)
    assert index.match(prompt(0), TTL) == {"w0": 20}


def test_what_expired_is_new_again() -> None:
    """A replica tells the others all of it, since they have forgotten it too."""
    index = fresh()
    index.record("w0", 1.0, prompt(0), 0.0)
    delta = index.record("w0", 1.0, prompt(0), TTL)
    assert delta == Delta("w0", 1.0, None, tuple(prompt(0)))


# -- epochs ----------------------------------------------------------------------------------------------------------


def test_a_restarted_worker_stops_matching() -> None:
    index = fresh()
    index.record("w0", 1.0, prompt(0), 0.0)
    index.record("w1", 1.0, prompt(0), 0.0)
    assert index.set_epoch("w0", 2.0)
    assert index.match(prompt(0), 1.0) == {"w1": 64}
    assert (index.blocks_of("w0"), index.epoch_of("w0"), len(index)) == (0, 2.0, 64)
    assert index.evictions["epoch"] == 64


@pytest.mark.parametrize("epoch", [1.0, 0.5, -math.inf, math.inf, math.nan])
def test_an_epoch_that_is_not_later_changes_nothing(epoch: float) -> None:
    index = fresh()
    index.record("w0", 1.0, prompt(0), 0.0)
    assert not index.set_epoch("w0", epoch)
    assert index.match(prompt(0), 1.0) == {"w0": 64}
    assert index.epoch_of("w0") == 1.0


@pytest.mark.parametrize("epoch", [math.inf, -math.inf, math.nan])
def test_an_epoch_that_is_no_number_is_none(epoch: float) -> None:
    index = AffinityMap(1000, TTL, TENTATIVE)
    assert not index.set_epoch("w0", epoch)
    assert index.epoch_of("w0") is None
    assert index.set_epoch("w0", 1.0)


def test_uses_and_news_of_an_old_epoch_never_count() -> None:
    index = fresh()
    index.set_epoch("w0", 2.0)
    for epoch in (1.0, 3.0):
        assert index.record("w0", epoch, prompt(0), 0.0) is None
        assert not index.apply(Delta("w0", epoch, None, tuple(prompt(0))), 0.0)
    assert index.match(prompt(0), 0.0) == {}


def test_a_claim_of_an_earlier_life_is_withdrawn_without_harm() -> None:
    index = fresh()
    claim = index.claim("w0", prompt(0), 0.0)
    index.set_epoch("w0", 2.0)
    index.record("w0", 2.0, prompt(0), 1.0)
    assert claim is not None
    index.withdraw(claim)
    assert index.match(prompt(0), 1.0) == {"w0": 64}
    check_books(index)


def test_a_cleared_worker_keeps_its_epoch() -> None:
    index = fresh()
    index.record("w0", 1.0, prompt(0), 0.0)
    index.clear("w0")
    assert index.match(prompt(0), 0.0) == {}
    assert index.epoch_of("w0") == 1.0
    assert index.record("w0", 1.0, prompt(0), 1.0) == Delta("w0", 1.0, None, tuple(prompt(0)))
    assert index.match(prompt(0), 1.0) == {"w0": 64}


def test_a_forgotten_worker_may_come_back_in_any_epoch() -> None:
    index = fresh()
    index.record("w0", 1.0, prompt(0), 0.0)
    index.forget("w0")
    assert index.match(prompt(0), 0.0) == {}
    assert index.set_epoch("w0", 0.5)
    assert index.match(prompt(0), 0.0) == {}
    assert index.statistics() == {"w0": 0, "w1": 0}


def test_the_dead_are_buried_a_few_at_a_time() -> None:
    index = fresh(max_blocks=100_000)
    for number in range(1000):
        index.record("w0", 1.0, prompt(number), 0.0)
    index.set_epoch("w0", 2.0)
    assert len(index) == 0
    assert index.match(prompt(7), 0.0) == {}
    left = len(index._holdings.held)
    assert left > 60_000
    while index._graveyard:
        index.tick(1.0)
        assert left - len(index._holdings.held) <= 3000
        left = len(index._holdings.held)
    assert left == 0
    check_books(index)


# -- claims ----------------------------------------------------------------------------------------------------------


def test_a_claim_counts_at_once_and_for_a_few_seconds() -> None:
    index = fresh()
    index.record("w0", 1.0, prompt(0)[:20], 0.0)
    assert index.claim("w0", prompt(0), 1.0) is not None
    assert index.match(prompt(0), 1.0) == {"w0": 64}
    assert index.match(prompt(0), 1.0 + TENTATIVE - 0.001) == {"w0": 64}
    assert index.match(prompt(0), 1.0 + TENTATIVE) == {"w0": 20}


def test_a_withdrawn_claim_leaves_what_was_recorded() -> None:
    index = fresh()
    index.record("w0", 1.0, prompt(0)[:20], 0.0)
    claim = index.claim("w0", prompt(0), 1.0)
    assert claim is not None
    index.withdraw(claim)
    index.withdraw(claim)
    assert index.match(prompt(0), 1.0) == {"w0": 20}
    assert (len(index), index.blocks_of("w0")) == (20, 20)
    check_books(index)


def test_what_a_worker_has_needs_no_claim() -> None:
    index = fresh()
    index.record("w0", 1.0, prompt(0), 0.0)
    assert index.claim("w0", prompt(0), 1.0) is None
    first = index.claim("w1", prompt(0), 1.0)
    assert first is not None
    assert index.claim("w1", prompt(0), 2.0) is None
    index.withdraw(first)
    assert index.claim("w1", prompt(0), 2.0) is not None


def test_a_claim_that_came_true_can_not_be_withdrawn() -> None:
    index = fresh()
    claim = index.claim("w0", prompt(0), 0.0)
    assert claim is not None
    assert index.record("w0", 1.0, prompt(0), 1.0) == Delta("w0", 1.0, None, tuple(prompt(0)))
    index.withdraw(claim)
    assert index.match(prompt(0), 100.0) == {"w0": 64}


def test_a_claim_is_no_knowledge_to_tell_others_from() -> None:
    """The other replicas know nothing of it: a longer prompt's news starts where the recorded blocks end."""
    index = fresh()
    index.record("w0", 1.0, prompt(0)[:10], 0.0)
    index.claim("w0", prompt(0)[:30], 1.0)
    delta = index.record("w0", 1.0, prompt(0)[:40], 2.0)
    assert delta == Delta("w0", 1.0, prompt(0)[9], tuple(prompt(0)[10:40]))


# -- eviction --------------------------------------------------------------------------------------------------------


def test_the_oldest_goes_first_and_its_deepest_blocks_before_the_others() -> None:
    index = fresh(max_blocks=24)
    for number in range(3):
        index.record("w0", 1.0, prompt(number, 8), float(number))
    index.record("w0", 1.0, prompt(0, 8), 3.0)
    index.record("w1", 1.0, prompt(3, 8)[:3], 4.0)
    depths = [index.match(prompt(number, 8), 5.0).get("w0", 0) for number in range(3)]
    assert depths == [8, 5, 8]
    index.record("w1", 1.0, prompt(3, 8), 5.0)
    index.record("w1", 1.0, prompt(4, 8)[:2], 6.0)
    depths = [index.match(prompt(number, 8), 7.0).get("w0", 0) for number in range(3)]
    assert depths == [8, 0, 6]
    assert index.evictions["limit"] == 10
    assert len(index) == 24


def test_age_counts_across_workers() -> None:
    index = fresh(max_blocks=16, workers=4)
    for number in range(4):
        index.record(f"w{number}", 1.0, prompt(number, 4), float(number))
    index.record("w3", 1.0, prompt(9, 8), 4.0)
    assert index.statistics() == {"w0": 0, "w1": 0, "w2": 4, "w3": 12}


def test_a_shared_beginning_outlives_the_conversations_behind_it() -> None:
    """Every conversation's use refreshes the beginning; the ends go, and no hole opens."""
    index = fresh(max_blocks=40)
    beginning = prompt(0, 8)
    for number in range(1, 50):
        index.record("w0", 1.0, beginning + prompt(number, 8), float(number))
        check_books(index)
    assert index.match(beginning, 50.0) == {"w0": 8}
    depths = [index.match(beginning + prompt(number, 8), 50.0)["w0"] for number in range(1, 50)]
    assert depths == [8] * 45 + [16] * 4


def test_a_prompt_larger_than_the_map_keeps_its_beginning() -> None:
    index = fresh(max_blocks=10)
    index.record("w0", 1.0, prompt(0), 0.0)
    assert len(index) == 10
    assert index.match(prompt(0), 0.0) == {"w0": 10}


# -- news ------------------------------------------------------------------------------------------------------------


def test_news_names_only_what_is_new() -> None:
    index = fresh()
    first = index.record("w0", 1.0, prompt(0)[:20], 0.0)
    second = index.record("w0", 1.0, prompt(0)[:23], 1.0)
    third = index.record("w0", 1.0, prompt(0)[:23], 2.0)
    assert first == Delta("w0", 1.0, None, tuple(prompt(0)[:20]))
    assert second == Delta("w0", 1.0, prompt(0)[19], tuple(prompt(0)[20:23]))
    assert third == Delta("w0", 1.0, prompt(0)[22], ())


def test_news_refreshes_all_that_lies_above_even_in_pieces() -> None:
    """The blocks above the base stand in several touches by then; they stay younger than what hangs on them."""
    index = fresh(max_blocks=64)
    index.record("w0", 1.0, prompt(0)[:40], 0.0)
    index.record("w0", 1.0, prompt(0)[:20], 1.0)
    index.record("w0", 1.0, prompt(0)[:5], 2.0)
    index.apply(Delta("w0", 1.0, prompt(0)[39], (prompt(0)[40],)), 3.0)
    index.record("w1", 1.0, prompt(1)[:60], 4.0)
    assert index.match(prompt(0), 5.0) == {"w0": 4}
    assert index.match(prompt(0)[:4], 5.0) == {"w0": 4}
    assert index.blocks_of("w0") == 4


def test_news_of_what_is_only_claimed_here_refreshes_what_was_recorded_above_it() -> None:
    index = fresh()
    index.record("w0", 1.0, prompt(0)[:20], 0.0)
    index.claim("w0", prompt(0)[:40], 1000.0)
    index.apply(Delta("w0", 1.0, prompt(0)[39], (prompt(0)[40],)), 1001.0)
    assert index.match(prompt(0)[:20], TTL) == {"w0": 20}
    assert index.match(prompt(0), TTL) == {"w0": 41}


def test_news_whose_beginning_was_lost_still_says_where_the_conversation_is() -> None:
    index = fresh()
    assert index.apply(Delta("w0", 1.0, prompt(0)[29], tuple(prompt(0)[30:])), 0.0)
    assert index.match(prompt(0), 0.0) == {"w0": 64}
    assert index.match(prompt(0)[:20], 0.0) == {}


def test_senseless_news_is_bounded_and_harmless() -> None:
    index = fresh()
    for number in range(100):
        index.apply(Delta("w0", 1.0, number % 7, (number % 5, number % 7, number % 5)), float(number))
    index.apply(Delta("w0", 1.0, 1, tuple([1] * 1000)), 100.0)
    assert len(index) <= 7
    check_books(index)


# -- bounds ----------------------------------------------------------------------------------------------------------


def test_a_million_distinct_blocks_respect_the_ceiling() -> None:
    index = fresh(max_blocks=20_000, workers=8)
    for number in range(1_000_000 // 64):
        index.record(f"w{number % 8}", 1.0, prompt(number), number / 1000)
        assert len(index) <= 20_000
    assert len(index) == 20_000
    check_books(index)
    newest = range(1_000_000 // 64 - 312, 1_000_000 // 64)
    assert all(index.match(prompt(number), 16.0) == {f"w{number % 8}": 64} for number in newest)
    assert index.match(prompt(0), 16.0) == {}
    assert index.evictions["limit"] == 1_000_000 - 20_000


def test_a_hot_prompt_leaves_no_trail() -> None:
    index = fresh()
    for number in range(20_000):
        index.record("w0", 1.0, prompt(0, 4), number / 100)
    owner = index._owners["w0"]
    assert owner.oldest is owner.newest
    assert len(index._fronts.queue) == 1
    check_books(index)


@pytest.mark.parametrize("again", [lambda index: index.clear("w0"), lambda index: index.forget("w0")])
def test_a_worker_that_comes_and_goes_leaves_no_trail(again: Callable[[AffinityMap], None]) -> None:
    """Not even while an old entry keeps the front of the queue, nor if nothing else ever happens."""
    index = fresh()
    index.record("w1", 1.0, prompt(0), 0.0)
    for number in range(5_000):
        again(index)
        index.set_epoch("w0", float(number))
        index.record("w0", index.epoch_of("w0") or 0.0, prompt(1, 4), 1.0)
    for number in range(5_000, 10_000):
        index.set_epoch("w0", float(number))
    assert len(index._graveyard) <= 2
    assert len(index._fronts.queue) <= 300
    assert index._bits <= 4
    check_books(index)


def test_a_mass_expiry_is_paid_in_small_pieces() -> None:
    index = fresh(max_blocks=100_000)
    for number in range(1000):
        index.record("w0", 1.0, prompt(number), 0.0)
    for number in range(5):
        before = len(index)
        index.record("w1", 1.0, prompt(5000 + number), TTL)
        assert before - len(index) <= 256
    assert index.match(prompt(5), TTL) == {}


def test_memory_of_a_full_map_after_churn() -> None:
    """200,000 blocks over 8 workers, each of which replaced another."""
    index = fresh(max_blocks=200_000, workers=8)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(400_000 // 64):
            index.record(f"w{number % 8}", 1.0, prompt(number), number / 1000)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(index) == 200_000
    assert used < 40 << 20


def test_matching_costs_the_same_in_a_large_fleet() -> None:
    def cost(workers: int) -> float:
        index = fresh(max_blocks=200_000, workers=workers)
        for number in range(workers):
            index.record(f"w{number}", 1.0, prompt(number), 0.0)
        hashes = prompt(3)
        best = math.inf
        for _ in range(50):
            start = time.perf_counter()
            for _ in range(20):
                index.match(hashes, 1.0)
            best = min(best, time.perf_counter() - start)
        return best

    assert cost(500) < 4 * cost(8)
