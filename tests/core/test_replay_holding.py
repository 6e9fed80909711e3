"""Requests that a replay's router keeps while every worker has much to compute."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

import pytest

from router.replay.catalogue import rule_of
from router.replay.fleet import Fleet, Scenario
from router.replay.generate import generate
from router.replay.holding import LOOK_SECONDS, Gate, Hold
from router.replay.trace import Request
from router.replay.worker import Job


class Bench:
    """A gate before one worker with `queued` tokens; time passes by `until`."""

    def __init__(self, hold: Hold) -> None:
        self.queued = 0.0
        self.placed: list[tuple[int, float]] = []
        self._later: list[tuple[float, int, Callable[[float], None]]] = []
        self.gate = Gate(hold, self, self._place, self._at)

    def least_queued(self, now: float) -> float:
        return self.queued

    def service_seconds(self, job: Job, now: float) -> float:
        return job.request.prompt_tokens / 1_000

    def arrive(self, number: int, tokens: int, now: float) -> None:
        self.gate.arrive(Job(number, Request(now, (), tokens, 1), tokens), now)

    def until(self, end: float) -> None:
        while self._later and self._later[0][0] <= end:
            at, _, act = heapq.heappop(self._later)
            act(at)

    def _place(self, job: Job, now: float) -> None:
        job.worker = 0
        self.placed.append((job.number, now))
        self.queued += job.request.prompt_tokens

    def _at(self, time: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._later, (time, len(self._later) + len(self.placed) * 1_000, act))


def test_nothing_is_held_while_a_worker_has_room() -> None:
    bench = Bench(Hold(4_096))
    bench.arrive(1, 4_096, 0.0)
    bench.arrive(2, 100, 0.0)
    assert bench.placed == [(1, 0.0), (2, 0.0)]
    bench.arrive(3, 100, 0.0)
    assert len(bench.placed) == 2


def test_the_soonest_to_be_served_goes_first_once_there_is_room() -> None:
    bench = Bench(Hold(4_096))
    bench.queued = 9_000
    bench.arrive(1, 3_000, 0.0)
    bench.arrive(2, 500, 1.0)
    bench.arrive(3, 2_500, 1.0)
    bench.queued = 3_000
    bench.gate.look(2.0)
    assert bench.placed == [(2, 2.0), (1, 2.0)]  # due at 1.5, 3.0 and 3.5; then the queue is full again
    bench.queued = 0
    bench.until(2.0 + LOOK_SECONDS)
    assert [number for number, _ in bench.placed] == [2, 1, 3]


def test_nobody_is_held_for_longer_than_allowed() -> None:
    bench = Bench(Hold(4_096, seconds=0.5))
    bench.queued = 9_000
    bench.arrive(1, 5_000, 0.0)
    bench.arrive(2, 100, 0.2)
    bench.until(0.6)
    assert bench.placed == [(1, 0.5)]
    bench.until(1.0)
    assert bench.placed == [(1, 0.5), (2, 0.7)]


def test_of_too_many_the_newest_are_not_held() -> None:
    bench = Bench(Hold(4_096, most=2))
    bench.queued = 9_000
    for number in range(4):
        bench.arrive(number, 100, 0.0)
    assert bench.placed == [(2, 0.0), (3, 0.0)]


@pytest.mark.parametrize("replicas", [1, 2])
def test_every_request_is_served_whole_though_it_was_held(replicas: int) -> None:
    trace = generate("mix", 150, 2)
    hold = Hold(500.0, seconds=2.0)
    scenario = Scenario(workers=2, replicas=replicas, pace=0.02, hold=hold)
    jobs = Fleet(trace, rule_of("work"), scenario).run()
    assert all(job.arrived <= job.first <= job.ended < math.inf and job.worker >= 0 for job in jobs)
    other = Fleet(trace, rule_of("work"), Scenario(workers=2, replicas=replicas, pace=0.02)).run()
    assert [job.first for job in jobs] != [job.first for job in other]


def test_only_the_products_policies_hold() -> None:
    trace = generate("mix", 100, 2)
    runs = [
        [job.first for job in Fleet(trace, rule_of("dynamo"), Scenario(workers=2, pace=0.02, hold=hold)).run()]
        for hold in (Hold(), Hold(1.0))
    ]
    assert runs[0] == runs[1]
