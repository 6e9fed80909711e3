from __future__ import annotations

import pytest

from router.settings import HealthSettings
from router.workers import passive
from router.workers.health import Event, State
from router.workers.registry import Facts, Lease, Model, Registry, Worker

HEALTH = HealthSettings(eject_after=5, eject_seconds=10, eject_max_seconds=60)
NOW = 1000.0


def fleet(count: int, state: State = State.READY) -> tuple[Registry, list[Worker]]:
    registry = Registry()
    workers = [registry.add(f"http://w{n}:1", slots=8) for n in range(count)]
    for worker in workers:
        registry.learn(worker, Facts(models={"m": Model("m", b"{}")}))
        worker.state = state
    return registry, workers


def fail(registry: Registry, worker: Worker, now: float, times: int = 1, draw: float = 0.0) -> bool:
    return [passive.failed(registry, worker, now, HEALTH, draw) for _ in range(times)][-1]


def state_of(worker: Worker) -> State:
    return worker.state


def test_failures_in_a_row_eject_and_an_answer_in_between_begins_anew() -> None:
    registry, [worker] = fleet(1)
    assert not fail(registry, worker, NOW, 4)
    passive.served(registry, worker, NOW)
    assert not fail(registry, worker, NOW, 4)
    assert state_of(worker) is State.READY
    assert fail(registry, worker, NOW)
    assert state_of(worker) is State.EJECTED
    assert worker.last_served == NOW


def test_an_ejected_worker_gets_no_further_ejection_from_requests_that_were_on_their_way() -> None:
    registry, [worker] = fleet(1)
    fail(registry, worker, NOW, 5)
    until = worker.until
    assert not fail(registry, worker, NOW + 5, 20)
    assert worker.until == until
    passive.served(registry, worker, NOW + 5)
    assert state_of(worker) is State.EJECTED


def test_the_draw_spreads_returns_by_a_tenth_and_never_shortens() -> None:
    registry, workers = fleet(2)
    fail(registry, workers[0], NOW, 5, draw=0.0)
    fail(registry, workers[1], NOW, 5, draw=0.999)
    assert workers[0].until == NOW + 10
    assert NOW + 10.9 < workers[1].until < NOW + 11


def test_an_ejection_ends_in_probation_and_one_request_decides() -> None:
    registry, [worker] = fleet(1)
    fail(registry, worker, NOW, 5)
    passive.tick(registry, NOW + 9.9)
    assert state_of(worker) is State.EJECTED
    passive.tick(registry, NOW + 10)
    assert state_of(worker) is State.PROBATION
    passive.served(registry, worker, NOW + 11)
    assert state_of(worker) is State.READY
    assert worker.strikes == 0


def test_ejections_in_a_row_last_longer_up_to_the_limit() -> None:
    registry, [worker] = fleet(1)
    now, spans = NOW, []
    fail(registry, worker, now, 5)
    for _ in range(8):
        spans.append(worker.until - now)
        now = worker.until
        passive.tick(registry, now)
        assert fail(registry, worker, now)
        assert state_of(worker) is State.EJECTED
    assert spans == [10, 20, 30, 40, 50, 60, 60, 60]


def test_a_flapping_worker_is_away_longer_each_time_although_it_serves_in_between() -> None:
    registry, [worker] = fleet(1)
    now, spans = NOW, []
    for _ in range(4):
        fail(registry, worker, now, 5)
        spans.append(worker.until - now)
        now = worker.until
        passive.tick(registry, now)
        passive.served(registry, worker, now)
        now += 5
    assert spans == [10, 20, 30, 40]


def test_a_long_while_of_health_forgets_one_ejection_after_another() -> None:
    registry, [worker] = fleet(1)
    worker.ejections = 4
    worker.until = NOW
    fail(registry, worker, NOW + 120, 5)
    assert worker.ejections == 3
    worker.state, worker.strikes = State.READY, 0
    fail(registry, worker, NOW + 1e6, 5)
    assert worker.ejections == 1


def test_a_first_fall_costs_nothing_and_further_ones_put_the_return_off() -> None:
    _, [worker] = fleet(1)
    passive.fell(worker, NOW, HEALTH)
    assert worker.until == NOW
    passive.fell(worker, NOW + 10, HEALTH)
    assert worker.until == NOW + 20
    for _ in range(9):
        passive.fell(worker, NOW + 30, HEALTH)
    assert worker.until == NOW + 60


