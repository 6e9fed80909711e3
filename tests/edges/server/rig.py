"""A small server with the downstream protocol, a stand-in for the data plane behind it, and a raw client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import uvicorn

from router.dataplane.client import BodyBudget, Client
from router.dataplane.connections import Connections
from router.dataplane.gate import Bounds
from router.dataplane.outgoing import Outgoing
from router.dataplane.server import RouterProtocol
from router.errors import MethodNotAllowed, PayloadTooLarge, RouterError

BOUNDS = Bounds(body_bytes=200_000, header_seconds=0.15, body_seconds=0.15, keep_alive_seconds=0.15)
LIMIT = 100_000
SECONDS = 10.0  # more than any wait here takes
HOST = b"Host: router\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
LATE = asyncio.Event()
HEARD: list[str] = []


@dataclass
class EchoGate:
    """Stands in for the data plane: answers with what it was sent, or as the path says."""

    budget: BodyBudget = field(default_factory=lambda: BodyBudget(1 << 30))
    outgoing: Outgoing = field(default_factory=Outgoing)
    seen: list[tuple[bytes, str, bytes]] = field(default_factory=list)
    rejections: list[RouterError] = field(default_factory=list)
    admitted: int = 0
    departures: int = 0
    turned: int = 0
    cancelled: int = 0
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    def admit(self, connection: RouterProtocol, method: bytes, path: bytes, query: bytes) -> Client | None:
        if not path.startswith(b"/v1/"):
            return None
        self.admitted += 1
        client = Client(connection, method, path.decode(), query, self.budget, b"spare")
        client.limit = LIMIT
        if method != b"POST":
            client.refuse(MethodNotAllowed("Use POST.", allow="POST"))
        elif any(name == b"content-length" and int(value) > LIMIT for name, value in client.headers):
            client.refuse(PayloadTooLarge("Too large."))
        return client

    def begin(self, client: Client) -> None:
        if client.refusal is not None:
            client.answer_error(client.refusal)
            return
        client.task = client.spawn(self._serve(client))
        if client.path == "/v1/vanish":
            client.lost()

    async def _serve(self, client: Client) -> None:
        client.stage = "queue"
        body = client.take_body()
        client.let_body_go()
        self.seen.append((client.method, client.path, body))
        try:
            await self._answer(client, body)
        except asyncio.CancelledError:
            self.cancelled += 1
        finally:
            client.end_task()

    async def _answer(self, client: Client, body: bytes) -> None:
        if client.path == "/v1/forever":
            await asyncio.sleep(3600)
        if client.path == "/v1/flood":
            client.start(200, [], None)
            while True:
                client.write(b"x" * 65536, more=True)
                await client.drain()
                await asyncio.sleep(0)
        if client.path == "/v1/remainder":
            transport = client._connection.transport
            transport.set_write_buffer_limits(1 << 26)  # so that nothing here counts as a stall
            client.keep_alive = False
            client.start(200, [], None)
            while transport.get_write_buffer_size() < 1 << 22:
                client.write(b"x" * 65536, more=True)
            client.write(b"", more=False)
            return
        if client.path in ("/v1/stream", "/v1/broken", "/v1/told"):
            client.start(200, [(b"content-type", b"text/event-stream")], None)
            for piece in (b"data: one\n\n", b"data: two\n\n"):
                client.write(piece, more=True)
                await asyncio.sleep(0.01)
            if client.path == "/v1/stream":
                client.write(b"", more=False)
            else:
                client.break_off(told=client.path == "/v1/told")
            return
        if client.path == "/v1/short":
            client.start(200, [], 100)
            client.write(b"only this", more=True)
            client.break_off()
            return
        if client.gone:
            self.cancelled += 1
            return
        if client.path == "/v1/slow":
            await asyncio.sleep(0.05)
        if client.path == "/v1/gated":
            await self.opened.wait()
        if client.path == "/v1/headers":
            body = b",".join(name for name, _ in client.headers)
        if client.path == "/v1/empty":
            client.start(204, [], 5)
            client.write(b"", more=False)
            return
        client.start(200, [], len(body))
        client.write(body, more=False)
        if client.path == "/v1/afterwards":
            client.break_off()

    def left(self, client: Client) -> None:
        self.departures += 1

    def rejected(self, error: RouterError) -> None:
        self.rejections.append(error)

    def turned_away(self, error: RouterError) -> None:
        self.turned += 1


async def control(scope: Any, receive: Any, send: Any) -> None:
    """The ASGI side: answers with what it was sent."""
    if scope["path"] == "/late":
        await LATE.wait()
        HEARD.append((await receive())["type"])
    body, more = b"", scope["path"] not in ("/early", "/late")
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    shown = json.dumps({"method": scope["method"], "path": scope["path"], "size": len(body)}).encode()
    headers = [(b"content-length", str(len(shown)).encode()), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": shown})


class Rig:
    """A small server with the protocol under test."""

    def __init__(self, gate: EchoGate, connections: Connections, port: int, tasks: set[asyncio.Task[None]]) -> None:
        self.tasks = tasks
        self.gate = gate
        self.connections = connections
        self.port = port

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Raw]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield Raw(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def exchange(self, *pieces: bytes) -> bytes:
        """Send, and everything that comes until the connection ends; for requests that end it."""
        async with self.connected() as raw:
            for piece in pieces:
                await raw.send(piece)
            return await raw.rest()

    def sweep(self) -> None:
        """What the router does once a second."""
        self.connections.sweep(time.monotonic())

    async def sweeping(self, condition: Callable[[], bool]) -> None:
        """Sweep until the condition holds."""
        async with asyncio.timeout(SECONDS):
            while not condition():
                await asyncio.sleep(0.01)
                self.sweep()


class Raw:
    """A client that sends what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def until(self, end: bytes) -> bytes:
        async with asyncio.timeout(SECONDS):
            return await self.reader.readuntil(end)

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of an answer with a length."""
        head = await self.until(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
        async with asyncio.timeout(SECONDS):
            return int(head.split(b" ")[1]), await self.reader.readexactly(length)

    async def rest(self) -> bytes:
        pieces = []
        async with asyncio.timeout(SECONDS):
            with contextlib.suppress(ConnectionError):
                while piece := await self.reader.read(65536):
                    pieces.append(piece)
        return b"".join(pieces)

    async def was_reset(self) -> bool:
        try:
            async with asyncio.timeout(SECONDS):
                while await self.reader.read(65536):
                    pass
        except ConnectionResetError:
            return True
        return False


@asynccontextmanager
async def serving(bounds: Bounds = BOUNDS) -> AsyncIterator[Rig]:
    gate = EchoGate()
    connections = Connections(bounds, gate)
    config = uvicorn.Config(
        control,
        http=cast(Any, connections),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        port=0,
    )
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield Rig(gate, connections, server.servers[0].sockets[0].getsockname()[1], server.server_state.tasks)
    finally:
        for connection in tuple(connections.open):
            connection.transport.abort()
        server.servers[0].close()
        await server.servers[0].wait_closed()
        await asyncio.gather(*server.server_state.tasks, return_exceptions=True)
    assert gate.budget.held == 0
    assert not connections.open


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    for _ in iter(condition, True):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


def post(path: bytes = b"/v1/x", body: bytes = b"", headers: bytes = b"", *, length: bool = True) -> bytes:
    size = b"Content-Length: %d\r\n" % len(body) if length else b""
    return b"POST %b HTTP/1.1\r\n%b%b%b\r\n%b" % (path, HOST, headers, size, body)


def error_of(answer: bytes) -> tuple[int, str]:
    """Status and code of the one error that an answer consists of, which is whole and in the OpenAI form."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.count(b"HTTP/1.1 ") == 1
    assert b"x-request-id: " in head
    assert b"content-type: application/json" in head
    assert b"connection: close" in head
    assert f"content-length: {len(body)}".encode() in head
    return int(head.split(b" ")[1]), json.loads(body)["error"]["code"]
