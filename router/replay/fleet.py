"""The events of a replay: requests arrive, engines step, news travels between replicas."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from router.replay.holding import Gate, Hold
from router.replay.product import ProductRule
from router.replay.rules import Event, MakeRule, News, Rule, Setting
from router.replay.trace import Trace
from router.replay.worker import Engine, Job, ModelledWorker


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything of a replay but the trace and the rule; seconds.

    `pace` multiplies the recorded times of arrival; think times stay. `loss` is the share of news lost, for each
    request's event and receiver. `estimate_error` is the standard deviation of the logarithm of estimated over true
    tokens, `capacity_factor` what rules believe a cache to hold over what it holds, `silent` the share of requests that
    are not streamed. `hold`: what makes the product's policies hold requests back, which is for ever off by default.
    """

    workers: int = 8
    engine: Engine = field(default_factory=Engine)
    pace: float = 1.0
    replicas: int = 1
    delay: float = 0.0
    loss: float = 0.0
    heartbeat: float = 1.0
    estimate_error: float = 0.0
    capacity_factor: float = 1.0
    silent: float = 0.0
    hold: Hold = field(default_factory=Hold)
    seed: int = 0


class Fleet:
    """One replay; `run` returns the jobs with all that became of them.

    Once a request has waited longer than `patience` for its first byte, the replay stops and counts as overrun.
    """

    def __init__(self, trace: Trace, make: MakeRule, scenario: Scenario, patience: float = math.inf) -> None:
        self.scenario = scenario
        self.patience = patience
        self.overrun = False
        self.engines = [ModelledWorker(scenario.engine) for _ in range(scenario.workers)]
        self.rules: list[Rule] = [
            make(Setting(scenario.engine, self.engines, replica, rng, scenario.capacity_factor))
            for replica in range(scenario.replicas)
            for rng in [random.Random(f"rule:{scenario.seed}:{replica}")]
        ]
        self._gates: list[Gate | None] = [
            Gate(scenario.hold, rule, self._place, self._at)
            if isinstance(rule, ProductRule) and scenario.hold.tokens < math.inf
            else None
            for rule in self.rules
        ]
        self._rng = random.Random(f"fleet:{scenario.seed}")
        self._news_rng = random.Random(f"news:{scenario.seed}")
        self.jobs = self._jobs(trace)
        self._followers: dict[int, list[int]] = {}
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._ticket = count()
        # What each replica has in flight at each worker.
        self._open: list[list[dict[int, Job]]] = [[{} for _ in self.engines] for _ in range(scenario.replicas)]
        self._left = len(self.jobs)
        self._schedule(trace)

    def run(self) -> list[Job]:
        """Play until every request has ended, or patience with it."""
        events, pop = self._events, heapq.heappop
        while self._left and not self.overrun:
            now, _, act = pop(events)
            act(now)
        return self.jobs

    def _jobs(self, trace: Trace) -> list[Job]:
        sigma, silent, rng = self.scenario.estimate_error, self.scenario.silent, self._rng
        jobs = []
        for number, request in enumerate(trace.requests):
            estimate = request.prompt_tokens
            if sigma > 0:
                estimate = max(1, int(estimate * rng.lognormvariate(0.0, sigma)))
            jobs.append(Job(number, request, estimate, silent > 0 and rng.random() < silent))
        return jobs

    def _schedule(self, trace: Trace) -> None:
        for number, request in enumerate(trace.requests):
            if request.after is not None:
                self._followers.setdefault(request.after, []).append(number)
                continue
            at = request.at + self._rng.random() * trace.jitter
            self._at(at * self.scenario.pace, partial(self._arrive, self.jobs[number]))
        if self.scenario.replicas > 1:
            self._at(self.scenario.heartbeat, self._beat)

    def _at(self, time: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._ticket), act))

    def _arrive(self, job: Job, now: float) -> None:
        job.arrived = now
        if self.scenario.replicas > 1:
            job.replica = self._rng.randrange(self.scenario.replicas)
        gate = self._gates[job.replica]
        if gate is None:
            self._place(job, now)
        else:
            gate.arrive(job, now)

    def _place(self, job: Job, now: float) -> None:
        job.worker = self.rules[job.replica].place(job, now)
        self._open[job.replica][job.worker][job.number] = job
        self._tell("started", job, None, now)
        engine = self.engines[job.worker]
        before = engine.due
        engine.submit(job, now)
        if engine.due != before:
            self._at(engine.due, partial(self._step, job.worker, engine.due))

    def _step(self, worker: int, due: float, now: float) -> None:
        engine = self.engines[worker]
        if engine.due != due:
            return  # the stretch was cut short
        outcome = engine.step(now)
        for job in outcome.answered:
            self.overrun = self.overrun or now - job.arrived > self.patience
            if not job.silent:
                self._answered(job, now)
        for job in outcome.ended:
            if job.silent:
                self._answered(job, now)
            self._ended(job, now)
        if engine.due < math.inf:
            self._at(engine.due, partial(self._step, worker, engine.due))
        if outcome.answered or outcome.ended:
            for gate in self._gates:
                if gate is not None:
                    gate.look(now)

    def _answered(self, job: Job, now: float) -> None:
        self._tell("answered", job, self.rules[job.replica].answered(job, now), now)

    def _ended(self, job: Job, now: float) -> None:
        del self._open[job.replica][job.worker][job.number]
        self.rules[job.replica].ended(job, now)
        self._tell("ended", job, None, now)
        self._left -= 1
        for number in self._followers.get(job.number, ()):
            follower = self.jobs[number]
            self._at(now + follower.request.at, partial(self._arrive, follower))

    def _tell(self, event: Event, job: Job, note: object, now: float) -> None:
        scenario = self.scenario
        if scenario.replicas == 1:
            return
        news = News(event, job, len(self._open[job.replica][job.worker]), note)
        for replica, rule in enumerate(self.rules):
            if replica != job.replica and not self._lost():
                self._at(now + scenario.delay, partial(rule.hear, news))

    def _beat(self, now: float) -> None:
        """Every replica says what it has in flight."""
        for sender, workers in enumerate(self._open):
            open_ = {
                worker: tuple((job, not job.silent and job.first <= now) for job in jobs.values())
                for worker, jobs in enumerate(workers)
            }
            for replica, rule in enumerate(self.rules):
                if replica != sender and not self._lost():
                    self._at(now + self.scenario.delay, partial(rule.hear_open, sender, open_))
        self._at(now + self.scenario.heartbeat, self._beat)

    def _lost(self) -> bool:
        return self.scenario.loss > 0 and self._news_rng.random() < self.scenario.loss
