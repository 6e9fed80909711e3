"""What an engine can resume: properties that every profile keeps."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from router.cachemodel import (
    CacheProfile,
    Group,
    GroupHeld,
    Held,
    Kind,
    Resume,
    Rule,
    Tier,
    intersection,
    resumable,
)

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


@settings(max_examples=300)
@given(PROFILES, TOKENS, TOKENS, TOKENS)
def test_more_shared_tokens_never_resume_fewer(profile: CacheProfile, one: int, more: int, prompt: int) -> None:
    low, high = sorted((one, more))
    assert resumable(profile, low, prompt).tokens <= resumable(profile, high, prompt).tokens


@settings(max_examples=300)
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


@settings(max_examples=200)
@given(PROFILES)
def test_the_floor_is_tight(profile: CacheProfile) -> None:
    floor = profile.floor_tokens
    assert resumable(profile, floor, floor).tokens == profile.unit
    assert resumable(profile, floor - 1, floor - 1).tokens == 0


@settings(max_examples=300)
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


@settings(max_examples=200)
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


@settings(max_examples=400)
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
