"""One request and the answer being made for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from loadtest.simworker.answers import stream_error
from loadtest.simworker.faults import Action
from loadtest.simworker.http import EVENT_STREAM, JSON, Headers, Request, response_head
from loadtest.simworker.outlet import CutOutlet, Outlet, ResponseOver
from loadtest.simworker.records import Record

# An answer that was only late, or refused in good form, is a complete answer.
_HARMLESS = (None, "stall", "status")


class Carrier(Protocol):
    """The connection under an exchange."""

    def write(self, data: bytes) -> None: ...

    async def drained(self) -> None: ...

    def exchange_finished(self, exchange: Exchange) -> None: ...

    def die(self, *, rst: bool, settle: bool = False) -> None: ...


class Exchange:
    """Handlers answer through this; it ends exactly once, by `finished`, by `die` or by the client leaving."""

    __slots__ = ("_carrier", "cleanup", "closed", "extra_headers", "outlet", "record", "request", "task")

    def __init__(self, carrier: Carrier, request: Request, record: Record) -> None:
        self._carrier = carrier
        self.request = request
        self.record = record
        self.outlet = Outlet(self)
        self.closed = False
        self.cleanup: Callable[[], None] | None = None
        self.task: asyncio.Task[None] | None = None
        self.extra_headers: tuple[tuple[bytes, bytes], ...] = ()

    def script(self, action: Action, loop: asyncio.AbstractEventLoop) -> None:
        """Let the action act in the middle of the coming answer."""
        self.outlet = CutOutlet(self, action, loop, stream_error(self.request.path))
        self.record.fault = action.kind

    # -- for handlers

    def reply(self, status: int, body: bytes, content_type: bytes = JSON, headers: Headers = ()) -> None:
        self.record.status = status
        head = self._head(status, content_type, (*self.extra_headers, *headers), len(body), chunked=False)
        self.outlet.whole(head, b"" if self.request.method == "HEAD" else body)

    def reply_json(self, body: object, status: int = 200, headers: Headers = ()) -> None:
        self.reply(status, msgspec.json.encode(body), JSON, headers)

    def start(self, content_type: bytes = EVENT_STREAM) -> None:
        """Send the head of a stream."""
        self.record.status = 200
        chunked = not self.request.http10
        if not chunked:
            self.request.keep_alive = False
        self.outlet.start(self._head(200, content_type, self.extra_headers, None, chunked=chunked), chunked=chunked)

    def send(self, *payloads: bytes) -> None:
        self.outlet.send(*payloads)

    async def drain(self) -> None:
        await self.outlet.drain()

    def end(self) -> None:
        self.outlet.end()

    def _head(self, status: int, content_type: bytes, headers: Headers, length: int | None, *, chunked: bool) -> bytes:
        keep_alive = self.request.keep_alive
        return response_head(status, content_type, headers, length=length, chunked=chunked, keep_alive=keep_alive)

    # -- for the outlet

    def write(self, data: bytes) -> None:
        if data and not self.closed:
            if self.record.first_byte_at is None:
                self.record.first_byte_at = time.monotonic()
            self._carrier.write(data)

    async def drained(self) -> None:
        if self.closed:
            raise ResponseOver
        await self._carrier.drained()

    def finished(self) -> None:
        """The answer is complete as far as it will ever be."""
        if not self.closed:
            self.record.outcome = "done" if self.record.fault in _HARMLESS else "fault"
            self.close()
            self._carrier.exchange_finished(self)

    def die(self, *, rst: bool) -> None:
        """Break the connection after what was written."""
        if not self.closed:
            self.record.outcome = "fault"
            self.close()
            self._carrier.die(rst=rst, settle=self.record.first_byte_at is not None)

    # -- for the connection

    def client_left(self, now: float) -> None:
        """The connection is gone before the answer was complete."""
        if self.closed:
            return
        self.record.aborted_at = now
        self.record.outcome = "aborted"
        self.close()
        if self.task is not None:
            self.task.cancel()

    def close(self) -> None:
        self.closed = True
        self.record.ended_at = time.monotonic()
        self.outlet.close()
        cleanup, self.cleanup = self.cleanup, None
        if cleanup is not None:
            cleanup()
