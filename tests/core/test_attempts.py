"""What may follow a failed attempt: the table of rules, and the budget for asking again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import errors
from router.dataplane.attempts import RULES, Outcome, RetryBudget, Rule, outcome_of_error, outcome_of_status
from router.dataplane.upstream_types import UpstreamLost


def test_every_outcome_has_a_rule() -> None:
    assert set(RULES) == set(Outcome)


@pytest.mark.parametrize(
    ("outcome", "rule"),
    [
        (Outcome.ANSWERED, Rule(retry=False, strike=False)),
        # Never sent: free to be sent elsewhere, and the worker's fault.
        (Outcome.CONNECT, Rule(retry=True, strike=True, free=True, probe=True)),
        (Outcome.RESET, Rule(retry=True, strike=True, probe=True)),
        # Perhaps still computing: not computed twice.
        (Outcome.TIMEOUT, Rule(retry=False, strike=True, probe=True)),
        (Outcome.PROTOCOL, Rule(retry=False, strike=True)),
        # Full is not broken.
        (Outcome.OVERLOADED, Rule(retry=True, strike=False, spare=True)),
        (Outcome.LIMITED, Rule(retry=True, strike=False, spare=True)),
        (Outcome.GATEWAY, Rule(retry=True, strike=True)),
        # The shortage is this router's own.
        (Outcome.FULL, Rule(retry=True, strike=False, free=True)),
    ],
)
def test_the_table(outcome: Outcome, rule: Rule) -> None:
    assert RULES[outcome] == rule


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        *[(status, Outcome.ANSWERED) for status in (200, 201, 400, 401, 404, 408, 413, 422, 499, 500, 501, 505, 599)],
        (429, Outcome.LIMITED),
        (502, Outcome.GATEWAY),
        (503, Outcome.OVERLOADED),
        (504, Outcome.TIMEOUT),
    ],
)
def test_a_status_is_an_answer_or_a_reason_to_ask_elsewhere(status: int, outcome: Outcome) -> None:
    assert outcome_of_status(status) is outcome


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (errors.ConnectFailed(""), Outcome.CONNECT),
        (errors.UpstreamReset(""), Outcome.RESET),
        (UpstreamLost("", bytes_received=0, reused=False), Outcome.RESET),
        (errors.UpstreamTimeout(""), Outcome.TIMEOUT),
        (errors.UpstreamProtocolError(""), Outcome.PROTOCOL),
        (errors.Unavailable(""), Outcome.FULL),
        (errors.UpstreamError(""), Outcome.PROTOCOL),
    ],
)
def test_an_error_of_the_upstream_client_has_its_outcome(error: errors.RouterError, outcome: Outcome) -> None:
    assert outcome_of_error(error) is outcome


def test_a_few_retries_are_always_allowed() -> None:
    budget = RetryBudget(share=0.2, least=3)
    budget.request(0.0)
    assert [budget.take(0.0) for _ in range(5)] == [True, True, True, False, False]


def test_beyond_those_a_share_of_the_requests_is() -> None:
    budget = RetryBudget(share=0.2, least=3)
    for _ in range(100):
        budget.request(0.0)
    assert sum(budget.take(0.0) for _ in range(50)) == 20


def test_the_budget_is_that_of_the_last_ten_to_twenty_seconds() -> None:
    budget = RetryBudget(share=0.2, least=0)
    for _ in range(100):
        budget.request(0.0)
    assert budget.take(9.9)
    for _ in range(19):
        assert budget.take(15.0)
    assert not budget.take(15.0)
    # The requests of the first ten seconds are forgotten, the retries of the next ten are not.
    budget.request(25.0)
    assert not budget.take(25.0)
    assert not budget.take(29.9)
    for _ in range(10):
        budget.request(60.0)
    assert [budget.take(60.0) for _ in range(3)] == [True, True, False]


def test_requests_do_not_count_for_longer_because_others_were_rare() -> None:
    budget = RetryBudget(share=0.2, least=0)
    for _ in range(100):
        budget.request(0.0)
    budget.request(19.9)
    assert [budget.take(29.8) for _ in range(2)] == [True, False]


def test_no_retries_where_none_are_allowed() -> None:
    budget = RetryBudget(share=0.0, least=0)
    for _ in range(100):
        budget.request(0.0)
    assert not budget.take(0.0)


@given(st.lists(st.tuples(st.floats(0, 5), st.booleans()), max_size=200))
def test_retries_never_exceed_the_share_of_all_requests_and_the_few(steps: list[tuple[float, bool]]) -> None:
    budget = RetryBudget(share=0.2, least=3)
    now = 0.0
    recent: list[tuple[float, bool]] = []
    for pause, wants in steps:
        now += pause
        if not wants:
            budget.request(now)
            recent.append((now, False))
        elif budget.take(now):
            recent.append((now, True))
            window = [retry for at, retry in recent if now - at < 10.0]
            requests = sum(1 for at, retry in recent if not retry and now - at <= 20.0)
            assert sum(window) <= max(3, 0.2 * requests + 1)
