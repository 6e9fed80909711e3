from __future__ import annotations

from collections.abc import Callable

import pytest

from router.settings import HealthSettings
from router.workers.discovery import MetricsFacts
from router.workers.health import Event, State, after
from router.workers.watch import Lives, Streak, Verdict

HEALTH = HealthSettings(fall=3, rise=2)
G, B, S, R, A, V = Verdict.GOOD, Verdict.BAD, Verdict.SLOW, Verdict.REFUSED, Verdict.ASLEEP, Verdict.VOID


def walk(state: State, *verdicts: Verdict, busy: bool = False, held: bool = False) -> State:
    streak = Streak()
    for verdict in verdicts:
        event = streak.judge(verdict, state, HEALTH, busy=busy, held=held)
        state = after(state, event) if event else state
    return state


@pytest.mark.parametrize(
    ("state", "verdicts", "expected"),
    [
        (State.STARTING, [G], State.READY),
        (State.STARTING, [R, R, R, R, B, G], State.READY),
        (State.UNREADY, [G], State.UNREADY),
        (State.UNREADY, [G, B, G], State.UNREADY),
        (State.UNREADY, [G, V, G], State.READY),
        (State.READY, [B, S], State.READY),
        (State.READY, [B, S, G, S, B], State.READY),
        (State.READY, [B, S, B], State.UNREADY),
        (State.READY, [S, S, S], State.UNREADY),
        (State.READY, [R], State.READY),
        (State.READY, [R, B], State.READY),
        (State.READY, [R, R], State.UNREADY),
        (State.READY, [A], State.UNREADY),
        (State.READY, [V] * 20, State.READY),
        (State.EJECTED, [G] * 9, State.EJECTED),
        (State.PROBATION, [G] * 9, State.PROBATION),
        (State.EJECTED, [R, R], State.UNREADY),
    ],
)
def test_thresholds(state: State, verdicts: list[Verdict], expected: State) -> None:
    assert walk(state, *verdicts) is expected


def test_a_busy_worker_may_be_slow_but_not_broken() -> None:
    assert walk(State.READY, *[S] * 9, busy=True) is State.READY
    assert walk(State.READY, B, B, B, busy=True) is State.UNREADY
    assert walk(State.READY, R, R, busy=True) is State.UNREADY


def test_slow_probes_of_a_busy_worker_count_once_it_has_fallen_silent() -> None:
    streak = Streak()
    for _ in range(5):
        assert streak.judge(S, State.READY, HEALTH, busy=True, held=False) is None
    assert streak.judge(S, State.READY, HEALTH, busy=False, held=False) is Event.DOWN


def test_a_return_that_is_put_off_comes_as_soon_as_it_may() -> None:
    streak = Streak()
    for _ in range(5):
        assert streak.judge(G, State.UNREADY, HEALTH, busy=False, held=True) is None
    assert streak.judge(G, State.UNREADY, HEALTH, busy=False, held=False) is Event.UP


def test_probes_come_sooner_where_an_answer_is_awaited() -> None:
    streak = Streak()

    def after_probe(verdict: Verdict, state: State) -> float:
        streak.judge(verdict, state, HEALTH, busy=False, held=False)
        return streak.pause(state, 5.0)

    assert [after_probe(R, State.STARTING) for _ in range(7)] == [0.25, 0.5, 1, 2, 4, 5, 5]
    assert after_probe(G, State.READY) == 5
    assert after_probe(S, State.READY) == 5
    assert after_probe(R, State.READY) == 0.25
    assert [after_probe(R, State.UNREADY) for _ in range(6)] == [1, 2, 4, 5, 5, 5]
    assert after_probe(G, State.UNREADY) == 1


def test_pauses_have_a_bound_and_probes_that_tell_nothing_do_not_hurry() -> None:
    streak = Streak()
    streak.judge(V, State.STARTING, HEALTH, busy=False, held=False)
    assert streak.pause(State.STARTING, 5.0) == 5
    streak.bad = 10**9
    assert streak.pause(State.STARTING, 5.0) == 5


