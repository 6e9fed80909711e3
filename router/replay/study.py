"""A study: every rule at every load with every seed on each workload, on several processes if there are cores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from router.replay.capacity import capacity_pace, window
from router.replay.catalogue import rule_of
from router.replay.fleet import Fleet, Scenario
from router.replay.generate import generate
from router.replay.measure import Estimate, figures, over_seeds
from router.replay.trace import Trace, read_trace

Note = Callable[[str], None]
DEFAULT_REQUESTS = 30_000


@dataclass(frozen=True, slots=True)
class Workload:
    """Where requests come from: a file, or a kind of made-up traffic, which is another one with every seed."""

    kind: str
    path: Path | None = None
    requests: int | None = None

    @property
    def name(self) -> str:
        return self.path.stem if self.path is not None else self.kind

    def trace(self, seed: int) -> Trace:
        """The requests; those of a file are the same for all seeds, which only move arrivals within its time steps."""
        return _trace(self, seed if self.path is None else 0)


@lru_cache(maxsize=2)
def _trace(workload: Workload, seed: int) -> Trace:
    if workload.path is not None:
        return read_trace(workload.path, workload.requests)
    return generate(workload.kind, workload.requests or DEFAULT_REQUESTS, seed)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to replay. `capacity`: requests a second that count as full load, found out where not given."""

    workloads: tuple[Workload, ...]
    rules: tuple[str, ...]
    loads: tuple[float, ...]
    seeds: int
    scenario: Scenario
    warmup: float = 0.2
    capacity: float | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One rule at one load of one workload, with the figures of each seed."""

    workload: str
    load: float
    rule: str
    runs: tuple[dict[str, float], ...]

    @property
    def estimates(self) -> dict[str, Estimate]:
        return over_seeds(self.runs)


@dataclass(slots=True)
class Study:
    """All cells, and per workload its requests and its capacity in requests a second.

    `broken`: a process died, most likely for want of memory, and what is here is what there was by then.
    """

    plan: Plan
    cells: list[Cell] = field(default_factory=list)
    requests: dict[str, int] = field(default_factory=dict)
    capacities: dict[str, float] = field(default_factory=dict)
    seconds_per_12000: dict[str, float] = field(default_factory=dict)
    broken: bool = False

    @property
    def workloads(self) -> list[str]:
        """Names of the workloads that were played."""
        played = {cell.workload for cell in self.cells}
        return [workload.name for workload in self.plan.workloads if workload.name in played]

    def cell(self, workload: str, load: float, rule: str) -> Cell | None:
        for cell in self.cells:
            if (cell.workload, cell.load, cell.rule) == (workload, load, rule):
                return cell
        return None


def carry_out(plan: Plan, processes: int, note: Note) -> Study:
    """Run a plan; `note` is told of progress. Raises TraceError."""
    study = Study(plan)
    if processes <= 1:
        _carry_out(study, None, note)
    else:
        with ProcessPoolExecutor(processes) as pool:
            try:
                _carry_out(study, pool, note)
            except BrokenExecutor:
                study.broken = True
    return study


def _carry_out(study: Study, pool: Executor | None, note: Note) -> None:
    plan = study.plan
    for workload in plan.workloads:
        trace = workload.trace(0)
        count = len(trace.requests)
        study.requests[workload.name] = count
        if plan.capacity is not None:
            full = count / (plan.capacity * trace.seconds)
        else:
            note(f"{workload.name}: {count:,} requests; looking for the capacity")
            full = capacity_pace(trace, plan.scenario, plan.warmup)
        study.capacities[workload.name] = count / (full * trace.seconds)
        note(f"{workload.name}: capacity {study.capacities[workload.name]:.2f} requests/s")
        for load in plan.loads:
            _at_load(study, workload, load, full / load, pool, note)


def _at_load(study: Study, workload: Workload, load: float, pace: float, pool: Executor | None, note: Note) -> None:
    plan = study.plan
    tasks = [
        (workload, rule, replace(plan.scenario, pace=pace, seed=seed), plan.warmup)
        for rule in plan.rules
        for seed in range(plan.seeds)
    ]
    results = _results(tasks, pool)
    for rule in plan.rules:
        runs = [next(results) for _ in range(plan.seeds)]
        cell = Cell(workload.name, load, rule, tuple(run for run, _ in runs))
        study.cells.append(cell)
        spent = sum(seconds for _, seconds in runs) / plan.seeds * 12_000 / study.requests[workload.name]
        study.seconds_per_12000[rule] = max(spent, study.seconds_per_12000.get(rule, 0.0))
        ttft = cell.estimates["ttft_mean"]
        note(f"{workload.name} {load:.0%} {rule}: TTFT {ttft.mean:.2f} ± {ttft.error:.2f} s, {spent:.1f} s per 12,000")


Task = tuple[Workload, str, Scenario, float]
Run = tuple[dict[str, float], float]


def _results(tasks: Sequence[Task], pool: Executor | None) -> Iterator[Run]:
    if pool is None:
        for task in tasks:
            yield play(task)
        return
    futures: list[Future[Run]] = [pool.submit(play, task) for task in tasks]
    for future in futures:
        yield future.result()


def play(task: Task) -> Run:
    """One replay's figures, and the processor seconds that it took."""
    workload, rule, scenario, warmup = task
    trace = workload.trace(scenario.seed)
    began = time.process_time()
    fleet = Fleet(trace, rule_of(rule), scenario)
    jobs = fleet.run()
    spent = time.process_time() - began
    return figures(jobs, fleet.engines, *window(trace, scenario.pace, warmup)), spent
