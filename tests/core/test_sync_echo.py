"""Own statements that come back show that news passes both ways, and how fast."""

from __future__ import annotations

from router.sync_echo import MOST, Echoes


def test_the_lag_is_that_of_the_last_one_or_of_one_that_takes_longer() -> None:
    echoes = Echoes()
    assert echoes.lag(0.0) is None
    echoes.left(1, 10.0)
    assert echoes.lag(10.5) == 0.5
    assert echoes.came(1, 11.0)
    assert echoes.lag(50.0) == 1.0
    echoes.left(2, 60.0)
    assert echoes.lag(60.25) == 1.0
    assert echoes.lag(63.0) == 3.0


def test_silence_lasts_from_the_last_one_that_came_back() -> None:
    echoes = Echoes()
    assert echoes.silent(5.0) == float("inf")
    echoes.left(1, 5.0)
    assert echoes.came(1, 6.0)
    assert echoes.silent(8.0) == 2.0


def test_only_what_was_waited_for_counts_and_only_once() -> None:
    echoes = Echoes()
    echoes.left(1, 0.0)
    assert not echoes.came(7, 1.0)
    assert echoes.came(1, 1.0)
    assert not echoes.came(1, 2.0)
    assert echoes.silent(3.0) == 2.0


def test_one_that_comes_back_ends_the_wait_for_those_before_it() -> None:
    echoes = Echoes()
    for sequence in (1, 2, 3):
        echoes.left(sequence, float(sequence))
    assert echoes.came(2, 5.0)
    assert len(echoes) == 1
    assert echoes.came(3, 6.0)
    assert len(echoes) == 0


def test_no_more_than_some_are_waited_for_and_none_after_a_loss() -> None:
    echoes = Echoes()
    for sequence in range(MOST + 5):
        echoes.left(sequence, 0.0)
    assert len(echoes) == MOST
    assert not echoes.came(0, 1.0)
    echoes.clear()
    assert len(echoes) == 0
    assert not echoes.came(MOST, 1.0)