# -- epochs ----------------------------------------------------------------------------------------------------


def started(at: float, tokens: float | None = None) -> MetricsFacts:
    return MetricsFacts(started=at, prompt_tokens=tokens)


NOTHING = MetricsFacts()


def test_the_first_start_time_is_the_epoch_and_does_not_repeat() -> None:
    lives = Lives()
    assert lives.epoch(started(100), 0.0, 500) == 100
    assert lives.epoch(started(100), 100.0, 505) is None


def test_a_new_start_time_is_a_new_epoch() -> None:
    lives = Lives()
    lives.epoch(started(100), 0.0, 500)
    assert lives.epoch(started(503.5), 100.0, 505) == 503.5


def test_a_start_time_that_another_replica_has_reported_is_no_news() -> None:
    assert Lives().epoch(started(100), 100.0, 500) is None


def test_without_start_times_the_epoch_stays_unknown_until_a_restart_is_seen() -> None:
    lives = Lives()
    lives.lost()
    assert lives.epoch(NOTHING, 0.0, 500) is None
    assert lives.epoch(NOTHING, 0.0, 505) is None
    lives.lost()
    assert lives.epoch(NOTHING, 0.0, 510) == 510
    assert lives.epoch(NOTHING, 510.0, 515) is None


def test_a_restart_that_another_replica_has_reported_is_not_reported_again() -> None:
    lives = Lives()
    lives.epoch(NOTHING, 0.0, 500)
    lives.lost()
    assert lives.epoch(NOTHING, 504.0, 505) is None


def test_an_outage_of_a_worker_with_the_same_start_time_is_no_restart() -> None:
    lives = Lives()
    lives.epoch(started(100), 0.0, 500)
    lives.lost()
    assert lives.epoch(started(100), 100.0, 520) is None


def prompted(tokens: float) -> MetricsFacts:
    return MetricsFacts(prompt_tokens=tokens)


def queried(tokens: float) -> MetricsFacts:
    return MetricsFacts(cache_queries=tokens)


@pytest.mark.parametrize("counter", [prompted, queried])
def test_counters_that_fall_are_a_restart_where_no_start_time_is_shown(
    counter: Callable[[float], MetricsFacts],
) -> None:
    lives = Lives()
    assert lives.epoch(counter(50), 0.0, 500) is None
    assert lives.epoch(counter(70), 0.0, 505) is None
    assert lives.epoch(NOTHING, 0.0, 510) is None
    assert lives.epoch(counter(5), 0.0, 515) == 515
    assert lives.epoch(counter(6), 515.0, 520) is None


def test_counters_that_fall_under_the_same_start_time_are_not() -> None:
    lives = Lives()
    lives.epoch(started(100, 50), 0.0, 500)
    assert lives.epoch(started(100, 5), 100.0, 505) is None


def test_a_worker_whose_clock_is_behind_still_restarts() -> None:
    lives = Lives()
    lives.epoch(started(100), 0.0, 500)
    assert lives.epoch(started(90), 100.0, 505) == 505


def test_sleep_empties_the_cache() -> None:
    lives = Lives()
    lives.epoch(started(100), 0.0, 500)
    lives.slept()
    assert lives.epoch(started(100), 100.0, 600) == 600
    assert lives.epoch(started(100), 600.0, 605) is None
    assert lives.epoch(started(700), 600.0, 705) == 700


def test_an_address_that_leads_to_two_processes_is_not_a_restart_at_every_probe() -> None:
    lives = Lives()
    epoch = 0.0
    offers = 0
    for n in range(20):
        offer = lives.epoch(started(100 + n % 2), epoch, 500 + 5 * n)
        offers += offer is not None
        epoch = max(epoch, offer or 0.0)
    assert offers == 2
    assert epoch == 101
