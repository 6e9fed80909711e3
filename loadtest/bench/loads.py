"""The loads: closed loop, open loop, paced streams. Each runs alone in the driver's process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice

from loadtest.bench import proc
from loadtest.bench.bodies import Conversations, stream_body, text_pool
from loadtest.bench.client import Connection, clock, connect, request
from loadtest.bench.jobs import Closed, Job, Open, Result, Streams
from loadtest.bench.stats import percentile

POOL = text_pool()
CLIENTS = 64  # conversations and connections of the open loop
# A load with more failures than this has nothing to say.
MOST_FAILURES = 20
PROBE_WAIT_SECONDS = 5.0


# Requests are made before the load begins, but no more of them than this many bytes.
READY_BYTES = 256 << 20


class LoadFailed(Exception):
    """The system under load did not answer as it should."""


def requests_of(job: Closed | Open, clients: int, wanted: int) -> list[Iterator[bytes]]:
    """What each client sends, for the greater part made ready before."""
    conversations = Conversations(job.size, job.seed, POOL)
    ready = min(wanted // clients + wanted // (4 * clients) + 1, READY_BYTES // (job.size * clients))
    return [_ready(job.port, conversations.bodies(client), ready) for client in range(clients)]


def _ready(port: int, bodies: Iterator[bytes], count: int) -> Iterator[bytes]:
    requests = (request(port, body) for body in bodies)
    return chain(_drain(deque(islice(requests, count))), requests)


def _drain(made: deque[bytes]) -> Iterator[bytes]:
    while made:
        yield made.popleft()


class Meter:
    """CPU time of the system, the workers and this process between two moments."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._began = 0.0
        self._ended = 0.0
        self._system = 0
        self._worker = 0
        self._own = 0.0
        self._before: tuple[dict[int, proc.CpuTime], dict[int, proc.CpuTime]] = ({}, {})

    def start(self) -> None:
        self._before = self._read()
        self._own = time.process_time()
        self._began = clock()

    def stop(self) -> None:
        self._ended = clock()
        self._own = time.process_time() - self._own
        system, worker = self._read()
        self._system = proc.spent(self._before[0], system)
        self._worker = proc.spent(self._before[1], worker)

    def result(self, done: int, latencies: list[float], failures: int) -> Result:
        ordered = sorted(latencies)
        return Result(
            done=done,
            seconds=self._ended - self._began,
            cpu_seconds=self._system / 1e9,
            worker_seconds=self._worker / 1e9,
            driver_seconds=self._own,
            p50=percentile(ordered, 0.5),
            p99=percentile(ordered, 0.99),
            failures=failures,
        )

    def _read(self) -> tuple[dict[int, proc.CpuTime], dict[int, proc.CpuTime]]:
        return proc.cpu_of(self._job.pids), proc.cpu_of([self._job.worker_pid])


class ClosedLoad:
    """Counts answers; the meter runs from the end of the warm-up to the last counted answer, with no pause between."""

    def __init__(self, job: Closed) -> None:
        self._job = job
        self._meter = Meter(job)
        self._requests: dict[Connection, Iterator[bytes]] = {}
        self._answers = 0
        self._failures = 0
        self._latencies: list[float] = []
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> Result:
        job = self._job
        for requests in requests_of(job, job.connections, job.warm + job.requests):
            self._requests[await connect(job.port, self._done)] = requests
        if job.warm == 0:
            self._meter.start()
        for connection, requests in list(self._requests.items()):
            connection.send(next(requests))
        try:
            await self._over
        finally:
            for connection in self._requests:
                connection.close()
        return self._meter.result(job.requests, self._latencies, self._failures)

    def _done(self, connection: Connection, ok: bool) -> None:
        if self._over.done():
            return
        if not ok:
            self._failed(connection)
            return
        job = self._job
        self._answers += 1
        if self._answers > job.warm:
            self._latencies.append(clock() - connection.sent_at)
            if self._answers == job.warm + job.requests:
                self._meter.stop()
                self._over.set_result(None)
                return
        elif self._answers == job.warm:
            self._meter.start()
        connection.send(next(self._requests[connection]))

    def _failed(self, connection: Connection) -> None:
        self._failures += 1
        if connection.closed or self._failures > MOST_FAILURES:
            self._over.set_exception(LoadFailed("requests failed"))
            return
        connection.send(next(self._requests[connection]))


