"""What an engine can resume: tables of known cases, and properties that every profile keeps."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.cachemodel import (
    BELOW_BLOCK_FLOOR,
    CACHE_DISABLED,
    CPU_TIER,
    DISK_TIER,
    CacheProfile,
    Group,
    GroupHeld,
    Held,
    Kind,
    Resumability,
    Resume,
    Rule,
    Tier,
    checkpoint,
    intersection,
    landing,
    profile_from_labels,
    resumable,
)

# -- tables ----------------------------------------------------------------------------------------------------

PLAIN = CacheProfile()
PAGE_64 = CacheProfile(block_size=64, rule=Rule.OPEN_BLOCK)
GLM = CacheProfile(block_size=5600, rule=Rule.OPEN_BLOCK)
FP8 = CacheProfile(block_size=1600, rule=Rule.OPEN_BLOCK)
BF16 = CacheProfile(block_size=800, rule=Rule.OPEN_BLOCK)
FP8_UNIT_32 = CacheProfile(block_size=1600, match_unit=32, rule=Rule.OPEN_BLOCK)
NEW_528 = CacheProfile(block_size=528, rule=Rule.CHECKPOINTS, retention=0)
NEW_1600_UNIT_32 = CacheProfile(block_size=1600, match_unit=32, rule=Rule.CHECKPOINTS, retention=0)
EAGLE = CacheProfile(held_back=1)
NEW_MTP = CacheProfile(block_size=1600, rule=Rule.CHECKPOINTS, retention=0, held_back=1)


@pytest.mark.parametrize(
    ("profile", "shared", "prompt", "tokens"),
    [
        # Plain attention: whole blocks, and an identical prompt computes its last one again.
        (PLAIN, 5629, 5818, 5616),
        (PLAIN, 64, 64, 48),
        (PLAIN, 65, 65, 64),
        (PLAIN, 16, 17, 16),
        (PLAIN, 15, 4000, 0),
        (EAGLE, 5629, 5818, 5600),
        (EAGLE, 31, 5818, 0),
        # Coarse blocks: nothing under two of them, then all whole ones but the last.
        (PAGE_64, 127, 127, 0),
        (PAGE_64, 128, 128, 64),
        (GLM, 11_199, 20_000, 0),
        (GLM, 11_200, 20_000, 5600),
        (GLM, 50_000, 50_000, 39_200),
        (FP8, 1200, 1230, 0),
        (FP8, 1550, 1580, 0),
        (FP8, 3100, 3130, 0),
        (FP8, 3200, 3230, 1600),
        (FP8, 6550, 6597, 4800),
        (FP8, 13_056, 13_056, 11_200),
        (BF16, 1550, 1580, 0),
        (BF16, 3100, 3130, 1600),
        # A match unit of 32: the same three conversations are resumed, whatever the block.
        (FP8_UNIT_32, 1200, 1230, 1184),
        (FP8_UNIT_32, 1550, 1580, 1536),
        (FP8_UNIT_32, 3100, 3130, 3072),
        (FP8_UNIT_32, 31, 1200, 0),
        (NEW_1600_UNIT_32, 3100, 3130, 3072),
        # Since 0.33: the last whole block before the end of the prompt.
        (NEW_528, 528, 528, 0),
        (NEW_528, 529, 529, 528),
        (NEW_528, 552, 552, 528),
        (NEW_528, 979, 979, 528),
        (NEW_528, 5600, 6000, 5280),
        (NEW_MTP, 6550, 6597, 4800),
        (NEW_MTP, 3199, 4000, 0),
        # The open block and one that a drafter drops are the same block; two drafted ones are two.
        (replace(FP8, held_back=1), 6550, 6597, 4800),
        (replace(FP8, held_back=2), 6550, 6597, 3200),
    ],
)
def test_tokens_of_known_caches(profile: CacheProfile, shared: int, prompt: int, tokens: int) -> None:
    found = resumable(profile, shared, prompt)
    assert found.tokens == tokens
    assert found.state is (Resume.RESUMABLE if tokens else Resume.NEEDS_FULL_RECOMPUTE)
    assert found.reason == (None if tokens else BELOW_BLOCK_FLOOR)
    assert found.wait == 0


@pytest.mark.parametrize(
    ("prompt", "cached_448", "cached_832"),
    [
        (512, 0, 0),
        (1024, 448, 0),
        (2048, 1344, 832),
        (4096, 3584, 2496),
        (8192, 7616, 6656),
        (16_384, 15_680, 14_976),
        (32_768, 32_256, 31_616),
    ],
)
def test_counts_that_engines_reported_for_a_repeated_prompt(prompt: int, cached_448: int, cached_832: int) -> None:
    """Published `cached_tokens` of a 27B hybrid with a drafter, whose startup log named these blocks."""
    for block, cached in ((448, cached_448), (832, cached_832)):
        for profile in (
            CacheProfile(block_size=block, rule=Rule.OPEN_BLOCK),
            CacheProfile(block_size=block, rule=Rule.CHECKPOINTS, held_back=1),
        ):
            assert resumable(profile, prompt, prompt).tokens == cached


@pytest.mark.parametrize(
    ("profile", "floor"),
    [
        (PLAIN, 17),
        (EAGLE, 33),
        (PAGE_64, 128),
        (GLM, 11_200),
        (FP8, 3200),
        (FP8_UNIT_32, 33),
        (NEW_528, 529),
        (NEW_MTP, 3201),
    ],
)
def test_floor(profile: CacheProfile, floor: int) -> None:
    assert profile.floor_tokens == floor
    assert resumable(profile, floor, floor).tokens > 0
    assert resumable(profile, floor - 1, floor - 1).tokens == 0


@pytest.mark.parametrize("shared", [0, 1, 100_000])
def test_a_cache_that_is_off_resumes_nothing_and_says_so(shared: int) -> None:
    off = replace(PLAIN, enabled=False)
    assert resumable(off, shared, 100_000) == (0, Resume.NEEDS_FULL_RECOMPUTE, CACHE_DISABLED, 0)
    assert resumable(off, shared, 100_000, Held(gpu_tokens=100_000)).reason == CACHE_DISABLED


def test_no_match_is_a_plain_miss() -> None:
    assert resumable(FP8, 0, 100) == (0, Resume.NEEDS_FULL_RECOMPUTE, None, 0)
    assert resumable(FP8, 5, 0).reason == BELOW_BLOCK_FLOOR


# -- states that a hybrid keeps --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retention", "stored", "shared", "expected"),
    [
        # The conversation grows: the state at the end of its last turn lies within the shared part.
        (0, 6550, 6550, Resumability(6400, Resume.RESUMABLE)),
        # It branches off before the kept state: nothing, however much attention is held.
        (0, 12_000, 6550, Resumability(0, Resume.NEEDS_FULL_RECOMPUTE)),
        # Periodic states save a part; one at every boundary saves all.
        (4800, 12_000, 6550, Resumability(4800, Resume.NEEDS_PARTIAL_RECOMPUTE)),
        (5000, 12_000, 6550, Resumability(4800, Resume.NEEDS_PARTIAL_RECOMPUTE)),
        (None, 12_000, 6550, Resumability(6400, Resume.RESUMABLE)),
        # The kept state lies short of what is shared: only as far as that.
        (0, 4000, 6550, Resumability(3200, Resume.NEEDS_PARTIAL_RECOMPUTE)),
    ],
)
def test_a_hybrid_resumes_from_a_kept_state_only(
    retention: int | None, stored: int, shared: int, expected: Resumability
) -> None:
    profile = CacheProfile(block_size=1600, rule=Rule.CHECKPOINTS, retention=retention)
    assert resumable(profile, shared, 13_000, Held(stored_tokens=stored)) == expected


def test_stored_length_says_nothing_about_attention() -> None:
    assert resumable(PLAIN, 1000, 2000, Held(stored_tokens=9000)) == resumable(PLAIN, 1000, 2000)


@pytest.mark.parametrize(
    ("profile", "prompt", "at"),
    [(NEW_528, 528, 0), (NEW_528, 529, 528), (NEW_1600_UNIT_32, 1230, 1216), (NEW_MTP, 6550, 4800), (NEW_528, 0, 0)],
)
def test_checkpoint(profile: CacheProfile, prompt: int, at: int) -> None:
    assert checkpoint(profile, prompt) == at


# -- groups and tiers ------------------------------------------------------------------------------------------

THREE_GROUPS = CacheProfile(
    rule=Rule.CHECKPOINTS,
    groups=(
        Group(Kind.FULL_ATTENTION, 32),
        Group(Kind.SLIDING_WINDOW, 16, window=100),
        Group(Kind.RECURRENT, 96),
    ),
)


@pytest.mark.parametrize(
    ("attention", "window", "state", "tokens"),
    [
        (GroupHeld(1000), GroupHeld(1000), GroupHeld(states=(480, 960)), 960),
        (GroupHeld(900), GroupHeld(1000), GroupHeld(states=(480, 960)), 480),
        (GroupHeld(1000), GroupHeld(1000), GroupHeld(states=(100,)), 0),  # no boundary of the others
        (GroupHeld(1000), GroupHeld(1000, start=848), GroupHeld(states=(480, 960)), 960),
        (GroupHeld(1000), GroupHeld(1000, start=849), GroupHeld(states=(480, 960)), 0),  # the window has moved on
        (GroupHeld(1000), GroupHeld(500), GroupHeld(states=(480, 960)), 480),
        (GroupHeld(1000, start=16), GroupHeld(1000), GroupHeld(states=(960,)), 0),  # attention with a hole in front
        (GroupHeld(0), GroupHeld(1000), GroupHeld(states=(960,)), 0),
    ],
)
def test_groups_resume_together_or_not_at_all(
    attention: GroupHeld, window: GroupHeld, state: GroupHeld, tokens: int
) -> None:
    assert THREE_GROUPS.unit == 96
    found = resumable(THREE_GROUPS, 1000, 2000, Held(groups=(attention, window, state)))
    assert found.tokens == tokens
    if tokens == 960:
        assert found.state is Resume.RESUMABLE
    else:
        assert found.state is (Resume.NEEDS_PARTIAL_RECOMPUTE if tokens else Resume.NEEDS_FULL_RECOMPUTE)
        assert found.reason is None


@pytest.mark.parametrize(("window", "tokens"), [(97, 960), (98, 0)])
def test_a_window_needs_the_tokens_before_the_next_one(window: int, tokens: int) -> None:
    """96 earlier tokens are 6 blocks of 16; one more takes a seventh."""
    profile = CacheProfile(groups=(Group(Kind.SLIDING_WINDOW, 16, window),))
    held = Held(groups=(GroupHeld(end=960, start=864),))
    assert resumable(profile, 960, 2000, held).tokens == tokens


def test_groups_that_do_not_fit_the_profile_are_refused() -> None:
    with pytest.raises(ValueError, match="3 cache groups, not 1"):
        resumable(THREE_GROUPS, 1000, 2000, Held(groups=(GroupHeld(1000),)))


@pytest.mark.parametrize(
    ("block", "match_unit", "groups", "unit"),
    [
        (1600, 32, (), 32),
        (1600, 48, (), 1600),  # does not divide the block
        (1600, None, (), 1600),
        (16, 32, (), 16),  # not finer
        (1600, 32, (Group(Kind.FULL_ATTENTION, 1600), Group(Kind.RECURRENT, 1600)), 32),
        (1600, 32, (Group(Kind.FULL_ATTENTION, 1600), Group(Kind.SLIDING_WINDOW, 1600, 128)), 1600),
        (1600, 32, (Group(Kind.FULL_ATTENTION, 16), Group(Kind.RECURRENT, 1600)), 1600),
    ],
)
def test_landing(block: int, match_unit: int | None, groups: tuple[Group, ...], unit: int) -> None:
    assert landing(block, match_unit, groups) == unit


TIERED = CacheProfile(tiers=(CPU_TIER, DISK_TIER))


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (Held(), Resumability(8000, Resume.RESUMABLE)),
        (Held(gpu_tokens=9000), Resumability(8000, Resume.RESUMABLE)),
        (Held(gpu_tokens=4000), Resumability(4000, Resume.NEEDS_PARTIAL_RECOMPUTE)),
        (Held(gpu_tokens=15), Resumability(0, Resume.NEEDS_FULL_RECOMPUTE)),
        # 4,000 tokens come back from the CPU at an eighth of their worth.
        (Held(gpu_tokens=4000, tier_tokens=(8000,)), Resumability(7500, Resume.NEEDS_IO_WAIT, None, 500)),
        # 2,000 from the CPU, 2,000 more from disk at half.
        (Held(gpu_tokens=4000, tier_tokens=(6000, 8000)), Resumability(6750, Resume.NEEDS_IO_WAIT, None, 1250)),
        (Held(gpu_tokens=0, tier_tokens=(0, 8000)), Resumability(4000, Resume.NEEDS_IO_WAIT, None, 4000)),
        # Tiers that hold no more than the GPU change nothing.
        (Held(gpu_tokens=8000, tier_tokens=(8000, 8000)), Resumability(8000, Resume.RESUMABLE)),
    ],
)
def test_tiers_are_credited_at_what_the_wait_leaves(held: Held, expected: Resumability) -> None:
    assert resumable(TIERED, 8010, 9000, held) == expected


def test_a_tier_as_slow_as_computing_is_worth_nothing_but_still_a_wait() -> None:
    slow = replace(TIERED, tiers=(Tier("STORAGE", 1000),))
    found = resumable(slow, 8010, 9000, Held(gpu_tokens=0, tier_tokens=(8000,)))
    assert found == (0, Resume.NEEDS_IO_WAIT, None, 8000)


@pytest.mark.parametrize(
    "make",
    [
        lambda: CacheProfile(block_size=0),
        lambda: CacheProfile(match_unit=0),
        lambda: CacheProfile(held_back=-1),
        lambda: Group(Kind.RECURRENT, 0),
        lambda: Group(Kind.SLIDING_WINDOW, 16),
        lambda: Tier("CPU", 1001),
        lambda: Tier("CPU", -1),
    ],
)
def test_impossible_descriptions_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match="must"):
        make()


# -- labels ----------------------------------------------------------------------------------------------------

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


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(LABEL_NAMES), LABEL_VALUES), st.integers(0, 1 << 21), st.integers(0, 1 << 21))
def test_any_labels_give_a_sound_profile(labels: dict[str, str], shared: int, prompt: int) -> None:
    profile = profile_from_labels(labels)
    assert profile.capacity_tokens is None or profile.capacity_tokens > 0
    assert 0 <= resumable(profile, shared, prompt).tokens <= min(shared, max(0, prompt - 1))


# -- properties ------------------------------------------------------------------------------------------------

BLOCKS = st.sampled_from([1, 16, 32, 48, 64, 528, 800, 1600, 5600])
TIERS = st.lists(st.builds(Tier, st.just("CPU"), st.integers(0, 1000)), max_size=2).map(tuple)
GROUP = st.one_of(
    st.builds(Group, st.sampled_from([Kind.FULL_ATTENTION, Kind.RECURRENT, Kind.INDEX]), BLOCKS),
    st.builds(Group, st.just(Kind.SLIDING_WINDOW), BLOCKS, st.integers(1, 5000)),
)
PROFILES = st.builds(
    CacheProfile,
    enabled=st.sampled_from([None, True]),
    block_size=BLOCKS,
    match_unit=st.sampled_from([None, 16, 32]),
    held_back=st.integers(0, 2),
    rule=st.sampled_from(Rule),
    retention=st.sampled_from([None, 0, 1600, 16_000]),
    tiers=TIERS,
)
GROUPED = st.builds(
    CacheProfile,
    held_back=st.integers(0, 1),
    match_unit=st.sampled_from([None, 16]),
    rule=st.just(Rule.CHECKPOINTS),
    groups=st.lists(GROUP, min_size=1, max_size=3).map(tuple),
)
TOKENS = st.integers(0, 40_000)
HELD = st.builds(
    Held,
    stored_tokens=st.none() | TOKENS,
    gpu_tokens=st.none() | TOKENS,
    tier_tokens=st.lists(TOKENS, max_size=2).map(tuple),
)


@settings(max_examples=300, deadline=None)
@given(PROFILES, TOKENS, TOKENS, TOKENS)
def test_more_shared_tokens_never_resume_fewer(profile: CacheProfile, one: int, more: int, prompt: int) -> None:
    low, high = sorted((one, more))
    assert resumable(profile, low, prompt).tokens <= resumable(profile, high, prompt).tokens


@settings(max_examples=300, deadline=None)
@given(PROFILES, TOKENS, TOKENS)
def test_a_hit_is_whole_units_within_what_is_shared(profile: CacheProfile, shared: int, prompt: int) -> None:
    found = resumable(profile, shared, prompt)
    assert found.tokens % profile.unit == 0
    assert 0 <= found.tokens <= shared
    assert found.tokens <= max(0, prompt - 1)
    if prompt < profile.floor_tokens:
        assert found.tokens == 0
    # Nothing of a match is lost but the units that are dropped, the one it ends in, and the last token.
    assert found.tokens > min(shared, prompt) - (profile.dropped + 1) * profile.unit - profile.computed - 1


@settings(max_examples=200, deadline=None)
@given(PROFILES)
def test_the_floor_is_tight(profile: CacheProfile) -> None:
    floor = profile.floor_tokens
    assert resumable(profile, floor, floor).tokens == profile.unit
    assert resumable(profile, floor - 1, floor - 1).tokens == 0


@settings(max_examples=300, deadline=None)
@given(PROFILES, TOKENS, TOKENS, HELD)
def test_knowing_what_is_held_never_promises_more(profile: CacheProfile, shared: int, prompt: int, held: Held) -> None:
    best = resumable(profile, shared, prompt)
    found = resumable(profile, shared, prompt, held)
    hit = found.tokens + found.wait
    assert 0 <= found.tokens <= hit <= best.tokens
    assert hit % profile.unit == 0
    expected = {
        Resume.RESUMABLE: hit == best.tokens > 0 and found.wait == 0,
        Resume.NEEDS_IO_WAIT: hit > 0 and bool(profile.tiers),
        Resume.NEEDS_PARTIAL_RECOMPUTE: 0 < hit < best.tokens and found.wait == 0,
        Resume.NEEDS_FULL_RECOMPUTE: hit == 0,
    }
    assert expected[found.state]


@settings(max_examples=200, deadline=None)
@given(PROFILES, TOKENS, TOKENS, TOKENS)
def test_a_deeper_tier_never_lowers_the_credit(profile: CacheProfile, gpu: int, one: int, more: int) -> None:
    low, high = sorted((one, more))
    shallow = resumable(profile, 30_000, 40_000, Held(gpu_tokens=gpu, tier_tokens=(low,)))
    deep = resumable(profile, 30_000, 40_000, Held(gpu_tokens=gpu, tier_tokens=(high,)))
    assert shallow.tokens <= deep.tokens


@st.composite
def profiles_with_parts(draw: st.DrawFn) -> tuple[CacheProfile, tuple[GroupHeld, ...]]:
    """A profile with groups, and what each of them holds, mostly near the boundaries where things go wrong."""
    profile = draw(GROUPED)
    edges = st.integers(0, 12).map(lambda i: i * profile.unit) | st.integers(0, 12 * profile.unit)
    parts = []
    for _ in profile.groups:
        states = tuple(draw(st.lists(edges, max_size=4)))
        parts.append(GroupHeld(end=draw(edges), start=draw(st.just(0) | edges), states=states))
    return profile, tuple(parts)


def resumes_at(profile: CacheProfile, group: Group, part: GroupHeld, at: int) -> bool:
    """The definition, without any search: one group can go on from token `at`."""
    if group.kind is Kind.RECURRENT:
        return at in part.states
    if at + profile.held_back * profile.unit > part.end:
        return False
    if part.start == 0:
        return True
    blocks = math.ceil((group.window - 1) / group.block_size)
    return group.kind is Kind.SLIDING_WINDOW and part.start <= at - blocks * group.block_size


@settings(max_examples=400, deadline=None)
@given(profiles_with_parts(), st.integers(0, 14))
def test_groups_meet_at_the_deepest_boundary_that_all_can_resume(
    case: tuple[CacheProfile, tuple[GroupHeld, ...]], units: int
) -> None:
    profile, parts = case
    bound = units * profile.unit
    pairs = list(zip(profile.groups, parts, strict=True))
    boundaries = range(profile.unit, bound + 1, profile.unit)
    common = [at for at in boundaries if all(resumes_at(profile, group, part, at) for group, part in pairs)]
    found = intersection(profile, bound, parts)
    assert found == max(common, default=0)
    for group in profile.groups:
        assert profile.match_unit == profile.unit or found % group.block_size == 0
    for group, part in pairs:
        alone = [at for at in boundaries if resumes_at(profile, group, part, at)]
        assert found <= max(alone, default=0)
