"""Did a hit come true, why not, and what failures in a row say: as tables, and as laws for any numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.calibration import (
    Belief,
    Capacity,
    Cause,
    Circumstances,
    CounterCheck,
    CounterFinding,
    Ledger,
    Silent,
    Usage,
    Verdict,
    cause_of,
    judge,
    verdict_of,
)
from router.calibration.capacity import LEAST_TOKENS, MOST
from router.calibration.counters import LEAST_TOKENS as LEAST_PREDICTED
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


# -- capacity --------------------------------------------------------------------------------------------------


def test_a_declared_capacity_counts_until_another_is_declared() -> None:
    capacity = Capacity()
    assert capacity.tokens is None
    capacity.declare(100_000)
    capacity.fell_short(90_000, 1_000, 1_000)
    capacity.declare(100_000)
    assert capacity.tokens == 72_000
    capacity.declare(50_000)
    assert capacity.tokens == 50_000


def test_an_unknown_capacity_is_found_from_above() -> None:
    capacity = Capacity()
    real, shadow = 20_000, 500_000
    for failures in range(40):  # noqa: B007
        if capacity.tokens is not None and capacity.tokens <= real:
            break
        capacity.fell_short(min(shadow, capacity.tokens or shadow), 1_000, 1_000)
    assert failures <= 16
    assert capacity.tokens is not None
    assert 0.7 * real < capacity.tokens <= real


def test_hits_beyond_what_is_remembered_let_it_grow_back_to_a_bound() -> None:
    capacity = Capacity()
    capacity.declare(100_000)
    capacity.fell_short(50_000, 1_000, 1_000)
    assert capacity.tokens == 40_000
    capacity.exceeded(10_000, 500, 1_000)  # the map was not full: it shows nothing
    capacity.confirmed(10_000, oldest_half=True)
    capacity.confirmed(40_000, oldest_half=False)
    assert capacity.tokens == 40_000
    capacity.exceeded(40_000, 500, 1_000)
    assert capacity.tokens == 44_001
    for _ in range(1_000):
        capacity.confirmed(capacity.tokens, oldest_half=True)
    grown = capacity.tokens
    assert 100_000 <= grown < 101_000  # all that it declares, and no more for hits that were expected
    for _ in range(1_000):
        capacity.exceeded(capacity.tokens, 500, 1_000)
    assert capacity.tokens == MOST * 100_000


@given(
    st.one_of(st.none(), st.integers(1, 10**9)),
    st.lists(st.tuples(st.sampled_from(["less", "more", "true"]), TOKENS, TOKENS, TOKENS), max_size=60),
)
def test_a_capacity_stays_within_its_bounds(declared: int | None, events: list[tuple[str, int, int, int]]) -> None:
    capacity = Capacity()
    capacity.declare(declared)
    for kind, shadow, tokens, prompt in events:
        before = capacity.tokens
        if kind == "less":
            capacity.fell_short(shadow, tokens, prompt)
            assert capacity.tokens is not None
            assert capacity.tokens <= max(LEAST_TOKENS, shadow, 0)
            continue
        if kind == "more":
            capacity.exceeded(shadow, tokens, prompt)
        else:
            capacity.confirmed(shadow, oldest_half=tokens % 2 == 0)
        if before is None:
            assert capacity.tokens is None
        else:
            assert capacity.tokens is not None
            assert before <= capacity.tokens <= max(before, 1.2 * before + 1)


# -- counters --------------------------------------------------------------------------------------------------


def silent(sent: float, begun: float, predicted: int = 6_000, name: str = "a") -> Silent[str]:
    return Silent(sent, begun, predicted, name)


def findings(check: CounterCheck[str], now: float, hits: float | None) -> list[tuple[CounterFinding, str]]:
    """What a probe says, and of which answers."""
    return [(finding, "".join(one.subject for one in silents)) for finding, silents in check.sampled(now, hits)]


def test_counters_that_do_not_move_refute_what_was_predicted_between_them() -> None:
    check: CounterCheck[str] = CounterCheck()
    assert findings(check, 0.0, 500.0) == []
    check.answered(silent(1.0, 2.0, name="a"))
    check.answered(silent(1.5, 3.0, name="b"))
    # The page of this probe may have been made before the answers began.
    assert findings(check, 5.0, 500.0) == []
    assert findings(check, 10.0, 510.0) == [(CounterFinding.CONTRADICTED, "ab")]
    assert findings(check, 15.0, 510.0) == []


def test_counters_that_moved_for_whatever_reason_refute_nothing() -> None:
    check: CounterCheck[str] = CounterCheck()
    check.sampled(0.0, 500.0)
    check.answered(silent(1.0, 2.0))
    check.sampled(5.0, 500.0)
    assert findings(check, 10.0, 1_200.0) == [(CounterFinding.CONSISTENT, "a")]


def test_an_answer_that_ends_late_is_compared_over_the_time_in_which_it_began() -> None:
    check: CounterCheck[str] = CounterCheck()
    for time, hits in ((0.0, 500.0), (5.0, 500.0), (10.0, 500.0), (15.0, 9_000.0)):
        check.sampled(time, hits)
    check.answered(silent(1.0, 2.0, name="a"))
    check.answered(silent(6.0, 7.0, name="b"))
    assert findings(check, 20.0, 9_000.0) == [(CounterFinding.CONTRADICTED, "a"), (CounterFinding.CONSISTENT, "b")]


def test_too_little_predicted_no_counters_or_falling_ones_say_nothing() -> None:
    check: CounterCheck[str] = CounterCheck()
    check.sampled(0.0, 500.0)
    check.answered(silent(1.0, 2.0, LEAST_PREDICTED - 1))
    check.sampled(5.0, 500.0)
    assert findings(check, 10.0, 500.0) == [(CounterFinding.UNKNOWN, "a")]
    for hits in (None, 400.0):
        check.sampled(20.0, 500.0)
        check.answered(silent(21.0, 22.0))
        check.sampled(25.0, 500.0)
        assert findings(check, 30.0, hits) == []
    assert findings(check, 35.0, 500.0) == []


def test_an_answer_sent_before_the_samples_reach_back_says_nothing_and_spoils_nothing() -> None:
    check: CounterCheck[str] = CounterCheck()
    check.sampled(10.0, 500.0)
    check.answered(silent(1.0, 11.0, name="l"))
    check.answered(silent(10.5, 11.0, name="s"))
    check.sampled(15.0, 500.0)
    assert findings(check, 20.0, 500.0) == [(CounterFinding.UNKNOWN, "l"), (CounterFinding.CONTRADICTED, "s")]


REQUESTS = st.tuples(st.floats(0.0, 60.0), st.floats(0.0, 9.0), st.floats(0.0, 1.0), st.integers(512, 20_000))


@given(st.lists(REQUESTS, min_size=1, max_size=20), st.integers(0, 50_000))
def test_hits_that_came_true_are_never_refuted(requests: list[tuple[float, float, float, int]], others: int) -> None:
    """In whatever order requests, hits and probes come, and whoever else moves the counter."""
    check: CounterCheck[str] = CounterCheck()
    # A hit counts somewhere between the request's being sent and its first byte.
    hits = [(sent + share * taken, predicted + others) for sent, taken, share, predicted in requests]
    answers = [silent(sent, sent + taken, predicted) for sent, taken, _, predicted in requests]
    for time in range(0, 95, 5):
        for answer in [answer for answer in answers if answer.begun <= time]:
            answers.remove(answer)
            check.answered(answer)
        counter = sum(tokens for at, tokens in hits if at <= time)
        assert all(finding is not CounterFinding.CONTRADICTED for finding, _ in check.sampled(time, float(counter)))
    assert not answers
