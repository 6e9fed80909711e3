"""Microseconds of the router's own code per request and per streamed chunk: everything but the sockets.

`python -m loadtest.path_cost [--sizes 0.5,8,64,512] [--phases]` drives a whole replica, from the client's bytes to the
answer's, over transports that only hand bytes on. No kernel, no other process: the figures are steady enough on a busy
machine to tell half a microsecond, and say nothing about system calls. With `--phases` the parts of a request are timed
one by one, which makes the whole slower by what the clocks cost.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn
import uvloop
from uvicorn.server import ServerState

from loadtest.bench import canned
from loadtest.bench.bodies import MODEL, TURNS, Conversations, stream_body, text_pool
from router.app import Router
from router.cachemodel import CacheProfile
from router.dataplane import sockets
from router.serving import configure_logging
from router.settings import Settings
from router.workers.health import State
from router.workers.registry import Facts, Model

WORKERS = ("http://127.0.0.1:1", "http://127.0.0.1:2")
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n"
)
READ_BYTES = 256 * 1024  # what one read of the event loop brings at most


class Wire:
    """A transport that hands what is written to a function, and is otherwise always ready."""

    def __init__(self, written: Callable[[bytes], None]) -> None:
        self.write = written
        self._socket, self._other = socket.socketpair()

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._socket if name == "socket" else ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def writelines(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self.write(piece)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None:
        self._socket.close()
        self._other.close()

    close = abort


class Worker:
    """Answers on every connection that the router opens: what it was asked is not looked at."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.answers: Iterator[bytes] = iter(())
        self.expected = 0  # bytes of the body under way
        self.connection: Any = None

    async def open(self, loop: object, connection: Any, *where: object) -> None:
        """In place of a socket's opening."""
        connection.connection_made(Wire(functools.partial(self._written, connection)))

    def _written(self, connection: Any, data: bytes) -> None:
        # A large body is written apart from its head.
        if self.expected and len(data) < self.expected:
            return
        self.connection = connection
        answer = next(self.answers, None)
        if answer is not None:
            self._loop.call_soon(connection.data_received, answer)


class Bench:
    """One replica, one client connection, and workers that answer at once."""

    def __init__(self, directory: Path, loop: asyncio.AbstractEventLoop) -> None:
        settings = Settings.model_validate({"log": {"level": "info", "file": str(directory / "log")}})
        configure_logging(settings)
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        self.router = Router(settings)
        for url in WORKERS:
            worker = self.router.registry.add(url, slots=1024)
            facts = Facts(models={MODEL: Model(MODEL, b"{}", 1 << 20)}, profile=CacheProfile(enabled=True))
            self.router.registry.learn(worker, facts)
            worker.state = State.READY
            self.router.index.set_epoch(worker.id, 1.0)
        self.worker = Worker(loop)
        # Bound already, so that it is called without the pool.
        sockets.open_connection = self.worker.open  # type: ignore[assignment]
        config = uvicorn.Config(self.router.app, interface="asgi3", lifespan="off", access_log=False, log_config=None)
        config.load()
        self._loop = loop
        self._client: Any = self.router.connections(config, ServerState(), {}, loop)
        client: Any = Wire(self._answered)
        self._client.connection_made(client)
        self._done: asyncio.Future[None] | None = None
        self._left: Iterator[bytes] = iter(())

    def _answered(self, data: bytes) -> None:
        if data[:9] == b"HTTP/1.1 " and data[9:12] != b"200":
            raise RuntimeError(data.decode("latin-1"))
        if self._done is not None:
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        request = next(self._left, None)
        if request is not None:
            self.send(request)
        elif self._done is not None:
            self._done.set_result(None)

    def send(self, body: bytes) -> None:
        """One request, as the event loop would deliver it."""
        self.worker.expected = len(body) if len(body) > 16384 else 0
        data = HEAD % len(body) + body
        for at in range(0, len(data), READ_BYTES):
            self._client.data_received(data[at : at + READ_BYTES])

    async def requests(self, bodies: Sequence[bytes], answers: Sequence[bytes]) -> float:
        """Seconds of CPU for these requests, one after the other."""
        self.worker.answers = iter(answers)
        self._left = iter(bodies)
        self._done = self._loop.create_future()
        before = time.process_time()
        self._next()
        await self._done
        spent = time.process_time() - before
        self._done = None
        return spent

    async def chunks(self, count: int) -> float:
        """Seconds of CPU for so many chunks of one stream, each in a turn of the loop; the turns left out."""
        self.worker.answers = iter([canned.STREAM_HEAD + canned.CHUNK])
        self.send(stream_body(count, "s"))
        for _ in range(20):
            await asyncio.sleep(0)
        received = self.worker.connection.data_received
        chunk = canned.CHUNK
        before = time.process_time()
        for _ in range(count):
            await asyncio.sleep(0)
        idle = time.process_time()
        for _ in range(count):
            received(chunk)
            await asyncio.sleep(0)
        spent = time.process_time() - idle - (idle - before)
        received(canned.LAST)
        for _ in range(20):
            await asyncio.sleep(0)
        return spent


