from __future__ import annotations

import itertools

import pytest

from router.workers.health import TABLE, Event, State, after

S, E = State, Event

# Every cell that leads elsewhere; all others stay.
MOVES = {
    (S.STARTING, E.UP): S.READY,
    (S.READY, E.DOWN): S.UNREADY,
    (S.READY, E.STRUCK_OUT): S.EJECTED,
    (S.UNREADY, E.UP): S.READY,
    (S.EJECTED, E.COOLED): S.PROBATION,
    (S.EJECTED, E.DOWN): S.UNREADY,
    (S.PROBATION, E.SERVED): S.READY,
    (S.PROBATION, E.FAILED): S.EJECTED,
    (S.PROBATION, E.DOWN): S.UNREADY,
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_state_with_every_event(state: State, event: Event) -> None:
    assert after(state, event) is MOVES.get((state, event), state)


def test_the_table_has_no_cell_without_effect() -> None:
    assert set(TABLE) == set(State)
    assert all(target is not state for state, row in TABLE.items() for target in row.values())


def test_every_state_can_be_left_and_all_but_the_first_reached_again() -> None:
    reachable = {state: set(row.values()) for state, row in TABLE.items()}
    assert all(reachable.values())
    for start in State:
        seen = {start}
        while grown := {target for state in seen for target in reachable[state]} - seen:
            seen |= grown
        assert S.READY in seen


def test_a_passing_probe_ends_neither_ejection_nor_probation() -> None:
    assert after(S.EJECTED, E.UP) is S.EJECTED
    assert after(S.PROBATION, E.UP) is S.PROBATION
