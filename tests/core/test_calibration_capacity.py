"""How much a worker holds, and what its counters say of hits that its answers do not tell of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.calibration import (
    Capacity,
    CounterCheck,
    CounterFinding,
    Silent,
)
from router.calibration.capacity import LEAST_TOKENS, MOST
from router.calibration.counters import LEAST_TOKENS as LEAST_PREDICTED
from router.calibration.counters import MAX_SAMPLES, MAX_WAITING

TOKENS = st.integers(0, 100_000)

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


def test_answers_that_wait_are_bounded_and_the_latest_are_kept() -> None:
    check: CounterCheck[str] = CounterCheck()
    for time in range(3 * MAX_SAMPLES):
        check.sampled(float(time), 500.0)
    for number in range(MAX_WAITING + 10):
        check.answered(silent(190.5, 300.0, 6_000, f"{number} "))
    assert findings(check, 192.0, 500.0) == []  # before their first byte
    for number in range(20):
        check.answered(silent(190.5, 300.0, 6_000, f"later {number} "))
    check.sampled(301.0, 500.0)
    ((finding, names),) = findings(check, 302.0, 500.0)
    assert finding is CounterFinding.CONTRADICTED
    assert names.count(" ") - names.count("later") == MAX_WAITING
    assert names.startswith("30 ")
    assert names.endswith("later 19 ")
    # The samples are bounded too: what was sent before the first of them can't be compared.
    check.answered(silent(3 * MAX_SAMPLES - MAX_SAMPLES, 303.0))
    check.sampled(304.0, 500.0)
    assert findings(check, 305.0, 500.0) == [(CounterFinding.UNKNOWN, "a")]


def test_counters_that_begin_anew_take_back_what_was_sampled_and_what_waits() -> None:
    check: CounterCheck[str] = CounterCheck()
    check.sampled(0.0, 500.0)
    check.answered(silent(1.0, 2.0, name="a"))
    check.forget()
    check.answered(silent(1.0, 2.0, name="b"))
    check.sampled(5.0, 500.0)
    assert findings(check, 10.0, 500.0) == [(CounterFinding.UNKNOWN, "b")]


@pytest.mark.parametrize(
    ("missing", "prompt", "left"),
    [(500, 1_000, 90_000), (1_000, 1_000, 80_000), (9_000, 1_000, 80_000), (5, 0, 80_000)],
)
def test_a_failure_takes_a_fifth_of_what_of_the_prompt_was_missing(missing: int, prompt: int, left: int) -> None:
    capacity = Capacity()
    capacity.declare(100_000)
    capacity.fell_short(100_000, missing, prompt)
    assert capacity.tokens == left


def test_hits_that_were_expected_let_what_was_learned_grow_back_and_no_more() -> None:
    capacity = Capacity()
    capacity.declare(100_000)
    capacity.confirmed(100_000, oldest_half=True)
    assert capacity.tokens == 100_000
    capacity.fell_short(100_000, 1_000, 1_000)
    capacity.confirmed(int(0.9 * 80_000) - 1, oldest_half=True)
    assert capacity.tokens == 80_000
    capacity.confirmed(int(0.9 * 80_000), oldest_half=True)
    assert capacity.tokens == 80_801
