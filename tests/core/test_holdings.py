"""Which touch holds a block: what a claim counts for, how far up is looked, and what a part keeps of the whole."""

from __future__ import annotations

import pytest

from router.holdings import MOST_ABOVE, Holdings, any_of
from router.touches import Owner, Touch, run_of


def owner_of(worker: str, bit: int, lasts: float = 20.0) -> Owner:
    """One whose uses last so long, and its claims for 10 seconds."""
    owner = Owner(worker, 1.0, bit)
    owner.last(lasts, 10.0)
    return owner


OWNER = owner_of("w0", 1)


def held(*touches: Touch) -> Holdings:
    holdings = Holdings()
    for touch in touches:
        holdings.hold(touch)
        touch.owner.append(touch)
    return holdings


@pytest.mark.parametrize(("now", "believed", "proven"), [(5.0, 4, 2), (15.0, 2, 2), (25.0, 0, 0)])
def test_a_claim_reaches_as_deep_as_it_says_and_proves_nothing(now: float, believed: int, proven: int) -> None:
    served = Touch(OWNER.use, (2, 1), None)
    claimed = Touch(OWNER.claim, (4, 3), 2)
    holdings = held(served, claimed)
    assert holdings.depth_of(OWNER, [1, 2, 3, 4], now) == believed
    assert holdings.proven_depth(OWNER, [1, 2, 3, 4], now) == proven
    assert holdings.proven_depth(Owner("w1", 1.0, 2), [1, 2, 3, 4], now) == 0


@pytest.mark.parametrize("width", [1, 3])
def test_the_way_up_ends_however_long_the_news_says_it_is(width: int) -> None:
    """What another replica says leads from block to block without end: so many are looked at and no more."""
    runs = [tuple(range(at + width - 1, at - 1, -1)) for at in range(0, 4 * MOST_ABOVE * width, width)]
    touches = [Touch(OWNER.use, run_of(run), run[-1] - 1 if run[-1] else None) for run in runs]
    lineage = held(*touches).lineage(OWNER, runs[-1][0])
    assert MOST_ABOVE <= sum(len(touch.blocks) for touch in lineage) < MOST_ABOVE + width


@pytest.mark.parametrize("tentative", [True, False])
def test_both_parts_of_a_touch_are_what_the_whole_was(tentative: bool) -> None:
    whole = Touch(OWNER.claim if tentative else OWNER.use, (5, 4, 3, 2), 1, 7.0)
    holdings = held(whole)
    upper = holdings.split(whole, 1)
    assert (whole.blocks, whole.above, upper.blocks, upper.above) == ((5,), 4, (4, 3, 2), 1)
    assert whole.tentative is upper.tentative is tentative
    assert whole.used == upper.used == 7.0
    assert (whole.kind.fork, upper.kind.fork) == (False, True)
    assert [holdings.touch_of(OWNER, block) for block in (5, 4, 2)] == [whole, upper, upper]


@pytest.mark.parametrize("others", [0, 1, 2])
def test_only_owners_that_are_asked_for_and_not_too_old_count(others: int) -> None:
    """One owner, or several of one block."""
    mine = Touch(OWNER.claim, 1, None)
    theirs = [Touch(owner_of(f"w{number + 1}", 2 << number).use, 1, None) for number in range(others)]
    holdings = held(mine, *theirs)
    holder = holdings.held[1]
    assert any_of(holder, OWNER.bit, 9.0)
    assert not any_of(holder, OWNER.bit, 10.0)
    assert not any_of(holder, 1 << 9, 9.0)
    assert any_of(holder, (2 << others) - 2, 9.0) is (others > 0)
