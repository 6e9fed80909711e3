"""One client connection: parsing, pipelining, keep-alive, and seeing at once that the client has left."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Coroutine
from typing import Protocol, cast

import httptools

from loadtest.simworker.exchange import Exchange
from loadtest.simworker.faults import Action, Stage
from loadtest.simworker.http import Request, response_head
from loadtest.simworker.records import Record
from loadtest.simworker.watch import Watch

MAX_PIPELINED = 64
# Time for the peer to take what was written before a scripted RST throws the rest away.
SETTLE_SECONDS = 0.01
_RST = struct.pack("ii", 1, 0)
_INVALID = b"Invalid HTTP request received."


class Host(Protocol):
    """What a connection needs of its worker."""

    keep_alive_seconds: float
    max_body_bytes: int
    aborted: int
    watch: Watch

    def opened(self, connection: Connection) -> int:
        """Count it; returns its number."""

    def lost(self, connection: Connection) -> None: ...

    def new_record(self, connection: int, ordinal: int, now: float, request: Request) -> Record: ...

    def complete_record(self, record: Record, body: bytes) -> None: ...

    def fault_at(self, stage: Stage, request: Request | None, ordinal: int) -> Action | None: ...

    def handle(self, exchange: Exchange, action: Action | None) -> Coroutine[object, object, None] | None:
        """Answer at once, or return what will."""


class _Incoming:
    """A request whose end has not been read."""

    __slots__ = ("begun_at", "chunks", "expects", "headers", "record", "request", "size", "target")

    def __init__(self) -> None:
        self.begun_at = time.monotonic()
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.chunks: list[bytes] = []
        self.size = 0
        self.expects = False
        self.request: Request | None = None
        self.record: Record | None = None


class Connection(asyncio.Protocol):
    """The protocol httptools calls back into. Requests are answered one at a time, in order."""

    def __init__(self, host: Host, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._incoming: _Incoming | None = None
        self._current: Exchange | None = None
        self._queue: deque[tuple[Request, Record, Action | None]] = deque()
        self._ordinal = 0
        self._closing = False
        self._reading_paused = False
        self._writable: asyncio.Event | None = None
        self._idle_since: float | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self.number = 0

    @property
    def unsent(self) -> int:
        """Bytes written that the peer has not taken."""
        return self._transport.get_write_buffer_size()

    # -- transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.number = self._host.opened(self)
        action = self._host.fault_at("connect", None, 0)
        if action is None:
            return
        self._closing = True
        if action.kind == "raw":
            self._transport.write(action.raw_bytes)
        if action.kind != "stall":
            self.die(rst=action.kind in ("reset", "refuse") or action.then == "reset")

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._idle_since = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The engine's server takes no upgrades and goes on as if none had been asked for.
            self._parser = httptools.HttpRequestParser(self)
            self.data_received(data[int(upgrade.args[0]) :])
        except httptools.HttpParserError:
            if not self._closing:
                self._refuse(400, _INVALID)

    def eof_received(self) -> None:
        self._client_left()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client_left()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._writable is not None:
            self._writable.set()
        self._host.lost(self)

    def pause_writing(self) -> None:
        self._writable = asyncio.Event()
        self._host.watch.notify()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set()
            self._writable = None
        self._start_next()

    # -- parser callbacks

    def on_message_begin(self) -> None:
        self._incoming = _Incoming()

    def on_url(self, url: bytes) -> None:
        if self._incoming is not None:
            self._incoming.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._incoming is None:
            return
        self._incoming.headers.append((name, value))
        if len(name) == 6 and name.lower() == b"expect" and value.lower() == b"100-continue":
            self._incoming.expects = True

    def on_headers_complete(self) -> None:
        incoming = self._incoming
        if incoming is None or self._closing:
            return
        request = Request(self._parser.get_method().decode(), incoming.target.decode("latin-1"), incoming.headers)
        request.keep_alive = self._parser.should_keep_alive()
        request.http10 = self._parser.get_http_version() == "1.0"
        self._ordinal += 1
        incoming.request = request
        incoming.record = self._host.new_record(self.number, self._ordinal, incoming.begun_at, request)
        action = self._host.fault_at("head", request, self._ordinal)
        if action is not None:
            self._enqueue_early(action)
        elif incoming.expects and self._current is None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            incoming.expects = False

    def on_body(self, body: bytes) -> None:
        incoming = self._incoming
        if incoming is None or self._closing:
            return
        incoming.size += len(body)
        if incoming.size > self._host.max_body_bytes:
            self._refuse(413, b"Request body too large")
            return
        incoming.chunks.append(body)

    def on_message_complete(self) -> None:
        incoming, self._incoming = self._incoming, None
        if incoming is None or incoming.request is None or incoming.record is None or self._closing:
            return
        request = incoming.request
        request.body = incoming.chunks[0] if len(incoming.chunks) == 1 else b"".join(incoming.chunks)
        self._host.complete_record(incoming.record, request.body)
        self._queue.append((request, incoming.record, self._host.fault_at("request", request, self._ordinal)))
        if self._current is None:
            self._start_next()
        elif len(self._queue) >= MAX_PIPELINED and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    # -- requests

    def _enqueue_early(self, action: Action) -> None:
        """Answer before the body: it is never read, so the connection cannot be used again."""
        incoming, self._incoming = self._incoming, None
        assert incoming is not None
        assert incoming.request is not None
        assert incoming.record is not None
        incoming.request.keep_alive = False
        self._queue.append((incoming.request, incoming.record, action))
        self._start_next()

    def _start_next(self) -> None:
        while self._current is None and self._queue and self._writable is None and not self._transport.is_closing():
            request, record, action = self._queue.popleft()
            exchange = Exchange(self, request, record)
            self._current = exchange
            work = self._host.handle(exchange, action)
            if work is not None:
                exchange.task = self._loop.create_task(work)
        if self._reading_paused and len(self._queue) < MAX_PIPELINED and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    def exchange_finished(self, exchange: Exchange) -> None:
        self._current = None
        self._host.watch.notify()
        if not exchange.request.keep_alive:
            self._closing = True
            self._transport.close()
            return
        self._idle_since = time.monotonic()
        if self._idle_timer is None and self._host.keep_alive_seconds:
            self._idle_timer = self._loop.call_later(self._host.keep_alive_seconds, self._check_idle)
        if self._queue:
            # Not at once: a hundred answers in a row must not become a hundred nested calls.
            self._loop.call_soon(self._start_next)
        elif self._incoming is not None and self._incoming.expects:
            self._incoming.expects = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _client_left(self) -> None:
        now = time.monotonic()
        self._closing = True
        records = [record for _, record, _ in self._queue]
        self._queue.clear()
        incoming, self._incoming = self._incoming, None
        if incoming is not None and incoming.record is not None:
            records.append(incoming.record)
        for record in records:
            record.outcome = "aborted"
            record.aborted_at = record.ended_at = now
            self._host.aborted += 1
        if self._current is not None:
            current, self._current = self._current, None
            self._host.aborted += 1
            current.client_left(now)
        self._host.watch.notify()

    # -- writing and ending

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    async def drained(self) -> None:
        if self._writable is not None:
            await self._writable.wait()

    def die(self, *, rst: bool, settle: bool = False) -> None:
        self._current = None
        self._host.watch.notify()
        self._closing = True
        if not rst:
            self._transport.close()
        elif settle:
            self._loop.call_later(SETTLE_SECONDS, self.reset)
        else:
            self.reset()

    def cut(self) -> None:
        """Break the connection from the worker's side, whatever it is doing."""
        if self._current is not None:
            self._current.die(rst=True)
        self.reset()

    def reset(self) -> None:
        """RST, now."""
        sock = self._transport.get_extra_info("socket")
        if sock is not None and not self._transport.is_closing():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
        self._transport.abort()

    def _refuse(self, status: int, text: bytes) -> None:
        """Answer what cannot be read as a request, and close."""
        self._closing = True
        if self._current is None:
            plain = b"text/plain; charset=utf-8"
            head = response_head(status, plain, (), length=len(text), chunked=False, keep_alive=False)
            self._transport.write(head + text)
        self._transport.close()

    def _check_idle(self) -> None:
        self._idle_timer = None
        if self._idle_since is None or self._current is not None:
            return
        left = self._idle_since + self._host.keep_alive_seconds - time.monotonic()
        if left <= 0.0005:
            self._closing = True
            self._transport.close()
        else:
            self._idle_timer = self._loop.call_later(left, self._check_idle)
