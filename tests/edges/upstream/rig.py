"""A worker that follows a script on real sockets, and a pool that must end as it began."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace

from router.dataplane.upstream import Origin, UpstreamLimits, UpstreamPool, UpstreamResponse

OK = b"HTTP/1.1 200 OK\r\n"
HELLO = OK + b"Content-Length: 5\r\n\r\nhello"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass(slots=True)
class WorkerSide:
    """The worker's end of one connection."""

    number: int  # of this connection, from 1
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    requests: list[bytes] = field(default_factory=list)

    async def request(self) -> bytes:
        """One whole request; IncompleteReadError when the client closes instead."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        body = await self.reader.readexactly(int(length[1])) if length else b""
        self.requests.append(head + body)
        return head + body

    async def send(self, *pieces: bytes) -> None:
        """Each piece by itself on the wire, as far as the loop can tell."""
        for piece in pieces:
            if self.writer.is_closing():
                raise ConnectionResetError  # uvloop would call it a misuse of the transport
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0.001)

    def reset(self) -> None:
        """RST instead of FIN."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Until the client has closed."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass


class Flood:
    """A worker's answer of `size` bytes, written as fast as they are taken; `sent` is how many are written."""

    BLOCK = bytes(range(256)) * 256

    def __init__(self, size: int) -> None:
        self.size = size
        self.sent = 0

    async def __call__(self, side: WorkerSide) -> None:
        await side.request()
        side.writer.write(OK + b"Content-Length: %d\r\n\r\n" % self.size)
        while self.sent < self.size:
            side.writer.write(self.BLOCK)
            self.sent += len(self.BLOCK)
            await side.writer.drain()
        await side.gone()

    async def held_up(self) -> int:
        """Wait until the worker stands still; how many bytes it has written."""
        held_up_at = -1
        while held_up_at != self.sent:
            held_up_at = self.sent
            await asyncio.sleep(0.1)
        return held_up_at


@contextlib.contextmanager
def nobody_accepts() -> Iterator[Origin]:
    """Where a connection that is opened waits for ever: the queue of the listener is full."""
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(2):
            queued = sockets.enter_context(socket.socket())
            queued.setblocking(False)
            queued.connect_ex(listener.getsockname())
        yield Origin(*listener.getsockname())


Script = Callable[[WorkerSide], Awaitable[None]]


class ScriptedWorker:
    """Runs the script once per connection, then closes that connection."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections: list[WorkerSide] = []
        self.origin = Origin("127.0.0.1", 1)
        self.failure: BaseException | None = None

    @property
    def requests(self) -> int:
        return sum(len(side.requests) for side in self.connections)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        side = WorkerSide(len(self.connections) + 1, reader, writer)
        self.connections.append(side)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                await self._script(side)
        except Exception as error:
            self.failure = error
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert self.failure is None, self.failure


@contextlib.asynccontextmanager
async def worker(
    script: Script, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[ScriptedWorker]:
    """A listening worker on a free port."""
    scripted = ScriptedWorker(script)
    server = await asyncio.start_server(scripted.serve, host, 0, ssl=tls, backlog=1024)
    scripted.origin = Origin(host, server.sockets[0].getsockname()[1], tls is not None)
    try:
        yield scripted
    finally:
        server.close()
        await scripted.stop()
        await server.wait_closed()


@contextlib.asynccontextmanager
async def pool_for(
    origin: Origin, *, ssl_context: ssl.SSLContext | None = None, **limits: float
) -> AsyncIterator[UpstreamPool]:
    """A pool; closed at the end, when nothing of it may be left."""
    given = replace(UpstreamLimits(first_byte_seconds=20.0), **limits)  # type: ignore[arg-type]
    pool = UpstreamPool(origin, given, ssl_context=ssl_context)
    try:
        yield pool
    finally:
        pool.close()
        counts = pool.statistics()
        assert (counts.open, counts.idle, counts.active) == (0, 0, 0)
        assert pool._sweeper is None
        await settle()
        assert pool.statistics().connecting == 0


def head(body: bytes = b"", *, method: bytes = b"POST") -> bytes:
    return b"%b /v1/completions HTTP/1.1\r\nHost: worker\r\nContent-Length: %d\r\n\r\n" % (method, len(body))


async def ask(
    pool: UpstreamPool, body: bytes = b"{}", *, method: bytes = b"POST", replayable: bool = True
) -> UpstreamResponse:
    return await pool.request(head(body, method=method), body, method=method, replayable=replayable)


async def read_all(response: UpstreamResponse) -> bytes:
    pieces = []
    while piece := await response.read():
        pieces.append(piece)
    assert response.complete
    return b"".join(pieces)


async def settle(rounds: int = 5) -> None:
    """Let the loop deliver what has already happened."""
    for _ in range(rounds):
        await asyncio.sleep(0)


async def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Until the condition holds; fails when it does not within the time."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the condition is somebody else's state
            await asyncio.sleep(0.002)


def open_sockets() -> int:
    """File descriptors of this process that are sockets."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return count
