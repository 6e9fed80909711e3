"""The router's rule for a hybrid's cache and the simulated engine's, release by release."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.simworker import SimConfig, SimWorker
from loadtest.simworker.hybrid import HybridCache
from loadtest.simworker.metrics import cache_labels
from loadtest.simworker.shape import shape_of
from loadtest.simworker.tokens import Tokenizer
from router.cachemodel import CacheProfile, Rule, closed, profile_from_labels, proven, resumable

BLOCK = 8
# Releases before 0.33 keep the last whole block, or give it up where they decode speculatively. Their labels are equal.
ALIGN: dict[str, Any] = {"version": "0.32.0", "mamba_cache_mode": "align"}
SPECULATIVE = ALIGN | {"held_back_units": 1}


def _config(release: dict[str, Any]) -> SimConfig:
    return SimConfig(cache="hybrid", block_size=BLOCK, num_gpu_blocks=100, **release)


def _declared(release: dict[str, Any]) -> CacheProfile:
    return profile_from_labels(cache_labels(SimWorker(_config(release))))


def _again(release: dict[str, Any], first: int, second: int) -> int:
    """Cached tokens of a prompt of `second` tokens that begins with one of `first`, which the engine has served."""
    config = _config(release)
    cache = HybridCache(shape_of(config), enabled=config.caching)
    tokenizer = Tokenizer(config.unit)
    earlier, later = (tokenizer.ids(range(count), 0) for count in (first, second))
    hold = cache.reserve(earlier, first)
    assert hold is not None
    cache.commit(hold, earlier.hashes)
    cache.release(hold)
    return cache.match(later)


def test_labels_do_not_tell_whether_the_last_block_is_kept() -> None:
    assert _declared(ALIGN) == _declared(SPECULATIVE)
    assert _declared(ALIGN).rule is Rule.OPEN_BLOCK


@given(st.integers(1, 80), st.integers(0, 80))
@settings(deadline=None)
def test_one_answer_tells_what_all_others_resume(first: int, growth: int) -> None:
    """Before the proof not too much is predicted, and from then on just what the engine resumes."""
    second = first + growth
    cached = _again(ALIGN, first, second)
    declared = _declared(ALIGN)
    if first % BLOCK:  # a prompt that ends on a boundary left its state a block earlier
        assert resumable(declared, first, second).tokens <= cached
        assert resumable(closed(declared), first, second).tokens == cached
    if proven(declared, second, cached) is not declared:
        assert proven(declared, second, cached) == closed(declared)


@given(st.integers(1, 80), st.integers(0, 80))
@settings(deadline=None)
def test_an_engine_that_decodes_speculatively_proves_nothing(first: int, growth: int) -> None:
    second = first + growth
    cached = _again(SPECULATIVE, first, second)
    declared = _declared(SPECULATIVE)
    assert proven(declared, second, cached) is declared
    if first % BLOCK:
        assert resumable(declared, first, second).tokens == cached


@pytest.mark.parametrize(
    ("release", "cached"),
    [(ALIGN, 8), (SPECULATIVE, 0), ({"version": "0.33.0"}, 8), ({"version": "0.33.0", "held_back_units": 1}, 0)],
)
def test_a_prompt_between_one_and_two_blocks(release: dict[str, Any], cached: int) -> None:
    assert _again(release, 10, 10) == cached


def test_only_an_open_block_can_be_closed() -> None:
    plain = CacheProfile(block_size=16)
    assert closed(plain) is plain
    assert proven(plain, 100, 99) is plain
    coarse = CacheProfile(block_size=1_600, rule=Rule.OPEN_BLOCK)
    assert proven(coarse, 2_036, 1_600) == CacheProfile(block_size=1_600, rule=Rule.CHECKPOINTS)
    assert proven(coarse, 3_200, 1_600) is coarse  # as much as an open block leaves
