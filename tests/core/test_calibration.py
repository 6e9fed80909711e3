"""Did a hit come true, why not, and what failures in a row say: as tables, and as laws for any numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.calibration import (
    Belief,
    Cause,
    Circumstances,
    Ledger,
    Usage,
    Verdict,
    cause_of,
    judge,
    verdict_of,
)
from router.calibration.ledger import AGAIN_SECONDS, STRIKES

HIT = Belief(credited=6_000, predicted=6_000, step=128, used=100.0)
TOKENS = st.integers(0, 100_000)


# -- verdicts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("predicted", "reported", "verdict"),
    [
        (6_000, 6_000, Verdict.CONFIRMED),
        (6_000, 5_900, Verdict.CONFIRMED),  # less than a step
        (6_000, 5_700, Verdict.FELL_SHORT),
        (6_000, 0, Verdict.FELL_SHORT),
        (6_000, 6_300, Verdict.BETTER),
        (0, 0, Verdict.CONFIRMED),
        (0, 2_000, Verdict.BETTER),
        (6_000, None, Verdict.UNKNOWN),
    ],
)
def test_predicted_against_reported(predicted: int, reported: int | None, verdict: Verdict) -> None:
    assert judge(predicted, Usage(7_000, reported), 128) is verdict


def test_a_tolerance_grows_with_the_prompt_and_a_lower_bound_can_be_exceeded() -> None:
    assert judge(60_000, Usage(70_000, 58_000), 128) is Verdict.CONFIRMED
    assert judge(6_000, Usage(70_000, 65_000), 128, at_least=True) is Verdict.CONFIRMED
    assert judge(6_000, None, 128) is Verdict.UNKNOWN


@given(TOKENS, TOKENS, st.integers(1, 5_000), st.integers(1, 200_000))
def test_more_reported_never_makes_a_verdict_worse(predicted: int, reported: int, step: int, prompt: int) -> None:
    order = [Verdict.FELL_SHORT, Verdict.CONFIRMED, Verdict.BETTER]
    one, more = (judge(predicted, Usage(prompt, tokens), step) for tokens in (reported, reported + 100))
    assert order.index(one) <= order.index(more)
    assert judge(predicted, Usage(prompt, predicted), step) is Verdict.CONFIRMED


def test_a_credit_that_the_exact_length_rules_out_has_fallen_short() -> None:
    belief = Belief(credited=1_600, predicted=0, step=1_600)
    assert verdict_of(belief, Usage(1_590, 0)) is Verdict.FELL_SHORT
    assert cause_of(belief, Circumstances(), 1_590) is Cause.BELOW_BLOCK_FLOOR
    assert verdict_of(belief, Usage(1_590, None)) is Verdict.UNKNOWN
    # A plain cache loses a few tokens to rounding all the time.
    assert verdict_of(Belief(credited=16, predicted=0, step=128), Usage(40, 0)) is Verdict.CONFIRMED
    assert verdict_of(Belief(credited=0, predicted=0, step=128), Usage(40, 0)) is Verdict.CONFIRMED


# -- causes ----------------------------------------------------------------------------------------------------

RECENT = Circumstances(age=5.0, proven_age=60.0, capacity=100_000)
OLD = replace(RECENT, age=600.0)
PUSHED = replace(RECENT, since=90_000)


@pytest.mark.parametrize(
    ("belief", "now", "cause"),
    [
        (HIT, replace(OLD, same_life=False, enabled=False), Cause.RESTARTED),
        (HIT, replace(OLD, enabled=False), Cause.CACHE_DISABLED),
        (replace(HIT, predicted=0), RECENT, Cause.BELOW_BLOCK_FLOOR),
        (replace(HIT, tentative=True), OLD, Cause.NOT_RESIDENT),
        (HIT, replace(OLD, emptied=True), Cause.NOT_RESIDENT),
        (replace(HIT, used=None), replace(RECENT, age=None), Cause.UNKNOWN),
        (HIT, RECENT, Cause.NOT_RESIDENT),
        (HIT, PUSHED, Cause.EVICTED),
        (HIT, replace(PUSHED, age=600.0), Cause.EVICTED),
        (HIT, replace(PUSHED, proven_since=90_000), Cause.NOT_RESIDENT),  # others stayed as long
        (HIT, replace(OLD, since=90_000, proven_since=90_000), Cause.EXPIRED),
        (HIT, OLD, Cause.EXPIRED),
        (HIT, replace(OLD, proven_age=700.0), Cause.NOT_RESIDENT),
        (HIT, replace(RECENT, age=50.0, proven_age=0.1), Cause.NOT_RESIDENT),  # no engine lets go so soon
        (HIT, replace(PUSHED, since=50_000), Cause.EVICTED),
        (HIT, replace(PUSHED, since=49_000), Cause.NOT_RESIDENT),
        (HIT, replace(PUSHED, since=10_000, stateful=True), Cause.EVICTED),
        (HIT, replace(PUSHED, since=9_000, stateful=True), Cause.NOT_RESIDENT),
        (HIT, replace(PUSHED, since=28_000, capacity=None), Cause.EVICTED),
        (HIT, replace(PUSHED, since=27_000, capacity=None), Cause.NOT_RESIDENT),
    ],
)
def test_the_surest_cause_is_named(belief: Belief, now: Circumstances, cause: Cause) -> None:
    assert cause_of(belief, now, 7_000) is cause


# -- the ledger ------------------------------------------------------------------------------------------------


def test_where_nothing_was_expected_nothing_is_confirmed() -> None:
    ledger = Ledger()
    ledger.count(Verdict.CONFIRMED, 0, 0)
    assert not any(ledger.counts.values())
    ledger.count(Verdict.FELL_SHORT, 0, 0)
    ledger.count(Verdict.CONFIRMED, 1_000, 1_000)
    assert (ledger.counts[Verdict.CONFIRMED], ledger.counts[Verdict.FELL_SHORT]) == (1, 1)


def test_precision_and_recall_are_shares_of_tokens() -> None:
    ledger = Ledger()
    assert (ledger.precision, ledger.recall) == (None, None)
    ledger = Ledger()
    ledger.count(Verdict.CONFIRMED, 1_000, 1_000)
    ledger.count(Verdict.UNKNOWN)
    assert (ledger.precision, ledger.recall) == (1.0, 1.0)
    ledger.count(Verdict.FELL_SHORT, 1_000, 0)
    assert ledger.precision == pytest.approx(0.5, abs=0.01)
    assert ledger.recall == 1.0
    ledger.count(Verdict.BETTER, 0, 2_000)
    assert ledger.recall == pytest.approx(1 / 3, abs=0.01)
    assert ledger.counts == {
        Verdict.CONFIRMED: 1,
        Verdict.FELL_SHORT: 1,
        Verdict.BETTER: 1,
        Verdict.UNKNOWN: 1,
    }


def test_precision_and_recall_follow_the_latest_answers() -> None:
    ledger = Ledger()
    for _ in range(2_000):
        ledger.count(Verdict.FELL_SHORT, 1_000, 0)
        ledger.count(Verdict.BETTER, 0, 1_000)
    assert (ledger.precision, ledger.recall) == (0.0, 0.0)
    for _ in range(500):
        ledger.count(Verdict.CONFIRMED, 1_000, 1_000)
    assert ledger.precision == pytest.approx(1.0, abs=0.01)
    assert ledger.recall == pytest.approx(1.0, abs=0.01)


@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=300))
def test_shares_lie_between_none_and_all(answers: list[tuple[int, int]]) -> None:
    ledger = Ledger()
    telling = 0
    for predicted, reported in answers:
        verdict = judge(predicted, Usage(100_000, reported), 128)
        ledger.count(verdict, predicted, reported)
        telling += verdict is not Verdict.CONFIRMED or predicted > 0
    for share in (ledger.precision, ledger.recall):
        assert share is None or 0.0 <= share <= 1.0 + 1e-9
    assert sum(ledger.counts.values()) == telling


def emptied(ledger: Ledger, times: int, *, cause: Cause = Cause.NOT_RESIDENT, reported: int = 0) -> float | None:
    """So many hits that fell short, sent at 1000, 1001, ...; what the last one says."""
    said = None
    for number in range(times):
        said = ledger.was_missing(cause, 6_000, reported, 1_000.0 + number)
    return said


def working() -> Ledger:
    ledger = Ledger()
    ledger.was_there(880.0, 900.0)
    return ledger


def test_failures_in_a_row_empty_a_cache_up_to_the_first_of_them() -> None:
    ledger = working()
    assert emptied(ledger, STRIKES - 1) is None
    assert emptied(ledger, 1) == 1_000.0


@pytest.mark.parametrize("cause", sorted(set(Cause) - {Cause.NOT_RESIDENT, Cause.EXPIRED, Cause.UNKNOWN}))
def test_failures_with_an_explanation_say_nothing(cause: Cause) -> None:
    assert emptied(working(), 10, cause=cause) is None


def test_a_cache_of_which_half_is_there_or_that_never_worked_was_not_emptied() -> None:
    assert emptied(working(), 10, reported=3_000) is None
    assert emptied(Ledger(), 10) is None


@pytest.mark.parametrize(("true", "false", "needed"), [(1, 0, 3), (9, 1, 3), (2, 1, 5), (1, 1, 7), (1, 9, 24)])
def test_where_hits_fail_now_and_then_it_takes_more_of_them(true: int, false: int, needed: int) -> None:
    ledger = working()
    for _ in range(60):
        for _ in range(false):
            ledger.was_missing(Cause.EVICTED, 6_000, 0, 900.0)
        for _ in range(true):
            ledger.was_there(880.0, 900.0)
    assert emptied(ledger, needed - 1) is None
    assert emptied(ledger, 1) == 1_000.0


def test_a_cache_that_seems_emptied_again_and_again_is_only_small() -> None:
    ledger = working()
    assert emptied(ledger, STRIKES) is not None
    assert ledger.emptied(2_000.0)
    assert emptied(ledger, STRIKES) is not None
    assert not ledger.emptied(2_000.0 + AGAIN_SECONDS - 1)
    assert emptied(ledger, 1) is None
    assert ledger.emptied(2_000.0 + 2 * AGAIN_SECONDS)


def test_what_stayed_longest_is_looked_at_and_believed_until_it_fails() -> None:
    ledger = Ledger()
    assert ledger.was_there(900.0, 1_000.0)
    ledger.stayed(50_000)
    assert not ledger.was_there(950.0, 1_000.0)
    assert not ledger.was_there(900.0, 999.0)
    assert not ledger.was_there(None, 1_000.0)
    assert ledger.was_there(900.0, 1_000.0)  # records fade
    ledger.stayed(10_000)
    assert ledger.proven_age == 100.0
    assert ledger.proven_since == 49_750
    ledger.was_missing(Cause.RESTARTED, 6_000, 0, 1_000.0, 20_000)
    assert ledger.proven_since == 49_750
    ledger.was_missing(Cause.NOT_RESIDENT, 6_000, 0, 1_000.0, 20_000)
    assert ledger.proven_since == 20_000


def test_counters_can_say_that_a_cache_works() -> None:
    ledger = Ledger()
    ledger.seems_to_work()
    assert emptied(ledger, STRIKES) == 1_000.0


def test_only_a_hit_that_is_older_than_the_failures_takes_them_back() -> None:
    ledger = working()
    emptied(ledger, STRIKES - 1)
    ledger.was_there(1_000.5, 1_010.0)  # computed since
    assert emptied(ledger, 1) == 1_000.0
    ledger = working()
    emptied(ledger, STRIKES - 1)
    ledger.was_there(999.0, 1_010.0)
    assert emptied(ledger, 1) is None


def test_a_new_life_begins_with_a_clean_sheet() -> None:
    ledger = working()
    ledger.count(Verdict.CONFIRMED, 10, 10)
    emptied(ledger, STRIKES)
    ledger.begin(7.0)
    assert (ledger.epoch, ledger.proven_age, ledger.proven_since) == (7.0, 0.0, 0)
    assert ledger.counts[Verdict.CONFIRMED] == 1
    assert emptied(ledger, 10) is None
