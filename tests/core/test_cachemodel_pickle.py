"""Profiles go from process to process as they are."""

from __future__ import annotations

import pickle

from router.cachemodel import CPU_TIER, CacheProfile, Group, Kind, Rule

PROFILE = CacheProfile(
    enabled=True,
    block_size=1600,
    match_unit=32,
    held_back=1,
    rule=Rule.OPEN_BLOCK,
    retention=0,
    groups=(Group(Kind.FULL_ATTENTION, 16), Group(Kind.SLIDING_WINDOW, 32, 4096)),
    tiers=(CPU_TIER,),
    capacity_tokens=100_000,
)


def test_a_profile_survives_its_journey() -> None:
    there = pickle.loads(pickle.dumps(PROFILE))
    assert there == PROFILE
    assert (there.unit, there.dropped, there.computed) == (PROFILE.unit, PROFILE.dropped, PROFILE.computed)
