"""The life of a worker as a router sees it: one table of states and events, nothing else.

The table knows neither clocks nor thresholds. Probes and requests are counted by the caller, which feeds an event when
a threshold is crossed; a missing cell means that the event changes nothing.
"""

from __future__ import annotations

import enum


class State(enum.StrEnum):
    """Where a worker stands."""

    STARTING = "starting"
    READY = "ready"
    UNREADY = "unready"
    EJECTED = "ejected"
    PROBATION = "probation"


class Event(enum.StrEnum):
    """What can happen to it."""

    UP = "up"  # enough probes in a row passed, and its models are known
    DOWN = "down"  # enough probes in a row failed
    STRUCK_OUT = "struck_out"  # enough requests in a row failed by the worker's fault
    COOLED = "cooled"  # its ejection has lasted long enough
    SERVED = "served"  # a request was answered
    FAILED = "failed"  # a request failed by the worker's fault


TABLE: dict[State, dict[Event, State]] = {
    State.STARTING: {Event.UP: State.READY},
    State.READY: {Event.DOWN: State.UNREADY, Event.STRUCK_OUT: State.EJECTED},
    State.UNREADY: {Event.UP: State.READY},
    # A passing probe does not end an ejection: a worker can look healthy and still break every request.
    State.EJECTED: {Event.COOLED: State.PROBATION, Event.DOWN: State.UNREADY},
    # One real request decides.
    State.PROBATION: {Event.SERVED: State.READY, Event.FAILED: State.EJECTED, Event.DOWN: State.UNREADY},
}


def after(state: State, event: Event) -> State:
    """The state that an event leads to."""
    return TABLE[state].get(event, state)
