"""What an engine can resume: tables of known cases."""

from __future__ import annotations

from dataclasses import replace

import pytest

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
    landing,
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
    assert resumable(off, shared, 100_000) == Resumability(0, Resume.NEEDS_FULL_RECOMPUTE, CACHE_DISABLED)
    assert resumable(off, shared, 100_000, Held(gpu_tokens=100_000)).reason == CACHE_DISABLED


def test_no_match_is_a_plain_miss() -> None:
    assert resumable(FP8, 0, 100) == Resumability(0, Resume.NEEDS_FULL_RECOMPUTE)
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
    assert found == Resumability(0, Resume.NEEDS_IO_WAIT, None, 8000)


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
