"""The downstream protocol on raw sockets: what is refused, what is read, and when a connection ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import uvicorn

from router.dataplane.client import BodyBudget, Client
from router.dataplane.gate import Bounds
from router.dataplane.server import RouterProtocol, protocol_class
from router.errors import MethodNotAllowed, PayloadTooLarge, RouterError

BOUNDS = Bounds(body_bytes=200_000, header_seconds=0.15, body_seconds=0.15, keep_alive_seconds=0.15)
LIMIT = 100_000
SECONDS = 10.0  # more than any wait here takes
HOST = b"Host: router\r\n"
LATE = asyncio.Event()
HEARD: list[str] = []


@dataclass
class EchoGate:
    """Stands in for the data plane: answers with what it was sent, or as the path says."""

    budget: BodyBudget = field(default_factory=lambda: BodyBudget(1 << 30))
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
        client.task = client.spawn(lambda: self._serve(client))
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
            client.task = None

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

    def __init__(
        self, gate: EchoGate, protocol: type[RouterProtocol], port: int, tasks: set[asyncio.Task[None]]
    ) -> None:
        self.tasks = tasks
        self.gate = gate
        self.protocol = protocol
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
        self.protocol.sweep(time.monotonic())

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
    protocol = protocol_class(bounds, gate)
    config = uvicorn.Config(
        control, http=protocol, ws="none", lifespan="off", interface="asgi3", log_config=None, access_log=False, port=0
    )
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield Rig(gate, protocol, server.servers[0].sockets[0].getsockname()[1], server.server_state.tasks)
    finally:
        for connection in tuple(protocol.open_connections):
            connection.transport.abort()
        server.servers[0].close()
        await server.servers[0].wait_closed()
        await asyncio.gather(*server.server_state.tasks, return_exceptions=True)
    assert gate.budget.held == 0
    assert not protocol.open_connections


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    for _ in iter(condition, True):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with serving() as rig:
        yield rig


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


# -- what is refused -------------------------------------------------------------------------------------------

CHUNKED = b"Transfer-Encoding: chunked\r\n"
SMUGGLED = b"0\r\n\r\nGET /v1/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
FRAMING: dict[str, bytes] = {
    "length-and-chunked": post(headers=CHUNKED + b"Content-Length: 4\r\n", length=False) + SMUGGLED,
    "chunked-and-length": post(headers=b"Content-Length: 4\r\n" + CHUNKED, length=False) + SMUGGLED,
    "two-lengths": post(headers=b"Content-Length: 3\r\nContent-Length: 4\r\n", length=False) + b"abcd",
    "two-equal-lengths": post(headers=b"Content-Length: 3\r\nContent-Length: 3\r\n", length=False) + b"abc",
    "length-list": post(headers=b"Content-Length: 2, 2\r\n", length=False) + b"ab",
    "signed-length": post(headers=b"Content-Length: +2\r\n", length=False) + b"ab",
    "negative-length": post(headers=b"Content-Length: -2\r\n", length=False) + b"ab",
    "hex-length": post(headers=b"Content-Length: 0x2\r\n", length=False) + b"ab",
    "empty-length": post(headers=b"Content-Length: \r\n", length=False),
    "two-codings": post(headers=CHUNKED + CHUNKED, length=False) + SMUGGLED,
    "gzip-chunked": post(headers=b"Transfer-Encoding: gzip, chunked\r\n", length=False) + SMUGGLED,
    "identity": post(headers=b"Transfer-Encoding: identity\r\n", length=False),
    "xchunked": post(headers=b"Transfer-Encoding: xchunked\r\n", length=False) + SMUGGLED,
    "chunked-in-1.0": b"POST /v1/x HTTP/1.0\r\nHost: a\r\n" + CHUNKED + b"\r\n" + SMUGGLED,
    "no-host": b"POST /v1/x HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "two-hosts": post(headers=b"Host: other\r\n"),
    "obs-fold": post(headers=b"X-A: 1\r\n 2\r\n"),
    "space-before-colon": post(headers=b"X-A : 1\r\n"),
    "nul-in-value": post(headers=b"X-A: a\0b\r\n"),
    "bare-cr": post(headers=b"X-A: a\rb\r\n"),
    "no-colon": post(headers=b"nonsense\r\n"),
    "bad-chunk-size": post(headers=CHUNKED, length=False) + b"-1\r\nx\r\n0\r\n\r\n",
    "huge-chunk-size": post(headers=CHUNKED, length=False) + b"11111111111111111\r\n",
    "bad-chunk-end": post(headers=CHUNKED, length=False) + b"1\r\nxyz0\r\n\r\n",
    "not-http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "http-2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "version-2.5": b"POST /v1/x HTTP/2.5\r\nHost: a\r\n\r\n",
    "version-2.0": b"POST /v1/x HTTP/2.0\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    "version-0.9": b"POST /v1/x HTTP/0.9\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    "chunked-in-0.9": b"POST /v1/x HTTP/0.9\r\nHost: a\r\n" + CHUNKED + b"\r\n" + SMUGGLED,
    "connect": b"CONNECT other:443 HTTP/1.1\r\nHost: other\r\n\r\n",
    "space-in-path": b"POST /v1/x y HTTP/1.1\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("case", FRAMING)
async def test_framing_that_can_be_read_in_two_ways_is_refused(rig: Rig, case: str) -> None:
    answer = await rig.exchange(FRAMING[case])
    assert error_of(answer) == (400, "bad_request")
    assert rig.gate.seen == []
    assert len(rig.gate.rejections) == 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"X-Long: %b\r\n" % (b"x" * 33 * 1024), 431),
        (b"X-Long: %b\r\n" % (b"x" * 31 * 1024), 200),
        (b"".join(b"X-%d: %b\r\n" % (number, b"x" * 1024) for number in range(33)), 431),
        (b"".join(b"X-%d: 1\r\n" % number for number in range(98)), 431),
        (b"".join(b"X-%d: 1\r\n" % number for number in range(97)), 200),
    ],
    ids=["one-of-33k", "one-of-31k", "33-of-1k", "101-fields", "100-fields"],
)
async def test_header_sections_have_a_size_and_a_number(rig: Rig, headers: bytes, status: int) -> None:
    answer = await rig.exchange(post(headers=headers + b"Connection: close\r\n"))
    assert int(answer.split(b" ")[1]) == status
    if status != 200:
        assert error_of(answer) == (431, "headers_too_large")


async def test_a_request_line_counts_as_header_bytes(rig: Rig) -> None:
    assert error_of(await rig.exchange(post(b"/v1/x?" + b"q" * 33 * 1024)))[0] == 431


async def test_a_header_field_that_never_ends_is_not_collected(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(b"POST /v1/x HTTP/1.1\r\nX-Endless: ")
        sent = 0
        while not rig.gate.rejections and sent < 4 << 20:
            await raw.send(b"x" * 65536)
            sent += 65536
            await asyncio.sleep(0)
        assert sent < 1 << 20
        assert error_of(await raw.rest())[0] == 431


# -- bodies ----------------------------------------------------------------------------------------------------


async def test_a_body_arrives_whole_however_it_is_cut(rig: Rig) -> None:
    body = bytes(range(256)) * 20
    async with rig.connected() as raw:
        await raw.send(post(body=body))
        assert await raw.answer() == (200, body)
        data = post(body=body)
        for start in range(0, len(data), 700):
            await raw.send(data[start : start + 700])
            await asyncio.sleep(0)
        assert await raw.answer() == (200, body)
    assert [seen for _, _, seen in rig.gate.seen] == [body, body]


async def test_a_chunked_body_arrives_whole(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(headers=CHUNKED, length=False))
        for piece in (b"5\r\nhello\r\n", b"1;ext=1\r\n \r\n", b"5\r\nworld\r\n0\r\nX-Trailer: 1\r\n\r\n"):
            await raw.send(piece)
            await asyncio.sleep(0)
        assert await raw.answer() == (200, b"hello world")


async def test_trailers_are_not_taken_for_headers(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/headers", headers=CHUNKED, length=False))
        await raw.send(b"1\r\nx\r\n0\r\nAuthorization: Bearer late\r\nX-Late: 1\r\n\r\n")
        assert await raw.answer() == (200, b"host,transfer-encoding")


async def test_trailers_have_a_size(rig: Rig) -> None:
    trailers = b"X-T: " + b"x" * 1_000 + b"\r\n"
    answer = await rig.exchange(post(headers=CHUNKED, length=False), b"1\r\nx\r\n0\r\n" + trailers * 40 + b"\r\n")
    assert error_of(answer) == (431, "headers_too_large")


async def test_blanks_around_a_length_do_no_harm(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(headers=b"Content-Length: \t2 \t\r\n", length=False) + b"ab")
        assert await raw.answer() == (200, b"ab")


@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_a_client_that_is_busy_sending_learns_why_it_is_refused(rig: Rig, framing: str) -> None:
    length = framing == "length"
    headers = b"Content-Length: 999999999\r\n" if length else CHUNKED
    piece = b"x" * 1_000_000 if length else b"f4240\r\n" + b"x" * 1_000_000 + b"\r\n"
    async with rig.connected() as raw:
        await raw.send(post(headers=headers, length=False))
        for _ in range(20):
            raw.writer.write(piece)
            await raw.writer.drain()
        assert error_of(await raw.rest()) == (413, "payload_too_large")
    await until(lambda: not rig.protocol.open_connections)
    assert len(rig.gate.rejections) == 1


async def test_a_refused_client_that_goes_on_sending_is_not_listened_to_for_ever(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(b"nonsense\r\n\r\n")
        assert error_of(await raw.rest()) == (400, "bad_request")
        await rig.sweeping(lambda: not rig.protocol.open_connections)
    assert len(rig.gate.rejections) == 1


async def test_a_request_that_was_answered_before_its_end_is_answered_once(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"/early", headers=CHUNKED, length=False) + b"1\r\nx\r\n")
        assert (await raw.answer())[0] == 200
        await raw.send(b"nonsense\r\n")
        assert await raw.rest() == b""
    assert rig.gate.rejections == []


async def test_a_body_over_its_limit_is_refused_by_its_declared_length(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(body=b"x" * (LIMIT + 1)))
        status, body = await raw.answer()
    assert (status, json.loads(body)["error"]["code"]) == (413, "payload_too_large")
    assert rig.gate.seen == []


async def test_a_body_that_could_never_be_taken_is_refused_at_its_head(rig: Rig) -> None:
    answer = await rig.exchange(post(headers=b"Content-Length: 999999999999\r\n", length=False))
    assert error_of(answer) == (413, "payload_too_large")


async def test_a_chunked_body_is_refused_once_it_is_over_the_limit(rig: Rig) -> None:
    chunk = b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n"
    answer = await rig.exchange(post(headers=CHUNKED, length=False), chunk, chunk)
    assert error_of(answer) == (413, "payload_too_large")
    assert rig.gate.budget.held == 0


async def test_a_body_finds_no_room_when_others_hold_it(rig: Rig) -> None:
    rig.gate.budget.limit = 10
    async with rig.connected() as raw:
        await raw.send(post(body=b"x" * 11))
        status, body = await raw.answer()
        assert (status, json.loads(body)["error"]["code"]) == (503, "no_worker_available")
        await raw.send(post(body=b"x" * 9))
        assert (await raw.answer())[0] == 200


EXPECT = b"Expect: 100-continue\r\n"


async def test_a_client_that_asks_for_leave_gets_it(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(headers=EXPECT + b"Content-Length: 5\r\n", length=False))
        assert await raw.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await raw.send(b"hello")
        assert await raw.answer() == (200, b"hello")


@pytest.mark.parametrize("length", [LIMIT + 1, 10_000_000], ids=["over-the-routes-limit", "over-any-limit"])
async def test_a_client_that_asks_for_leave_to_send_too_much_is_refused_at_once(rig: Rig, length: int) -> None:
    answer = await rig.exchange(post(headers=EXPECT + b"Content-Length: %d\r\n" % length, length=False))
    assert error_of(answer) == (413, "payload_too_large")
    assert b"100 Continue" not in answer


async def test_leave_is_not_given_in_the_middle_of_another_answer(rig: Rig) -> None:
    async with rig.connected() as raw:
        second = post(headers=EXPECT + b"Content-Length: 2\r\n", length=False)
        await raw.send(post(b"/v1/slow", b"first") + second)
        assert await raw.answer() == (200, b"first")
        assert await raw.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await raw.send(b"ok")
        assert await raw.answer() == (200, b"ok")


async def test_leave_is_not_given_for_a_body_that_is_here_already(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/slow", b"first") + post(b"/v1/x", b"second", EXPECT))
        assert await raw.answer() == (200, b"first")
        assert await raw.answer() == (200, b"second")


# -- order and kinds of requests -------------------------------------------------------------------------------


async def test_pipelined_requests_are_answered_in_order(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(b"".join(post(b"/v1/slow" if n % 2 else b"/v1/x", b"%d" % n) for n in range(6)))
        assert [await raw.answer() for _ in range(6)] == [(200, b"%d" % number) for number in range(6)]


async def test_any_number_of_refused_requests_may_stand_in_line(rig: Rig) -> None:
    refused = b"GET /v1/x HTTP/1.1\r\n" + HOST + b"\r\n"
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/slow", b"first") + refused * 2_000 + post(b"/v1/x", b"last"))
        assert await raw.answer() == (200, b"first")
        assert {(await raw.answer())[0] for _ in range(2_000)} == {405}
        assert await raw.answer() == (200, b"last")


async def test_what_waits_behind_an_answer_is_not_late_before_its_turn(rig: Rig) -> None:
    late = post(b"/v1/x", b"late")
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/gated", b"first") + late[:-2])
        await until(lambda: rig.gate.admitted == 2)
        end = time.monotonic() + 3 * BOUNDS.body_seconds
        await rig.sweeping(lambda: time.monotonic() > end)
        rig.gate.opened.set()
        assert await raw.answer() == (200, b"first")
        await raw.send(late[-2:])
        assert await raw.answer() == (200, b"late")


async def test_requests_behind_one_that_is_served_are_not_read_without_end(rig: Rig) -> None:
    one = post(b"/v1/x", b"x" * 1_000)
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/forever"))
        await until(lambda: len(rig.gate.seen) == 1)
        raw.writer.write(one * 8_000)
        before = -1
        while before != rig.gate.admitted:
            before = rig.gate.admitted
            await asyncio.sleep(0.05)
        assert 1 < rig.gate.admitted < 1_000
        raw.writer.transport.abort()
        for connection in tuple(rig.protocol.open_connections):
            connection.transport.abort()  # it was not reading, and has not seen the client leave
        await until(lambda: rig.gate.cancelled == 1)


async def test_inference_and_control_share_a_connection(rig: Rig) -> None:
    async with rig.connected() as raw:
        for _ in range(2):
            await raw.send(post(b"/v1/x", b"one"))
            assert await raw.answer() == (200, b"one")
            await raw.send(b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
            status, shown = await raw.answer()
            assert (status, json.loads(shown)) == (200, {"method": "GET", "path": "/health", "size": 0})
        await raw.send(post(b"/v1/slow", b"two") + post(b"/elsewhere", b"three") + post(b"/v1/x", b"four"))
        assert await raw.answer() == (200, b"two")
        assert json.loads((await raw.answer())[1]) == {"method": "POST", "path": "/elsewhere", "size": 5}
        assert await raw.answer() == (200, b"four")


async def test_absolute_targets_are_served(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"http://router/v1/x?q=1", b"hello"))
        assert await raw.answer() == (200, b"hello")
    assert rig.gate.seen[0][1] == "/v1/x"


@pytest.mark.parametrize("path", [b"/v1/x", b"/elsewhere"])
@pytest.mark.parametrize("cut", [0, 1, 5])
async def test_a_wish_for_another_protocol_is_declined_and_the_request_served(rig: Rig, path: bytes, cut: int) -> None:
    wish = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    data = post(path, b"hello", wish)
    async with rig.connected() as raw:
        for _ in range(2):
            await raw.send(data[: len(data) - cut])
            await asyncio.sleep(0.01)
            await raw.send(data[len(data) - cut :])
            status, body = await raw.answer()
            assert status == 200
            assert b"hello" in body or json.loads(body)["size"] == 5


async def test_any_number_of_wishes_for_another_protocol_may_stand_in_line(rig: Rig) -> None:
    wish = post(b"/v1/x", headers=b"Connection: upgrade\r\nUpgrade: h2c\r\n")
    async with rig.connected() as raw:
        await raw.send(wish * 1_500)
        assert {(await raw.answer())[0] for _ in range(1_500)} == {200}


async def test_nonsense_behind_a_wish_for_another_protocol_is_refused(rig: Rig) -> None:
    wish = post(b"/v1/x", headers=b"Connection: upgrade\r\nUpgrade: h2c\r\n", length=False)
    answer = await rig.exchange(wish.replace(b"\r\n\r\n", b"\r\n" + CHUNKED + b"\r\n") + b"zz\r\n")
    assert error_of(answer) == (400, "bad_request")


async def test_a_refused_verb_leaves_the_connection_usable(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(b"PUT /v1/x HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc")
        assert (await raw.answer())[0] == 405
        await raw.send(b"HEAD /v1/x HTTP/1.1\r\n" + HOST + b"\r\n")
        assert (await raw.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 405 ")
        await raw.send(post(body=b"fine"))
        assert await raw.answer() == (200, b"fine")


async def test_garbage_behind_a_request_does_not_reach_its_answer(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/stream"))
        await raw.until(b"data: one\n\n")
        await raw.send(b"\x00\x01garbage\r\n\r\n")
        rest = await raw.rest()
        assert not rest.endswith(b"0\r\n\r\n")
        assert b"HTTP/1.1 400" not in rest


# -- answers ---------------------------------------------------------------------------------------------------


async def test_an_answer_that_has_no_body_declares_none(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/empty") + post(b"/v1/x", b"next"))
        assert b"content-length" not in await raw.until(b"\r\n\r\n")
        assert await raw.answer() == (200, b"next")


async def test_a_stream_is_chunked_and_ends_with_its_last_chunk(rig: Rig) -> None:
    answer = await rig.exchange(post(b"/v1/stream", headers=b"Connection: close\r\n"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    assert body == b"b\r\ndata: one\n\n\r\nb\r\ndata: two\n\n\r\n0\r\n\r\n"


async def test_a_stream_for_http_1_0_is_not_chunked_and_ends_with_the_connection(rig: Rig) -> None:
    answer = await rig.exchange(b"POST /v1/stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert body == b"data: one\n\ndata: two\n\n"


@pytest.mark.parametrize("path", [b"/v1/broken", b"/v1/told"])
async def test_a_broken_stream_has_no_last_chunk(rig: Rig, path: bytes) -> None:
    answer = await rig.exchange(post(path))
    assert b"data: two\n\n\r\n" in answer
    assert not answer.endswith(b"0\r\n\r\n")


async def test_a_broken_answer_with_a_length_falls_short_of_it(rig: Rig) -> None:
    head, _, body = (await rig.exchange(post(b"/v1/short"))).partition(b"\r\n\r\n")
    assert b"content-length: 100" in head
    assert body == b"only this"


async def test_a_broken_stream_for_http_1_0_is_reset_unless_it_says_so_itself(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(b"POST /v1/broken HTTP/1.0\r\n\r\n")
        assert await raw.was_reset()
    told = await rig.exchange(b"POST /v1/told HTTP/1.0\r\n\r\n")
    assert told.endswith(b"data: two\n\n")


async def test_the_clients_id_is_kept_if_it_is_usable(rig: Rig) -> None:
    for given, shown in ((b"abc-1", b"abc-1"), (b"a b", b"spare"), (b"x" * 200, b"spare")):
        answer = await rig.exchange(post(headers=b"X-Request-Id: %b\r\nConnection: close\r\n" % given))
        assert b"\r\nx-request-id: %b\r\n" % shown in answer


# -- clients that leave ----------------------------------------------------------------------------------------


def reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@pytest.mark.parametrize("size", [2, 90_000], ids=["small", "large"])
@pytest.mark.parametrize("way", ["close", "reset", "half-close"])
async def test_work_ends_as_soon_as_its_client_leaves(rig: Rig, way: str, size: int) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/forever", b"x" * size))
        await until(lambda: len(rig.gate.seen) == 1)
        if way == "half-close":
            raw.writer.write_eof()
        elif way == "reset":
            reset(raw.writer)
        else:
            raw.writer.close()
        await until(lambda: rig.gate.cancelled == 1)
    assert rig.gate.departures == 0  # whoever served it has counted it


async def test_work_whose_client_left_before_its_first_step_still_comes_to_its_end(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/vanish", b"body"))
        await until(lambda: rig.gate.cancelled == 1)
    assert rig.gate.budget.held == 0


async def test_the_control_plane_learns_that_nobody_waits_for_its_answer(rig: Rig) -> None:
    late = b"GET /late HTTP/1.1\r\n" + HOST + b"\r\n"
    async with rig.connected() as raw:
        await raw.send(late + post(b"/elsewhere") + b"\x00garbage\r\n\r\n")
        await until(lambda: not rig.protocol.open_connections)
        assert len(rig.gate.rejections) == 1
    LATE.set()
    await until(lambda: not rig.tasks)
    assert HEARD == ["http.disconnect"]


async def test_a_client_that_leaves_before_its_body_is_whole_is_counted(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(body=b"half", headers=b"Content-Length: 100\r\n", length=False))
        await until(lambda: rig.gate.budget.held == 4)
        raw.writer.close()
        await until(lambda: rig.gate.departures == 1)
    assert rig.gate.budget.held == 0


async def test_pipelined_requests_of_a_client_that_leaves_are_counted_too(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/forever") + post(b"/v1/x", b"waits"))
        await until(lambda: len(rig.gate.seen) == 1)
        reset(raw.writer)
        await rig.sweeping(lambda: rig.gate.cancelled + rig.gate.departures == 2)


@pytest.mark.parametrize("way", ["close", "reset", "half-close"])
@pytest.mark.parametrize("behind", [1, 1_500], ids=["one", "more-than-is-read"])
async def test_a_client_that_leaves_behind_what_nobody_reads_has_left(rig: Rig, way: str, behind: int) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/forever"))
        await until(lambda: len(rig.gate.seen) == 1)
        raw.writer.write(post(b"/v1/x", b"x" * 100) * behind)
        await until(lambda: rig.gate.admitted > 1)
        rig.sweep()
        assert rig.gate.cancelled == 0
        if way == "half-close":
            raw.writer.write_eof()
        elif way == "reset":
            reset(raw.writer)
        else:
            raw.writer.close()
        await rig.sweeping(lambda: rig.gate.cancelled == 1)
        await until(lambda: not rig.protocol.open_connections)
    assert rig.gate.departures == rig.gate.admitted - 1


# -- no room ---------------------------------------------------------------------------------------------------


async def test_a_connection_too_many_is_told_so_and_room_comes_back(rig: Rig) -> None:
    rig.protocol.bounds = replace(BOUNDS, connections=1, turned_away=1)
    async with rig.connected() as first:
        await first.send(post(body=b"one"))
        assert await first.answer() == (200, b"one")
        for _ in range(3):
            answer = await rig.exchange(post(body=b"two"))
            assert error_of(answer) == (503, "too_many_connections")
            assert b"\r\nretry-after: 1\r\n" in answer
        assert (rig.gate.turned, rig.gate.admitted) == (3, 1)
        await first.send(post(body=b"three"))
        assert await first.answer() == (200, b"three")
    await until(lambda: not rig.protocol.open_connections)
    assert (await rig.exchange(post(body=b"four", headers=b"Connection: close\r\n"))).endswith(b"four")


async def test_who_is_told_that_there_is_no_room_need_not_ask_and_cannot_stay(rig: Rig) -> None:
    rig.protocol.bounds = replace(BOUNDS, connections=0, turned_away=1)
    async with rig.connected() as silent, rig.connected() as beyond:
        assert error_of(await silent.rest()) == (503, "too_many_connections")
        assert error_of(await beyond.rest()) == (503, "too_many_connections")
        await until(lambda: len(rig.protocol.open_connections) <= 1)
        await rig.sweeping(lambda: not rig.protocol.open_connections)
    assert not rig.protocol.turned_away


async def test_work_waits_while_its_client_does_not_read(rig: Rig) -> None:
    rig.protocol.bounds = replace(BOUNDS, write_stall_seconds=0.1)
    async with rig.connected() as raw:
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await raw.send(post(b"/v1/flood"))
        await rig.sweeping(lambda: rig.gate.cancelled == 1)


async def test_what_is_left_to_send_at_the_end_does_not_wait_for_ever(rig: Rig) -> None:
    rig.protocol.bounds = replace(BOUNDS, write_stall_seconds=0.1)
    async with rig.connected() as raw:
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await raw.send(post(b"/v1/remainder"))
        await until(lambda: bool(rig.gate.seen))
        await rig.sweeping(lambda: not rig.protocol.open_connections)
    assert rig.gate.cancelled == rig.gate.departures == 0


# -- deadlines -------------------------------------------------------------------------------------------------


async def test_a_header_that_drips_gets_408_and_the_connection_ends(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(b"POST /v1/x HTTP/1.1\r\n")

        async def drip() -> None:
            while not raw.reader.at_eof():
                await raw.send(b"X")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        await rig.sweeping(lambda: len(rig.gate.rejections) == 1)
        assert error_of(await raw.rest()) == (408, "request_timeout")
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)


async def test_a_body_that_does_not_come_gets_408(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(body=b"half", headers=b"Content-Length: 100\r\n", length=False))
        await rig.sweeping(lambda: len(rig.gate.rejections) == 1)
        assert error_of(await raw.rest()) == (408, "request_timeout")
    assert rig.gate.departures == 0


async def test_a_connection_that_sends_nothing_ends_without_a_word(rig: Rig) -> None:
    async with rig.connected() as raw:
        await rig.sweeping(raw.reader.at_eof)
        assert await raw.rest() == b""
    assert rig.gate.rejections == []


async def test_a_connection_at_rest_ends_in_its_time_and_not_in_a_headers(rig: Rig) -> None:
    rig.protocol.bounds = replace(BOUNDS, keep_alive_seconds=0.4)
    async with rig.connected() as raw:
        await raw.send(post(body=b"one"))
        await raw.answer()
        for _ in range(20):
            await asyncio.sleep(0.01)
            rig.sweep()
        await raw.send(post(body=b"two"))
        assert await raw.answer() == (200, b"two")
        began = time.monotonic()
        await rig.sweeping(raw.reader.at_eof)
        assert time.monotonic() - began > 0.3


async def test_an_answer_under_way_knows_no_deadline(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/forever"))
        await until(lambda: len(rig.gate.seen) == 1)
        for _ in range(30):
            await asyncio.sleep(0.01)
            rig.sweep()
        assert rig.gate.cancelled == 0
        assert not raw.reader.at_eof()


# -- the end of a replica --------------------------------------------------------------------------------------


async def test_answers_of_a_draining_replica_end_their_connection(rig: Rig) -> None:
    async with rig.connected() as raw, rig.connected() as other:
        await raw.send(post(body=b"before"))
        assert await raw.answer() == (200, b"before")
        await other.send(b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
        await other.answer()
        rig.protocol.draining = True
        await raw.send(post(body=b"after"))
        answer = await raw.rest()
        assert b"\r\nconnection: close\r\n" in answer
        assert answer.endswith(b"after")
        await other.send(b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
        assert b"connection: close" in await other.rest()


async def test_a_kept_connection_outlives_the_listener_for_a_moment(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(body=b"before"))
        await raw.answer()
        rig.protocol.draining = True
        for connection in rig.protocol.open_connections:
            connection.shutdown()
        await asyncio.sleep(0.05)
        await raw.send(post(body=b"written meanwhile"))
        assert (await raw.rest()).endswith(b"written meanwhile")
