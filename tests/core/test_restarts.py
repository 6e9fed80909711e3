"""A process that dies is started again: at once, later, or never."""

from __future__ import annotations

from router.restarts import FIRST_SECONDS, HOPELESS, LAST_SECONDS, LONG_LIFE_SECONDS, OFTEN, Restarts


def test_after_a_long_life_it_is_started_at_once() -> None:
    restarts = Restarts()
    assert restarts.died(LONG_LIFE_SECONDS) == 0
    assert not restarts.often


def test_short_lives_are_waited_for_ever_longer_up_to_a_bound() -> None:
    restarts = Restarts()
    delays = [restarts.died(0.0) for _ in range(40)]
    assert delays[0] == FIRST_SECONDS
    assert delays[1] == 2 * FIRST_SECONDS
    assert delays == sorted(delays)
    assert delays[-1] == LAST_SECONDS


def test_it_is_told_when_a_process_dies_often_and_when_that_is_hopeless() -> None:
    restarts = Restarts()
    often, hopeless = [], []
    for _ in range(HOPELESS):
        restarts.died(1.0)
        often.append(restarts.often)
        hopeless.append(restarts.hopeless)
    assert often.index(True) == OFTEN - 1
    assert hopeless == [False] * (HOPELESS - 1) + [True]


def test_one_long_life_makes_up_for_all_short_ones() -> None:
    restarts = Restarts()
    for _ in range(HOPELESS):
        restarts.died(0.0)
    restarts.died(LONG_LIFE_SECONDS + 1)
    assert not restarts.often
    assert not restarts.hopeless
    assert restarts.died(0.0) == FIRST_SECONDS
