"""What is kept of the work at every worker."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.work import (
    ASSUMED_RATE,
    DECODING_TOKENS,
    PROGRESS_SHARE,
    RATE_KEEP,
    Key,
    Waiting,
    WorkQueue,
    WorkState,
    lighter,
)


def key(number: int, sender: str = "me") -> Key:
    return sender, number


def fresh() -> WorkQueue:
    return WorkState().queue("w")


def parts(queue: WorkQueue, now: float) -> tuple[float, int, int]:
    """Tokens ahead of a new request, requests that wait, and requests that are past their first byte."""
    return queue.ahead(now), len(queue.waiting), len(queue.answered)


def test_the_queue_is_what_waits_for_its_first_byte() -> None:
    queue = fresh()
    assert queue.ahead(0.0) == 0.0
    queue.started(key(1), Waiting(3_000), 0.0)
    queue.started(key(2), Waiting(500), 0.0)
    assert parts(queue, 0.0) == (3_500, 2, 0)
    queue.first_byte(key(1), 1.0)
    assert parts(queue, 1.0) == (500, 1, 1)
    queue.ended(key(1), 2.0)
    queue.ended(key(2), 2.0)
    assert parts(queue, 2.0) == (0, 0, 0)


def test_the_rate_is_learned_from_the_times_between_first_bytes() -> None:
    queue = fresh()
    queue.started(key(1), Waiting(4_000), 10.0)
    queue.started(key(2), Waiting(2_000), 10.5)
    assert queue.rate == 0.0
    queue.first_byte(key(1), 12.0)
    assert queue.rate == pytest.approx(2_000)
    queue.first_byte(key(2), 12.5)
    assert queue.rate == pytest.approx((4_000 * RATE_KEEP + 2_000) / (2.0 * RATE_KEEP + 0.5))
    # A queue that was empty for a while is no slow one.
    queue.started(key(3), Waiting(1_000), 100.0)
    queue.first_byte(key(3), 100.25)
    assert queue.rate > 2_000


def test_progress_of_the_head_is_bounded_by_its_own_tokens() -> None:
    queue = fresh()
    queue.started(key(1), Waiting(1_000), 0.0)
    queue.first_byte(key(1), 1.0)
    queue.started(key(2), Waiting(2_000), 1.0)
    queue.started(key(3), Waiting(5_000), 1.0)
    assert queue.ahead(1.0) == 7_000
    assert queue.ahead(2.0) == pytest.approx(7_000 - PROGRESS_SHARE * 1_000)
    assert queue.ahead(60.0) == 5_000


def test_a_head_that_goes_away_leaves_the_next_at_its_begin() -> None:
    queue = fresh()
    queue.started(key(1), Waiting(1_000), 0.0)
    queue.first_byte(key(1), 1.0)
    queue.started(key(2), Waiting(2_000), 1.0)
    queue.started(key(3), Waiting(5_000), 1.0)
    queue.ended(key(2), 4.0)
    assert queue.ahead(4.0) == 5_000
    assert queue.rate == pytest.approx(1_000)


def test_silent_requests_are_computed_before_those_that_came_later() -> None:
    queue = fresh()
    queue.started(key(1), Waiting(3_000, silent=True), 0.0)
    queue.started(key(2), Waiting(1_000), 0.0)
    queue.first_byte(key(2), 1.0)
    assert (len(queue.waiting), len(queue.answered)) == (0, 2)
    assert queue.rate == pytest.approx(4_000)


def test_the_end_of_a_silent_request_teaches_no_rate() -> None:
    queue = fresh()
    queue.started(key(1), Waiting(1_000), 0.0)
    queue.first_byte(key(1), 1.0)
    queue.started(key(2), Waiting(1_000, silent=True), 1.0)
    queue.first_byte(key(2), 31.0)
    assert queue.rate == pytest.approx(1_000)
    assert (len(queue.waiting), len(queue.answered)) == (0, 2)


def test_a_silent_head_counts_as_computed_when_its_time_is_over() -> None:
    queue = fresh()
    queue.started(key(1), Waiting(4_000, silent=True), 0.0)
    queue.started(key(2), Waiting(4_000, silent=True), 0.0)
    each = 4_000 / (PROGRESS_SHARE * ASSUMED_RATE)
    assert queue.ahead(0.99 * each) == 8_000
    assert queue.ahead(1.01 * each) == 4_000
    assert len(queue.answered) == 1
    assert queue.ahead(2.01 * each) == 0
    assert queue.rate == 0.0


def test_news_that_never_came_is_made_good() -> None:
    queue = fresh()
    queue.started(key(1, "other"), Waiting(1_000), 0.0)
    queue.started(key(2, "other"), Waiting(2_000), 0.0)
    queue.started(key(1, "me"), Waiting(4_000), 0.0)
    told: dict[Key, Waiting | None] = {key(2, "other"): None, key(3, "other"): Waiting(500)}
    queue.restate("other", told, 1.0)
    assert parts(queue, 1.0) == (4_500, 2, 1)
    assert queue.open_of("other") == told
    queue.restate("other", {}, 2.0)
    assert parts(queue, 2.0) == (4_000, 1, 0)


def test_a_first_byte_of_an_unknown_request_is_one_that_decodes() -> None:
    queue = fresh()
    queue.first_byte(key(7), 1.0)
    assert len(queue.answered) == 1
    queue.ended(key(7), 2.0)
    queue.ended(key(7), 2.0)
    assert not queue.answered


def test_a_new_life_forgets_queue_and_rate() -> None:
    queue = fresh()
    queue.started(key(1), Waiting(1_000), 0.0)
    queue.first_byte(key(1), 1.0)
    queue.started(key(2), Waiting(1_000), 1.0)
    queue.reset()
    assert (parts(queue, 2.0), queue.rate) == ((0.0, 0, 0), 0.0)
    # What was under way fails sooner or later, and takes nothing away.
    queue.first_byte(key(2), 2.0, computed=False)
    queue.ended(key(2), 2.0)
    queue.ended(key(1), 2.0)
    assert (parts(queue, 2.0), queue.rate) == ((0.0, 0, 0), 0.0)


def test_the_interval_follows_real_re_use_only() -> None:
    state = WorkState()
    state.reused(160.0, 0.49)
    assert state.interval == 60.0
    state.reused(160.0, 0.5)
    assert state.interval == pytest.approx(62.0)


@given(st.lists(st.tuples(st.sampled_from(["start", "first", "end"]), st.integers(0, 9), st.booleans()), max_size=80))
def test_nothing_is_left_when_all_have_ended(events: list[tuple[str, int, bool]]) -> None:
    queue = fresh()
    known: dict[int, int] = defaultdict(int)
    for now, (what, number, silent) in enumerate(events):
        if what == "start" and not known[number]:
            known[number] = 100 * (number + 1)
            queue.started(key(number), Waiting(known[number], silent=silent), now)
        elif what == "first" and known[number]:
            queue.first_byte(key(number), now)
        elif what == "end":
            known[number] = 0
            queue.ended(key(number), now)
        in_flight = sum(1 for tokens in known.values() if tokens)
        assert 0.0 <= queue.ahead(now) <= sum(known.values())
        assert len(queue.waiting) + len(queue.answered) == in_flight
    for number in known:
        queue.ended(key(number), 1_000.0)
    assert parts(queue, 1_000.0) == (0.0, 0, 0)


def test_what_is_said_twice_counts_once() -> None:
    queue = fresh()
    for _ in range(2):
        queue.started(key(1), Waiting(1_000, whole=5), 0.0)
    assert (parts(queue, 0.0), queue.twins) == ((1_000, 1, 0), {5: {"w": 1}})
    for _ in range(2):
        queue.first_byte(key(1), 1.0)
    assert (parts(queue, 1.0), queue.twins) == ((0.0, 0, 1), {})
    queue.started(key(1), Waiting(1_000), 0.0)
    assert parts(queue, 1.0) == (0.0, 0, 1)


def test_a_refused_prompt_was_not_computed_and_teaches_no_rate() -> None:
    queue = fresh()
    queue.started(key(1), Waiting(2_000), 0.0)
    queue.first_byte(key(1), 1.0)
    queue.started(key(2), Waiting(1_000_000), 1.0)
    queue.started(key(3), Waiting(500), 1.0)
    queue.first_byte(key(2), 1.001, computed=False)
    assert queue.rate == 2_000
    assert parts(queue, 1.001) == (500, 1, 2)
    assert queue.ahead(1.101) == pytest.approx(500 - PROGRESS_SHARE * 200)


def test_equal_prompts_that_wait_are_known_by_worker_until_they_are_answered_or_gone() -> None:
    state = WorkState()
    one, two = state.queue("one"), state.queue("two")
    one.started(key(1), Waiting(100, whole=7), 0.0)
    one.started(key(2), Waiting(100, whole=7), 0.0)
    two.started(key(3), Waiting(100, whole=7), 0.0)
    two.started(key(4), Waiting(100, whole=8), 0.0)
    assert state.twins == {7: {"one": 2, "two": 1}, 8: {"two": 1}}
    one.first_byte(key(1), 1.0)
    two.ended(key(3), 1.0)
    assert state.twins == {7: {"one": 1}, 8: {"two": 1}}
    state.remove("two")
    one.reset()
    assert not state.twins


@given(st.lists(st.floats(0.0, 2.0), min_size=1, max_size=30))
def test_the_bound_holds_until_the_next_event(steps: list[float]) -> None:
    queue = fresh()
    now = 0.0
    queue.started(key(0), Waiting(1_000), now)
    queue.first_byte(key(0), now + 0.1)
    for number, step in enumerate(steps, 1):
        now += step
        queue.started(key(number), Waiting(700 * number), now)
        if number % 3 == 0:
            queue.first_byte(next(iter(queue.waiting)), now)
        for later in (0.0, 0.5, 100.0):
            assert queue.ahead(now + later) >= queue.at_least()


@pytest.mark.parametrize(
    ("uncached", "tokens", "weighs"), [(10, 10, 1_000), (600, 600, 1_000), (2_000, 2_000, 2_000), (16, 2_000, 16)]
)
def test_a_request_that_waits_weighs_what_it_will_when_it_decodes_unless_it_follows_another(
    uncached: int, tokens: int, weighs: int
) -> None:
    assert uncached + DECODING_TOKENS * lighter(uncached, tokens) == pytest.approx(weighs)


def test_those_who_wait_are_lighter_until_they_decode() -> None:
    queue = fresh()
    queue.started(key(1), Waiting(100, lighter=0.5), 0.0)
    queue.started(key(2), Waiting(100, lighter=0.25), 0.0)
    assert queue.decoding == 0.75
    queue.first_byte(key(1), 1.0)
    assert queue.decoding == 1.25
    queue.first_byte(key(2), 1.0)
    assert queue.decoding == 2
    queue.ended(key(1), 2.0)
    queue.ended(key(2), 2.0)
    assert queue.decoding == 0