class OpenLoad:
    """Requests at planned moments over as many connections as it takes; those beyond the limit wait for one."""

    def __init__(self, job: Open) -> None:
        self._job = job
        self._meter = Meter(job)
        self._idle: list[Connection] = []
        self._late: deque[tuple[bytes, float]] = deque()
        self._latencies: list[float] = []
        self._failures = 0
        self._running = 0
        self._last = False
        self._over = asyncio.Event()
        self._all: list[Connection] = []

    async def run(self) -> Result:
        job = self._job
        draw = random.Random(job.seed)
        clients = requests_of(job, CLIENTS, int(job.rate * job.seconds))
        for _ in range(CLIENTS):
            connection = await connect(job.port, self._done)
            self._all.append(connection)
            self._idle.append(connection)
        self._meter.start()
        due = clock()
        end = due + job.seconds
        number = 0
        while due < end:
            due += draw.expovariate(job.rate)
            made = next(clients[number % CLIENTS])
            number += 1
            if (wait := due - clock()) > 0:
                await asyncio.sleep(wait)
            self._send(made, due)
            if self._failures > MOST_FAILURES:
                raise LoadFailed("requests failed")
        self._meter.stop()
        self._last = True
        if self._running:
            await self._over.wait()
        for connection in self._all:
            connection.close()
        return self._meter.result(len(self._latencies), self._latencies, self._failures)

    def _send(self, made: bytes, due: float) -> None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                self._running += 1
                connection.send(made, due)
                return
        self._late.append((made, due))

    def _done(self, connection: Connection, ok: bool) -> None:
        self._running -= 1
        if ok:
            self._latencies.append(clock() - connection.sent_at)
            self._idle.append(connection)
        else:
            self._failures += 1
        if self._late and self._idle:
            self._send(*self._late.popleft())
        if self._last and not self._running:
            self._over.set()


class StreamLoad:
    """Streams that last longer than both windows, and probes among them."""

    def __init__(self, job: Streams, pace_seconds: float) -> None:
        self._job = job
        self._pace = pace_seconds
        self._meter = Meter(job)
        self._streams: list[Connection] = []
        self._first: list[float] = []
        self._failures = 0
        self._closing = False
        self._probed = asyncio.Event()

    async def run(self) -> Result:
        job = self._job
        await self._begin()
        await asyncio.sleep(0.2)
        self._meter.start()
        before = self._events()
        await asyncio.sleep(job.window_seconds)
        done = self._events() - before
        self._meter.stop()
        await self._probe()
        self._closing = True
        for connection in self._streams:
            connection.close()
        if self._failures > MOST_FAILURES:
            raise LoadFailed("streams broke off")
        return self._meter.result(done, self._first, self._failures)

    async def _begin(self) -> None:
        """Open the streams one by one over the ramp, so that their chunks do not come all at the same moment."""
        job = self._job
        began = clock()
        lasting = job.ramp_seconds + job.window_seconds + job.probe_seconds + 10
        chunks = int(lasting / self._pace)
        for number in range(job.streams):
            connection = await connect(job.port, self._stream_done)
            connection.send(request(job.port, stream_body(chunks, f"{os.getpid()}-{number}")))
            self._streams.append(connection)
            wait = began + (number + 1) * job.ramp_seconds / job.streams - clock()
            await asyncio.sleep(max(0.0, wait))

    async def _probe(self) -> None:
        """Short streams at even distances over one connection after the other."""
        job = self._job
        began = clock()
        probes = []
        for number in range(job.probes):
            wait = began + number * job.probe_seconds / job.probes - clock()
            await asyncio.sleep(max(0.0, wait))
            connection = await connect(job.port, self._probe_done)
            probes.append(connection)
            connection.send(request(job.port, stream_body(1, f"probe {number}")))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._probed.wait(), PROBE_WAIT_SECONDS)
        self._closing = True
        for connection in probes:
            connection.close()

    def _events(self) -> int:
        return sum(connection.events for connection in self._streams)

    def _stream_done(self, connection: Connection, ok: bool) -> None:
        if not self._closing:
            self._failures += 1

    def _probe_done(self, connection: Connection, ok: bool) -> None:
        if ok:
            self._first.append(connection.first_at - connection.sent_at)
        elif not self._closing:
            self._failures += 1
        if len(self._first) + self._failures >= self._job.probes:
            self._probed.set()
