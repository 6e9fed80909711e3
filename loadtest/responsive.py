"""How quickly one process answers `/health` while it has a lot to do, which is how late its event loop is.

`python -m loadtest.responsive` asks it fifty times a second while nothing else happens, while 3 MB bodies arrive one
after the other over eight connections, while bodies of the same size consist of tiny messages, or of as many parts as
are taken apart at most, of text or of a type that is not known, while 120 KB bodies are nothing but empty parts, and
under 1,000 paced streams. The router is compiled, unless `--source` is given. Clients, workers and the router are
processes of their own; with fewer cores than that, each also waits for the others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from loadtest import compiled
from loadtest.bench.bodies import MODEL, Conversations, stream_body, text_pool
from loadtest.bench.client import Connection, connect, request
from loadtest.bench.stats import percentile
from loadtest.fleet import RouterProcess
from router.prompt.reader import FLAT_OBJECTS

BODY_BYTES = 3 << 20
PROBE_SECONDS = 0.02
CHUNKS_PER_SECOND = 20
SETTLE_SECONDS = 3.0
LAG = "router_event_loop_lag_seconds"
LOADS = ("nothing", "streams", "bodies", "messages", "parts", "odd", "small")
SMALL_PARTS = 40_000


@dataclass(frozen=True)
class Row:
    """One load: answers, failures, `/health` in milliseconds, and how late the loop's own timer was."""

    load: str
    answered: int
    failed: int
    probes: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    timer_late: str


# -- the load, in a process of its own -----------------------------------------------------------------------------


