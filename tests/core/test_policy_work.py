"""The rule that chooses by work, and what it keeps of every worker."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.policy_work import (
    ASSUMED_RATE,
    PROGRESS_SHARE,
    RATE_KEEP,
    Key,
    Standing,
    Waiting,
    WorkState,
    choose_work,
    terms,
)

INTERVAL = 60.0


def standing(
    worker: str = "a",
    load: int = 0,
    queued: float = 0.0,
    uncached: int = 1_000,
    decoding: int = 0,
    fill: float = 0.0,
    oldest: float = math.inf,
) -> Standing:
    return Standing(worker, load, queued, uncached, decoding, fill, oldest)


def order(worker: str) -> int:
    return ord(worker[0])


def chosen(*standings: Standing) -> str:
    return standings[choose_work(standings, INTERVAL, order)].worker


# -- the choice ------------------------------------------------------------------------------------------------


def test_the_holder_wins_while_its_queue_is_shorter_than_the_prefill_it_saves() -> None:
    saved = 8_000
    for extra, winner in ((9_999, "holder"), (10_001, "free")):
        holder = standing("holder", load=3, queued=extra, uncached=2_000)
        free = standing("free", queued=0, uncached=2_000 + saved)
        assert chosen(holder, free) == winner


def test_a_long_prompt_counts_as_the_work_it_is() -> None:
    assert chosen(standing("a", load=1, queued=100_000), standing("b", load=5, queued=4_000, decoding=4)) == "b"


def test_those_who_decode_count_a_thousand_tokens_each() -> None:
    assert chosen(standing("a", decoding=3), standing("b", queued=2_999)) == "b"
    assert chosen(standing("a", decoding=3), standing("b", queued=3_001)) == "a"


def test_equal_scores_go_to_the_freer_worker_then_to_the_order_all_share() -> None:
    assert chosen(standing("a", load=2), standing("b", load=1)) == "b"
    assert chosen(standing("a", load=1), standing("c", load=1), standing("b", load=1)) == "c"
    assert chosen(standing("c", load=1), standing("b", load=1), standing("a", load=1)) == "c"


def test_a_full_cache_costs_what_the_prompt_pushes_out_by_how_young_that_is() -> None:
    young = standing(fill=0.95, oldest=0.0)
    assert terms(young, INTERVAL).evicting == young.uncached
    assert terms(standing(fill=0.95, oldest=3 * INTERVAL), INTERVAL).evicting == pytest.approx(1_000 / math.e)
    assert terms(standing(fill=0.89, oldest=0.0), INTERVAL).evicting == 0.0
    assert chosen(standing("b", fill=0.95, oldest=1.0), standing("a", fill=0.5, oldest=1.0)) == "a"


@given(
    st.lists(
        st.builds(
            standing,
            st.sampled_from("abcdefgh"),
            st.integers(0, 9),
            st.floats(0, 1e6),
            st.integers(0, 200_000),
            st.integers(0, 64),
            st.floats(0, 1),
            st.floats(0, 1e4),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_the_choice_has_the_smallest_sum_of_the_terms_shown(found: list[Standing]) -> None:
    scores = [terms(one, INTERVAL).score for one in found]
    assert scores[choose_work(found, INTERVAL, order)] == pytest.approx(min(scores))


# -- what is kept of every worker ------------------------------------------------------------------------------


def key(number: int, sender: str = "me") -> Key:
    return sender, number


def test_the_queue_is_what_waits_for_its_first_byte() -> None:
    state = WorkState()
    assert state.queued("w", 0.0) == 0.0
    state.started("w", key(1), 3_000, 0.0)
    state.started("w", key(2), 500, 0.0)
    assert (state.queued("w", 0.0), state.waiting("w"), state.decoding("w")) == (3_500, 2, 0)
    state.first_byte("w", key(1), 1.0)
    assert (state.queued("w", 1.0), state.waiting("w"), state.decoding("w")) == (500, 1, 1)
    state.ended("w", key(1), 2.0)
    state.ended("w", key(2), 2.0)
    assert (state.queued("w", 2.0), state.waiting("w"), state.decoding("w")) == (0, 0, 0)


def test_the_rate_is_learned_from_the_times_between_first_bytes() -> None:
    state = WorkState()
    state.started("w", key(1), 4_000, 10.0)
    state.started("w", key(2), 2_000, 10.5)
    assert state.rate("w") == 0.0
    state.first_byte("w", key(1), 12.0)
    assert state.rate("w") == pytest.approx(2_000)
    state.first_byte("w", key(2), 12.5)
    assert state.rate("w") == pytest.approx((4_000 * RATE_KEEP + 2_000) / (2.0 * RATE_KEEP + 0.5))
    # A queue that was empty for a while is no slow one.
    state.started("w", key(3), 1_000, 100.0)
    state.first_byte("w", key(3), 100.25)
    assert state.rate("w") > 2_000


def test_progress_of_the_head_is_bounded_by_its_own_tokens() -> None:
    state = WorkState()
    state.started("w", key(1), 1_000, 0.0)
    state.first_byte("w", key(1), 1.0)
    state.started("w", key(2), 2_000, 1.0)
    state.started("w", key(3), 5_000, 1.0)
    assert state.queued("w", 1.0) == 7_000
    assert state.queued("w", 2.0) == pytest.approx(7_000 - PROGRESS_SHARE * 1_000)
    assert state.queued("w", 60.0) == 5_000


def test_a_head_that_goes_away_leaves_the_next_at_its_begin() -> None:
    state = WorkState()
    state.started("w", key(1), 1_000, 0.0)
    state.first_byte("w", key(1), 1.0)
    state.started("w", key(2), 2_000, 1.0)
    state.started("w", key(3), 5_000, 1.0)
    state.ended("w", key(2), 4.0)
    assert state.queued("w", 4.0) == 5_000
    assert state.rate("w") == pytest.approx(1_000)


def test_silent_requests_are_computed_before_those_that_came_later() -> None:
    state = WorkState()
    state.started("w", key(1), 3_000, 0.0, silent=True)
    state.started("w", key(2), 1_000, 0.0)
    state.first_byte("w", key(2), 1.0)
    assert (state.waiting("w"), state.decoding("w")) == (0, 2)
    assert state.rate("w") == pytest.approx(4_000)


def test_the_end_of_a_silent_request_teaches_no_rate() -> None:
    state = WorkState()
    state.started("w", key(1), 1_000, 0.0)
    state.first_byte("w", key(1), 1.0)
    state.started("w", key(2), 1_000, 1.0, silent=True)
    state.first_byte("w", key(2), 31.0)
    assert state.rate("w") == pytest.approx(1_000)
    assert (state.waiting("w"), state.decoding("w")) == (0, 2)


def test_a_silent_head_counts_as_computed_when_its_time_is_over() -> None:
    state = WorkState()
    state.started("w", key(1), 4_000, 0.0, silent=True)
    state.started("w", key(2), 4_000, 0.0, silent=True)
    each = 4_000 / (PROGRESS_SHARE * ASSUMED_RATE)
    assert state.queued("w", 0.99 * each) == 8_000
    assert state.queued("w", 1.01 * each) == 4_000
    assert state.decoding("w") == 1
    assert state.queued("w", 2.01 * each) == 0
    assert state.rate("w") == 0.0


def test_news_that_never_came_is_made_good() -> None:
    state = WorkState()
    state.started("w", key(1, "other"), 1_000, 0.0)
    state.started("w", key(2, "other"), 2_000, 0.0)
    state.started("w", key(1, "me"), 4_000, 0.0)
    told: dict[Key, Waiting | None] = {key(2, "other"): None, key(3, "other"): Waiting(500)}
    state.restate("w", "other", told, 1.0)
    assert (state.queued("w", 1.0), state.waiting("w"), state.decoding("w")) == (4_500, 2, 1)
    assert state.open_at("w", "other") == told
    state.drop("other", 2.0)
    assert (state.queued("w", 2.0), state.waiting("w"), state.decoding("w")) == (4_000, 1, 0)


def test_a_first_byte_of_an_unknown_request_is_one_that_decodes() -> None:
    state = WorkState()
    state.first_byte("w", key(7), 1.0)
    assert state.decoding("w") == 1
    state.ended("w", key(7), 2.0)
    state.ended("w", key(7), 2.0)
    state.ended("nobody", key(7), 2.0)
    assert state.decoding("w") == 0


def test_a_new_life_forgets_queue_and_rate() -> None:
    state = WorkState()
    state.started("w", key(1), 1_000, 0.0)
    state.first_byte("w", key(1), 1.0)
    state.forget("w")
    assert (state.decoding("w"), state.rate("w")) == (0, 0.0)
    assert not state.workers()


def test_the_interval_follows_real_re_use_only() -> None:
    state = WorkState()
    state.reused(160.0, 0.49)
    assert state.interval == 60.0
    state.reused(160.0, 0.5)
    assert state.interval == pytest.approx(62.0)


@given(st.lists(st.tuples(st.sampled_from(["start", "first", "end"]), st.integers(0, 9), st.booleans()), max_size=80))
def test_nothing_is_left_when_all_have_ended(events: list[tuple[str, int, bool]]) -> None:
    state = WorkState()
    known: dict[int, int] = defaultdict(int)
    for now, (what, number, silent) in enumerate(events):
        if what == "start" and not known[number]:
            known[number] = 100 * (number + 1)
            state.started("w", key(number), known[number], now, silent=silent)
        elif what == "first" and known[number]:
            state.first_byte("w", key(number), now)
        elif what == "end":
            known[number] = 0
            state.ended("w", key(number), now)
        in_flight = sum(1 for tokens in known.values() if tokens)
        assert 0.0 <= state.queued("w", now) <= sum(known.values())
        assert state.waiting("w") + state.decoding("w") == in_flight
    for number in known:
        state.ended("w", key(number), 1_000.0)
    assert (state.queued("w", 1_000.0), state.waiting("w"), state.decoding("w")) == (0.0, 0, 0)
