"""The modelled worker: its cache, its steps, its order."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.cachemodel import CacheProfile, Rule
from router.replay.cache import BlockCache
from router.replay.trace import ID_TOKENS, Request, block_count
from router.replay.worker import Engine, Job, ModelledWorker

# One token a millisecond, without attention or overhead, so that times can be reckoned in the head.
PLAIN = Engine(
    prefill_rate=1_000.0,
    attention=math.inf,
    chunk=1_000,
    overhead=0.0,
    per_answer=0.01,
    per_context=0.0,
    running=2,
    cache_tokens=100 * ID_TOKENS,
)


def job(number: int, tokens: int, output: int = 1, ids: tuple[int, ...] | None = None) -> Job:
    ids = tuple(number * 1_000 + block for block in range(block_count(tokens))) if ids is None else ids
    return Job(number, Request(0.0, ids, tokens, output), tokens)


def play(worker: ModelledWorker, arrivals: list[tuple[float, Job]]) -> None:
    """Let requests arrive and the worker step until nothing is left."""
    arrivals = sorted(arrivals, key=lambda pair: pair[0])
    while arrivals or worker.due < math.inf:
        if arrivals and arrivals[0][0] <= worker.due:
            at, arrived = arrivals.pop(0)
            arrived.arrived = at
            worker.submit(arrived, at)
        else:
            worker.step(worker.due)


# -- the cache -------------------------------------------------------------------------------------------------


def test_blocks_go_least_recently_used_first_and_deepest_first_within_a_prompt() -> None:
    cache = BlockCache(6)
    for now, ids in enumerate([(1, 2, 3), (11, 12, 13)]):
        assert cache.admit(ids, 0, 1_536)
        cache.release(ids, 0, float(now))
    assert cache.admit((21, 22), 0, 1_024)
    assert [cache.shared(ids) for ids in ((1, 2, 3), (11, 12, 13), (21, 22))] == [1, 3, 2]
    assert cache.oldest() == 0.0


def test_blocks_in_use_stay_and_a_prompt_without_room_waits() -> None:
    cache = BlockCache(4)
    assert cache.admit((1, 2), 1, 1_024)
    assert not cache.admit((3, 4), 0, 1_024)
    assert cache.admit((1,), 1, 512)
    assert (cache.pinned, cache.fill) == (4, 1.0)
    cache.release((1, 2), 1, 1.0)
    assert cache.admit((3, 4), 0, 1_024)
    assert cache.shared((1, 2)) == 1


def test_a_prompt_larger_than_the_cache_is_taken_by_force_only() -> None:
    cache = BlockCache(2)
    assert not cache.admit((1, 2, 3), 0, 1_536)
    assert cache.admit((1, 2, 3), 0, 1_536, force=True)
    cache.release((1, 2, 3), 0, 1.0)
    assert cache.shared((1, 2, 3)) == 2


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5), st.integers(0, 3)), max_size=60))
def test_the_cache_never_holds_too_much_and_has_no_holes(uses: list[tuple[int, int, int]]) -> None:
    cache = BlockCache(12)
    running: list[tuple[tuple[int, ...], int]] = []
    for now, (family, depth, private) in enumerate(uses):
        ids = tuple(family * 10 + block for block in range(depth))
        if cache.admit(ids, private, depth * ID_TOKENS):
            running.append((ids, private))
        elif running:
            cache.release(*running.pop(0), now=float(now))
        assert cache.fill <= 1.0
        assert all(cache.shared(held) == len(held) for held, _ in running)
        for family_ids in ([f * 10 + block for block in range(5)] for f in range(5)):
            held_blocks = [block in cache for block in family_ids]
            assert held_blocks == sorted(held_blocks, reverse=True)
    for ids, private in running:
        cache.release(ids, private, 1_000.0)
    assert cache.pinned == 0


# -- the engine ------------------------------------------------------------------------------------------------


def test_prompts_are_computed_one_after_another() -> None:
    worker = ModelledWorker(PLAIN)
    first, second = job(1, 2_000), job(2, 500)
    play(worker, [(0.0, first), (0.1, second)])
    assert first.first == pytest.approx(2.0)
    assert second.first == pytest.approx(2.5)
    assert (first.ended, second.ended) == (first.first, second.first)
    assert worker.computed == 2_500


def test_answers_take_a_step_a_token_and_slow_with_their_number() -> None:
    worker = ModelledWorker(PLAIN)
    alone = job(1, 100, output=101)
    play(worker, [(0.0, alone)])
    assert alone.ended - alone.first == pytest.approx(100 * 0.01)
    worker = ModelledWorker(PLAIN)
    pair = [job(1, 100, output=101), job(2, 100, output=101)]
    play(worker, [(0.0, pair[0]), (0.0, pair[1])])
    assert pair[1].ended - pair[1].first == pytest.approx(100 * 0.02, rel=0.02)


def test_a_prompt_holds_up_the_answers_under_way() -> None:
    worker = ModelledWorker(PLAIN)
    talking, long = job(1, 100, output=101), job(2, 3_000)
    play(worker, [(0.0, talking), (0.5, long)])
    assert talking.ended - talking.first == pytest.approx(100 * 0.01 + 3.0, rel=0.05)
    assert long.first - 0.5 < 3.2


def test_a_stretch_of_answers_ends_with_the_step_in_which_a_request_comes() -> None:
    worker = ModelledWorker(PLAIN)
    talking, short = job(1, 100, output=1_001), job(2, 10)
    play(worker, [(0.0, talking), (5.0, short)])
    assert short.first == pytest.approx(5.03, abs=0.011)


def test_only_so_many_run_at_once_and_the_rest_wait_in_order() -> None:
    worker = ModelledWorker(PLAIN)
    jobs = [job(number, 100, output=51) for number in range(5)]
    play(worker, [(0.0, one) for one in jobs])
    starts = [one.first for one in jobs]
    assert starts == sorted(starts)
    assert starts[2] >= min(jobs[0].ended, jobs[1].ended)


def test_a_prefix_that_is_held_is_not_computed_again() -> None:
    worker = ModelledWorker(PLAIN)
    first, again = job(1, 2_000), job(2, 2_000, ids=tuple(range(1_000, 1_004)))
    play(worker, [(0.0, first), (10.0, again)])
    assert again.cached == 3 * ID_TOKENS - 3 * ID_TOKENS % 16
    assert again.first - 10.0 == pytest.approx((2_000 - 1_536) / 1_000)


def test_an_equal_prompt_computes_its_last_token() -> None:
    worker = ModelledWorker(PLAIN)
    first, again = job(1, 1_024), job(2, 1_024, ids=(1_000, 1_001))
    play(worker, [(0.0, first), (10.0, again)])
    assert again.cached == 1_008  # the last block of 16


@pytest.mark.parametrize(
    ("profile", "cached"),
    [
        (CacheProfile(enabled=True, block_size=1_600, rule=Rule.OPEN_BLOCK), 1_600),
        (CacheProfile(enabled=True, block_size=1_600, rule=Rule.CHECKPOINTS, retention=0), 3_200),
        (CacheProfile(enabled=False), 0),
    ],
)
def test_hits_land_where_the_models_cache_lets_them(profile: CacheProfile, cached: int) -> None:
    worker = ModelledWorker(Engine(profile=profile))
    first, longer = job(1, 4_096), job(2, 6_000, ids=(*range(1_000, 1_008), 1, 2, 3, 4))
    play(worker, [(0.0, first), (10.0, longer)])
    assert longer.cached == cached


def test_without_room_for_its_blocks_a_request_waits() -> None:
    worker = ModelledWorker(Engine(cache_tokens=8 * ID_TOKENS, running=8))
    first, second = job(1, 4 * ID_TOKENS, output=600), job(2, 4 * ID_TOKENS, output=10)
    play(worker, [(0.0, first), (0.0, second)])
    assert second.first > first.ended


@given(st.integers(0, 10_000))
def test_whatever_comes_every_request_is_served_whole(seed: int) -> None:
    rng = random.Random(seed)
    worker = ModelledWorker(Engine(cache_tokens=64 * ID_TOKENS, running=4))
    jobs = []
    for number in range(12):
        blocks = rng.randint(1, 40)
        ids = tuple(rng.choice((0, 100)) + block for block in range(blocks))
        jobs.append(job(number, blocks * ID_TOKENS - rng.randint(0, 511), rng.randint(1, 200), ids))
    play(worker, [(rng.uniform(0, 20), one) for one in jobs])
    assert all(one.arrived < one.first <= one.ended for one in jobs)
    assert worker.computed == sum(one.request.prompt_tokens - one.cached for one in jobs)
    assert (worker.running, worker.decoding, worker.cache.pinned) == (0, 0, 0)
    assert worker._context == 0