def bodies_of(load: str, client: int) -> Iterator[bytes]:
    """What one client sends, one after the other."""
    if load == "bodies":
        yield from Conversations(BODY_BYTES, 1, text_pool()).bodies(client)
    rng = random.Random(client)
    tiny: dict[str, object]
    messages: list[dict[str, object]]
    while True:
        name = f"{rng.getrandbits(64):016x}"
        if load == "messages":
            tiny = {"role": "user", "content": "x"}
            messages = [{"role": "user", "content": name}, *[tiny] * (BODY_BYTES // 30)]
        elif load == "small":
            messages = [{"role": "user", "content": name}, {"role": "user", "content": [{}] * SMALL_PARTS}]
        else:
            # As many as are taken apart one by one, and text to make up the size.
            tiny = {"type": "text", "text": "x"} if load == "parts" else {"type": "new", "data": "x"}
            content = [tiny] * (FLAT_OBJECTS - 10) + [{"type": "text", "text": "x" * BODY_BYTES}]
            parts = [{"type": "text", "text": name}, *content]
            messages = [{"role": "user", "content": parts}]
        yield json.dumps({"model": MODEL, "messages": messages, "max_tokens": 16}, separators=(",", ":")).encode()


class Crowd:
    """Clients of a closed loop, or streams that begin within some seconds and run to the end."""

    def __init__(self, port: int, load: str) -> None:
        self._port = port
        self._load = load
        self.answered = self.failed = 0
        self._open = 0
        self._finished = asyncio.Event()

    async def repeat(self, clients: int, seconds: float) -> None:
        """Each client sends its next body when its last one was answered."""
        sources = [bodies_of(self._load, client) for client in range(clients)]
        # Made before, as making them takes longer than sending them.
        ready = [[request(self._port, next(source)) for _ in range(4)] for source in sources]
        turns: dict[Connection, int] = {}
        print("begun", flush=True)
        end = time.monotonic() + seconds

        def done(connection: Connection, ok: bool) -> None:
            self._count(ok)
            number = turns[connection] = turns[connection] + 1
            if time.monotonic() < end and not connection.closed:
                connection.send(ready[number % clients][number // clients % 4])
            else:
                self._leave(connection)

        self._open = clients
        for number in range(clients):
            connection = await connect(self._port, done)
            turns[connection] = number
            connection.send(ready[number][0])
        await self._finished.wait()

    async def stream(self, streams: int, seconds: float) -> None:
        """All at once, but begun at different moments, and none ended before the last second."""
        chunks = int((seconds + SETTLE_SECONDS) * CHUNKS_PER_SECOND)

        def done(connection: Connection, ok: bool) -> None:
            # All chunks, the usage and the last event.
            self._count(ok and connection.events > chunks)
            self._leave(connection)

        self._open = streams
        began = time.monotonic()
        for number in range(streams):
            connection = await connect(self._port, done)
            connection.send(request(self._port, stream_body(chunks, f"stream-{number}")))
            await asyncio.sleep(max(0.0, began + SETTLE_SECONDS * (number + 1) / streams - time.monotonic()))
        print("begun", flush=True)
        await self._finished.wait()

    def _count(self, ok: bool) -> None:
        self.answered += ok
        self.failed += not ok

    def _leave(self, connection: Connection) -> None:
        connection.close()
        self._open -= 1
        if not self._open:
            self._finished.set()


async def crowd(port: int, load: str, count: int, seconds: float) -> None:
    """Run a load, and print what came of it."""
    clients = Crowd(port, load)
    if load == "streams":
        await clients.stream(count, seconds)
    else:
        await clients.repeat(count, seconds)
    print(json.dumps([clients.answered, clients.failed]), flush=True)


# -- the probe -----------------------------------------------------------------------------------------------------


def probe(port: int, until: float) -> list[float]:
    """Seconds that each `/health` took, over one connection; they are asked for in time, however late the last was."""
    times: list[float] = []
    asked = b"GET /health HTTP/1.1\r\nhost: router\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        due = time.monotonic()
        while due < until or not times:
            time.sleep(max(0.0, due - time.monotonic()))
            began = time.monotonic()
            connection.sendall(asked)
            answer = b""
            while not answer.endswith(b"}"):
                answer += connection.recv(4096)
            if b"200 OK" not in answer:
                raise RuntimeError("/health does not answer")
            times.append(time.monotonic() - began)
            due = max(due + PROBE_SECONDS, time.monotonic())
    return times


def lateness(before: str, after: str) -> str:
    """The bucket in which the 99th percentile of the loop's own timer lies, between two scrapes."""
    counts = {bound: count - _buckets(before).get(bound, 0.0) for bound, count in _buckets(after).items()}
    total = counts.get("+Inf", 0.0)
    late = next((bound for bound, count in counts.items() if count >= 0.99 * total), "+Inf")
    return f"at most {float(late) * 1e3:g} ms" if late != "+Inf" else "more"


def _buckets(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith(f"{LAG}_bucket"):
            labels, _, value = line.rpartition(" ")
            found[labels.split('le="')[1].split('"')[0]] = float(value)
    return found


def measure(router: RouterProcess, load: str, count: int, seconds: float) -> Row:
    """Probe the router while a load runs."""
    child = None
    if load != "nothing":
        words = ["--crowd", load, "--port", str(router.port), "--count", str(count), "--seconds", str(seconds)]
        child = subprocess.Popen([sys.executable, "-m", "loadtest.responsive", *words], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(1.0)
    before = router.metrics()
    times = probe(router.port, time.monotonic() + seconds - 2)
    after = router.metrics()
    answered = failed = 0
    if child is not None:
        answered, failed = json.loads(child.communicate(timeout=120)[0].splitlines()[-1])
    ms = sorted(taken * 1e3 for taken in times)
    late = lateness(before, after)
    return Row(load, answered, failed, len(ms), percentile(ms, 0.5), percentile(ms, 0.99), max(ms), late)


@contextmanager
def bench_workers() -> Iterator[list[str]]:
    """The fast workers of the benchmark, as a process; their URLs."""
    words = [sys.executable, "-m", "loadtest.bench.worker", "--count", "2"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield [process.stdout.readline().split()[1] for _ in range(2)]
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def run(loads: Sequence[str], seconds: float, streams: int, clients: int, package: Path | None) -> Iterator[Row]:
    """Each load in turn, on a router of its own."""
    for load in loads:
        place = tempfile.TemporaryDirectory()
        with place, bench_workers() as urls, RouterProcess(Path(place.name), urls, package=package) as router:
            router.wait_ready(len(urls))
            yield measure(router, load, streams if load == "streams" else clients, seconds)


HEAD = (
    "| load | answered, failed | `/health`, p50 | p99 | longest of | the loop's timer, p99 |\n| --- "
    + "| --- " * 5
    + "|"
)


def line(row: Row) -> str:
    """One line of the table."""
    return (
        f"| {row.load} | {row.answered:,}, {row.failed} | {row.p50_ms:.1f} ms | {row.p99_ms:.1f} ms "
        f"| {row.max_ms:.1f} ms of {row.probes:,} | {row.timer_late} |"
    )


def main(argv: Sequence[str]) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loads", nargs="*", metavar="LOAD", help=f"of {', '.join(LOADS)}; all without any")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--clients", type=int, default=8, help="connections over which bodies come")
    compiled.add_options(parser)
    parser.add_argument("--crowd", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.crowd is not None:
        uvloop.run(crowd(options.port, options.crowd, options.count, options.seconds))
        return 0
    unknown = set(options.loads) - set(LOADS)
    if unknown:
        parser.error(f"no such load: {', '.join(sorted(unknown))}")
    package = compiled.chosen(options)
    print(f"The router as {'source' if package is None else 'compiled'}:\n\n{HEAD}", flush=True)
    for row in run(options.loads or LOADS, options.seconds, options.streams, options.clients, package):
        print(line(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
