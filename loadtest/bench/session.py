"""One run: workers, driver and systems are started, all measures taken in turn, round after round."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

from loadtest.bench import proc
from loadtest.bench.jobs import Closed, Open, Result, Streams, decode_result, encode
from loadtest.bench.plan import HalfLoad, Load, Measure, Paced, Plan, another_round, named, order, warm
from loadtest.bench.samples import Samples, figures
from loadtest.bench.systems import DIRECT, Bench, Cores, Places, System, on, pids_of
from loadtest.fleet import START_SECONDS, Owned
from loadtest.report.progress import Progress

MB = 1e6
JOB_SECONDS = 60.0
Say = Callable[[str], None]


class Workers(Owned):
    """The fast workers, all in one process."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count
        self.ports: list[int] = []

    def start(self) -> None:
        words = [sys.executable, "-m", "loadtest.bench.worker", "--count", str(self._count)]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        lines = Lines(self._process.stdout)
        self.ports = [int(lines.next(START_SECONDS).rpartition(b":")[2]) for _ in range(self._count)]


class Driver(Owned):
    """The process that makes the load."""

    def start(self) -> None:
        words = [sys.executable, "-m", "loadtest.bench.driver"]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._lines = Lines(self._process.stdout)

    def stop(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        super().stop()

    def run(self, job: Closed | Open | Streams) -> Result:
        """Run a job and wait for its result."""
        stdin = self._running().stdin
        assert stdin is not None
        stdin.write(encode(job) + b"\n")
        stdin.flush()
        return decode_result(self._lines.next(job.limit_seconds + 30))


class Lines:
    """Lines of a pipe, each within a bound of time."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._fd = pipe.fileno()
        self._rest = b""

    def next(self, seconds: float) -> bytes:
        """The next line without its end; raises TimeoutError, and RuntimeError when there are no more."""
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._fd, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"no line within {seconds:.0f} s")
                piece = os.read(self._fd, 65536)
                if not piece:
                    raise RuntimeError("a process of the benchmark has ended")
                self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run gives: figures, the systems' full names, systems that could not be started, and rounds done."""

    samples: Samples
    titles: dict[str, str]
    missing: dict[str, str]
    rounds: int


class Session:
    """Runs a plan on systems that all stay up, so that the rounds find them in the same state."""

    def __init__(self, plan: Plan, systems: Sequence[System], driver: Driver, worker_pid: int, say: Say) -> None:
        self._plan = plan
        self._systems = {system.name: system for system in systems}
        self._driver = driver
        self._worker_pid = worker_pid
        self._say = say
        self.samples = Samples()

    def run(self) -> int:
        """All rounds; how many there were."""
        self._rest("memory_mb_before")
        began = time.monotonic()
        done = 0
        progress = Progress("", len(self._plan.measures) * self._plan.rounds, "measures")
        while another_round(done, self._plan, time.monotonic() - began):
            for place, measure in enumerate(self._plan.measures):
                for name in order(list(self._systems), done + place):
                    self._take(self._systems[name], measure, done, place)
                progress.done += 1
                self._say(f"{progress.line().strip()}: {measure.label}: {self._line(measure, done)}")
            done += 1
        self._rest("memory_mb_after")
        for size in {named(load.size) for load in self._plan.measures if isinstance(load, Load) and load.serial}:
            self.samples.subtract(DIRECT, f"serial_p50 {size}", f"added_p50 {size}")
        return done

    def _take(self, system: System, measure: Measure, turn: int, place: int) -> None:
        job = self._job(system, measure, seed=turn * 100 + place)
        if job is None:
            return
        result = self._driver.run(job)
        if result.error or result.failures:
            self._say(f"{system.title}: {measure.label}: {result.failures} failed {result.error}")
        self.samples.add(system.name, turn, figures(measure, result))

    def _job(self, system: System, measure: Measure, seed: int) -> Closed | Open | Streams | None:
        """The same seed for every system: the same bytes; another one for each measure and round: new conversations."""
        pids, port, worker = pids_of(system), system.port, self._worker_pid
        if isinstance(measure, Load):
            return Closed(
                port=port,
                pids=pids,
                worker_pid=worker,
                limit_seconds=JOB_SECONDS,
                size=measure.size,
                seed=seed,
                connections=measure.connections,
                warm=warm(measure),
                requests=measure.requests,
            )
        if isinstance(measure, Paced):
            return Streams(
                port=port,
                pids=pids,
                worker_pid=worker,
                limit_seconds=JOB_SECONDS,
                streams=measure.streams,
                ramp_seconds=measure.ramp_seconds,
                window_seconds=measure.window_seconds,
                probe_seconds=measure.probe_seconds,
                probes=measure.probes,
            )
        return self._half(system, measure, seed, pids)

    def _half(self, system: System, measure: HalfLoad, seed: int, pids: list[int]) -> Open | None:
        most = self.samples.spread(system.name, f"rps {named(measure.size)}")
        if most is None or not system.roots:
            return None  # half of what workers alone can do is more than the driver can send on time
        return Open(
            port=system.port,
            pids=pids,
            worker_pid=self._worker_pid,
            limit_seconds=JOB_SECONDS,
            size=measure.size,
            seed=seed,
            rate=most.median / 2,
            seconds=measure.seconds,
        )

    def _rest(self, name: str) -> None:
        """Memory of every system, and what each costs while nobody asks it anything."""
        trees = {system.name: pids_of(system) for system in self._systems.values() if system.roots}
        before = {system: proc.cpu_of(pids) for system, pids in trees.items()}
        time.sleep(self._plan.idle_seconds)
        for system, pids in trees.items():
            idle = proc.spent(before[system], proc.cpu_of(pids)) / 1e6 / self._plan.idle_seconds
            self.samples.add(system, 0, {name: proc.resident_of(pids) / MB})
            self.samples.add(system, 0 if name.endswith("before") else 1, {"idle_ms": idle})

    def _line(self, measure: Measure, turn: int) -> str:
        """The measure's main figure for each system, to follow the run by."""
        if isinstance(measure, Paced):
            name = f"chunk_us {measure.streams}"
        elif isinstance(measure, HalfLoad):
            name = f"half_p50 {named(measure.size)}"
        else:
            name = f"{'serial_p50' if measure.serial else 'cpu_us'} {named(measure.size)}"
        rounds = {system: self.samples.rounds(system, name) for system in self._systems}
        values = {system: found[turn] for system, found in rounds.items() if len(found) > turn}
        return ", ".join(f"{system} {value:.0f} us" for system, value in values.items() if value is not None)


def run(plan: Plan, names: Sequence[str], places: Places, workers: int, say: Say, *, pin: bool = True) -> Outcome:
    """Start everything, run the plan, end everything; a system that does not start is left out and named."""
    cores = Cores.split(sorted(os.sched_getaffinity(0)), pin=pin)
    missing: dict[str, str] = {}
    systems: list[System] = []
    with ExitStack() as stack:
        with on(cores.load):
            fast = Workers(workers)
            stack.enter_context(fast)
            driver = Driver()
            stack.enter_context(driver)
        bench = Bench(places, cores, fast.ports, stack)
        for name in names:
            say(f"starting {name}")
            try:
                systems.append(bench.start(name))
            except (RuntimeError, TimeoutError, OSError, subprocess.SubprocessError) as error:
                missing[name] = str(error)
                say(f"{name} is left out: {error}")
        session = Session(plan, systems, driver, fast.pid, say)
        rounds = session.run()
        return Outcome(session.samples, {system.name: system.title for system in systems}, missing, rounds)