class Phases:
    """Exclusive time of the functions that make up a request, CPU time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]

    def take(self) -> dict[str, float]:
        """What came together since the last call."""
        taken = dict(self.seconds)
        self.seconds.update(dict.fromkeys(taken, 0.0))
        return taken

    def watch(self, owner: Any, name: str, label: str) -> None:
        """Time every call of a function, without what watched functions within it take."""
        work = getattr(owner, name, None)
        if work is None:
            return
        clock, inner, seconds = time.thread_time, self._inner, self.seconds
        seconds.setdefault(label, 0.0)

        @functools.wraps(work)
        def timed(*args: Any, **kwargs: Any) -> Any:
            inner.append(0.0)
            began = clock()
            try:
                return work(*args, **kwargs)
            finally:
                spent = clock() - began
                seconds[label] += spent - inner.pop()
                inner[-1] += spent

        setattr(owner, name, timed)


def watched() -> Phases:
    """The parts of a request, by the names of the table in docs/performance.md."""
    from router import affinity
    from router.dataplane import client, decision_log, dispatch, entry, passage, relay, server, sse, upstream_connection
    from router.workers import registry, selection

    phases = Phases()
    for owner, name, label in (
        (server.RouterProtocol, "data_received", "the request's head and body"),
        (entry.Entry, "admit", "the request's head and body"),
        (entry.Entry, "begin", "beginning the request's work"),
        (dispatch, "read_prompt", "reading the prompt"),
        (selection, "block_hashes", "block hashes"),
        (selection.Selector, "inquire", "inquiry"),
        (selection.Selector, "choose", "candidates and choice"),
        (selection.Selector, "settle", "lease"),
        (affinity.AffinityMap, "match", "index: match"),
        (affinity.AffinityMap, "claim", "index: claim"),
        (affinity.AffinityMap, "record", "index: record"),
        (registry.Lease, "end", "lease"),
        (dispatch.Dispatcher, "_describe", "decision record"),
        (decision_log.DecisionLog, "add", "decision log"),
        (dispatch, "upstream_head", "the head for the worker"),
        (upstream_connection.UpstreamConnection, "fresh", "connection to the worker"),
        (upstream_connection.UpstreamConnection, "start", "connection to the worker"),
        (upstream_connection.UpstreamConnection, "data_received", "reading the worker's answer"),
        (passage.Passage, "begin", "passing the answer on"),
        (passage.Passage, "end", "passing the answer on"),
        (relay.Relay, "answered", "first byte: ownership, metrics"),
        (relay.Relay, "start", "the answer's head"),
        (client.Client, "start", "the answer's head"),
        (client.Client, "write", "the write to the client"),
        (relay.Relay, "complete", "counting the answer"),
        (relay.Relay, "_calibrate", "calibration"),
        (sse.Tap, "usage", "usage"),
        (dispatch.Dispatcher, "_finish", "finish"),
    ):
        phases.watch(owner, name, label)
    return phases


def _exchanges(size: int, count: int, seed: int) -> tuple[list[bytes], list[bytes]]:
    """Bodies, and the answers that an engine would give which holds every conversation's last turn."""
    stream = Conversations(size, seed, text_pool()).bodies(0)
    bodies = [next(stream) for _ in range(count)]
    held = [0 if turn % TURNS == 0 else len(bodies[turn - 1]) for turn in range(count)]
    return bodies, [canned.chat_answer(len(body), before) for body, before in zip(bodies, held, strict=True)]


async def measure(directory: Path, sizes: Sequence[float], rounds: int, *, phases: bool) -> list[str]:
    """Lines of the report."""
    watch = watched() if phases else None
    bench = Bench(directory, asyncio.get_running_loop())
    lines = []
    for size in sizes:
        in_bytes = int(size * 1024)
        count = max(48, min(1000, 8_000_000 // in_bytes // TURNS * TURNS))
        spent: list[tuple[float, dict[str, float]]] = []
        for turn in range(rounds + 1):
            seconds = await bench.requests(*_exchanges(in_bytes, count, turn))
            parts = watch.take() if watch is not None else {}
            if turn:
                spent.append((seconds / count * 1e6, {label: part / count * 1e6 for label, part in parts.items()}))
        best, parts = min(spent, key=lambda one: one[0])
        lines.append(
            f"{size:g} KB: {best:.1f} us per request (median {statistics.median([one for one, _ in spent]):.1f})"
        )
        lines += [
            f"    {label:36} {part:6.2f}" for label, part in sorted(parts.items(), key=lambda item: -item[1]) if part
        ]
    each = [await bench.chunks(2000) / 2000 * 1e6 for _ in range(rounds)]
    lines.append(f"chunk: {min(each):.2f} us (median {statistics.median(each):.2f})")
    return lines


def main(argv: Sequence[str]) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="0.5,8,64,512", help="KB, between commas (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--phases", action="store_true", help="time the parts of a request one by one")
    options = parser.parse_args(argv)
    sizes = [float(size) for size in options.sizes.split(",") if size]
    with TemporaryDirectory() as directory:
        for line in uvloop.run(measure(Path(directory), sizes, options.rounds, phases=options.phases)):
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