def test_a_worker_that_fails_at_once_is_left_after_a_few_requests() -> None:
    """P30: least-loaded is drawn to it, for it is always free."""
    registry, workers = fleet(3)
    hits = 0
    for n in range(100):
        chosen = min(passive.candidates(registry, "m", NOW + n * 0.02), key=lambda worker: worker.load)
        if chosen is workers[0]:
            hits += 1
            fail(registry, chosen, NOW + n * 0.02)
        else:
            passive.served(registry, chosen, NOW)
    assert hits == 5


# -- candidates ------------------------------------------------------------------------------------------------


def test_the_usable_workers_of_the_model_are_candidates() -> None:
    registry, [a, b, c, d] = fleet(4)
    b.state = State.UNREADY
    registry.set_draining(c, True)
    registry.learn(d, Facts(models={"other": Model("other", b"{}")}))
    assert passive.candidates(registry, "m", NOW) == [a]
    assert passive.candidates(registry, "other", NOW) == [d]
    assert passive.candidates(registry, "nobody", NOW) == []


def test_a_worker_on_probation_is_one_candidate_for_one_request() -> None:
    registry, [a, b] = fleet(2)
    b.state = State.PROBATION
    assert passive.candidates(registry, "m", NOW) == [a, b]
    Lease(registry, b)
    assert passive.candidates(registry, "m", NOW) == [a]


@pytest.mark.parametrize("state", [State.EJECTED, State.UNREADY, State.PROBATION])
def test_the_last_worker_is_asked_whatever_its_state(state: State) -> None:
    registry, [worker] = fleet(1, state)
    worker.probation_busy = True
    assert passive.candidates(registry, "m", NOW) == [worker]


def test_if_none_is_well_the_likeliest_are_asked() -> None:
    registry, [ejected, busy, silent, gone] = fleet(4, State.UNREADY)
    ejected.state = State.EJECTED
    busy.last_served = NOW - 1
    silent.last_served = NOW - 100
    gone.refused = True
    expected = [[ejected, busy], [silent], [gone], []]
    for ranked in expected:
        assert passive.candidates(registry, "m", NOW) == ranked
        for worker in ranked:
            registry.remove(worker)


def test_workers_that_cannot_serve_are_not_even_the_last_resort() -> None:
    registry, [draining, asleep, starting, removed] = fleet(4, State.UNREADY)
    registry.set_draining(draining, True)
    asleep.asleep = True
    starting.state = State.STARTING
    registry.remove(removed)
    assert passive.candidates(registry, "m", NOW) == []


def test_a_worker_that_returns_ends_the_last_resort() -> None:
    registry, [a, b] = fleet(2, State.UNREADY)
    assert passive.candidates(registry, "m", NOW) == [a, b]
    registry.feed(b, Event.UP)
    assert passive.candidates(registry, "m", NOW) == [b]


@pytest.mark.parametrize(("after", "seconds", "most"), [(1, 4.0, 6.0), (3, 7.0, 100.0)])
def test_when_and_for_how_long_is_as_the_settings_say(after: int, seconds: float, most: float) -> None:
    settings = HealthSettings(eject_after=after, eject_seconds=seconds, eject_max_seconds=most)
    registry, [worker] = fleet(1)
    assert not any(passive.failed(registry, worker, NOW, settings, 0.0) for _ in range(after - 1))
    assert passive.failed(registry, worker, NOW, settings, 0.0)
    assert worker.until == NOW + seconds
    passive.tick(registry, worker.until)
    assert state_of(worker) is State.PROBATION
    assert passive.failed(registry, worker, worker.until, settings, 0.0)
    assert worker.until == NOW + seconds + min(2 * seconds, most)


@pytest.mark.parametrize(("falls", "off"), [(1, 0.0), (2, 4.0), (3, 5.0), (9, 5.0)])
def test_a_return_from_failed_probes_is_put_off_by_half_the_most_at_most(falls: int, off: float) -> None:
    settings = HealthSettings(eject_seconds=4, eject_max_seconds=10)
    _, [worker] = fleet(1)
    for _ in range(falls):
        worker.until = NOW
        passive.fell(worker, NOW, settings)
    assert worker.until == NOW + off
