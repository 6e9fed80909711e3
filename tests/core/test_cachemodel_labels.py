"""What the labels of an engine's metrics say about its cache."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.cachemodel import (
    CACHE_DISABLED,
    CPU_TIER,
    DISK_TIER,
    CacheProfile,
    Group,
    Kind,
    Rule,
    profile_from_labels,
    resumable,
)

DENSE_OLD = {"block_size": "16", "enable_prefix_caching": "True", "num_gpu_blocks": "573", "sliding_window": "None"}
DENSE_033 = DENSE_OLD | {
    "effective_attention_block_size": "16",
    "kv_cache_size_tokens": "9152",
    "mamba_block_size": "None",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_match_unit": "None",
}
HYBRID_OLD = DENSE_OLD | {"block_size": "1600", "mamba_block_size": "1600", "mamba_cache_mode": "align"}
HYBRID_033 = DENSE_033 | {
    "effective_attention_block_size": "1600",
    "mamba_block_size": "1600",
    "mamba_cache_mode": "align",
}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, CacheProfile()),
        (DENSE_OLD, CacheProfile(enabled=True, capacity_tokens=9168)),
        (DENSE_033, CacheProfile(enabled=True, retention=0, capacity_tokens=9152)),
        (DENSE_OLD | {"enable_prefix_caching": "False"}, CacheProfile(enabled=False, capacity_tokens=9168)),
        (DENSE_OLD | {"enable_prefix_caching": "None"}, CacheProfile(enabled=None, capacity_tokens=9168)),
        (DENSE_OLD | {"block_size": "junk", "num_gpu_blocks": "-3"}, CacheProfile(enabled=True)),
        (DENSE_OLD | {"block_size": "9" * 7, "num_gpu_blocks": "9" * 13}, CacheProfile(enabled=True)),
        (HYBRID_OLD, CacheProfile(enabled=True, block_size=1600, rule=Rule.OPEN_BLOCK)),
        (
            HYBRID_OLD | {"prefix_match_unit": "32"},
            CacheProfile(enabled=True, block_size=1600, match_unit=32, rule=Rule.OPEN_BLOCK),
        ),
        (HYBRID_OLD | {"mamba_cache_mode": "all"}, CacheProfile(enabled=True, block_size=1600, rule=Rule.CHECKPOINTS)),
        (
            HYBRID_033,
            CacheProfile(enabled=True, block_size=1600, rule=Rule.CHECKPOINTS, retention=0, capacity_tokens=9152),
        ),
        (
            HYBRID_033 | {"prefix_cache_retention_interval": "3200", "prefix_match_unit": "32"},
            CacheProfile(
                enabled=True,
                block_size=1600,
                match_unit=32,
                rule=Rule.CHECKPOINTS,
                retention=3200,
                capacity_tokens=9152,
            ),
        ),
        (
            HYBRID_033 | {"prefix_cache_retention_interval": "None"},
            CacheProfile(enabled=True, block_size=1600, rule=Rule.CHECKPOINTS, capacity_tokens=9152),
        ),
        (
            DENSE_033 | {"sliding_window": "4096"},
            CacheProfile(
                enabled=True,
                rule=Rule.CHECKPOINTS,
                retention=0,
                groups=(Group(Kind.SLIDING_WINDOW, 16, 4096),),
                capacity_tokens=9152,
            ),
        ),
        (
            DENSE_OLD | {"kv_offloading_size": "20.5"},
            CacheProfile(enabled=True, tiers=(CPU_TIER,), capacity_tokens=9168),
        ),
        (DENSE_OLD | {"kv_offloading_size": "nan"}, CacheProfile(enabled=True, capacity_tokens=9168)),
    ],
)
def test_profile_from_labels(labels: dict[str, str], expected: CacheProfile) -> None:
    assert profile_from_labels(labels) == expected


@pytest.mark.parametrize(
    "labels",
    [
        HYBRID_OLD | {"mamba_cache_mode": "none"},
        HYBRID_033 | {"mamba_cache_mode": "none", "mamba_block_size": "262144", "enable_prefix_caching": "None"},
        {"is_attention_free": "True", "mamba_cache_mode": "none"},
        {"mamba_page_size_padded": "3276800", "mamba_cache_mode": "none"},
    ],
)
def test_a_hybrid_without_a_mode_for_its_state_has_no_cache(labels: dict[str, str]) -> None:
    profile = profile_from_labels(labels)
    assert resumable(profile, 100_000, 100_001).reason == CACHE_DISABLED


def test_what_labels_do_not_say_can_be_given() -> None:
    labels = {"mamba_cache_mode": "none", "enable_prefix_caching": "True"}
    assert profile_from_labels(labels).enabled is True
    assert profile_from_labels(labels, hybrid=True).enabled is False
    assert profile_from_labels(HYBRID_033, held_back=1).floor_tokens == 3201
    assert profile_from_labels(DENSE_OLD, tiers=(DISK_TIER,)).tiers == (DISK_TIER,)


def test_the_blocks_of_attention_and_state_meet_on_their_common_multiple() -> None:
    assert profile_from_labels(HYBRID_OLD | {"block_size": "96", "mamba_block_size": "128"}).unit == 384
    assert profile_from_labels(HYBRID_OLD | {"block_size": "528", "mamba_block_size": "16"}).unit == 528
    assert profile_from_labels(HYBRID_OLD | {"mamba_block_size": "999999"}).unit == 1600  # no block is that long


def test_a_sliding_window_keeps_hits_on_whole_blocks() -> None:
    assert profile_from_labels(HYBRID_033 | {"prefix_match_unit": "32", "sliding_window": "128"}).unit == 1600


LABEL_NAMES = [*HYBRID_033, "is_attention_free", "kv_offloading_size", "cache_hit_alignment_tokens"]
LABEL_VALUES = st.one_of(
    st.text(max_size=8),
    st.integers(-5, 1 << 50).map(str),
    st.sampled_from(["None", "True", "False", "none", "align", "all", "16", "1600", "32", "1e9", "inf", "٣", "²"]),
)


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(LABEL_NAMES), LABEL_VALUES), st.integers(0, 1 << 21), st.integers(0, 1 << 21))
def test_any_labels_give_a_sound_profile(labels: dict[str, str], shared: int, prompt: int) -> None:
    profile = profile_from_labels(labels)
    assert profile.capacity_tokens is None or profile.capacity_tokens > 0
    assert 0 <= resumable(profile, shared, prompt).tokens <= min(shared, max(0, prompt - 1))
