"""The way a response's bytes take to the connection, with a place for faults in the middle of it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from loadtest.simworker.faults import Action
from loadtest.simworker.http import LAST_CHUNK, chunk

DONE_EVENT = b"data: [DONE]\n\n"


class ResponseOver(Exception):
    """The response was ended under its handler's hands; there is nothing left to do for it."""


class Wire(Protocol):
    """What an outlet needs of its connection."""

    def write(self, data: bytes) -> None: ...

    def finished(self) -> None:
        """The response is complete."""

    def die(self, *, rst: bool) -> None:
        """End the connection once what was written has gone out."""

    async def drained(self) -> None:
        """Wait until the peer has taken enough."""


class Outlet:
    """The plain way: everything goes straight out."""

    __slots__ = ("_chunked", "_wire")

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._chunked = False

    def whole(self, head: bytes, body: bytes) -> None:
        """A complete response in one write."""
        self._wire.write(head + body)
        self._wire.finished()

    def start(self, head: bytes, *, chunked: bool) -> None:
        self._chunked = chunked
        self._wire.write(head)

    def send(self, *payloads: bytes) -> None:
        """Parts of the body, each a chunk of its own."""
        self._wire.write(b"".join(map(chunk, payloads)) if self._chunked else b"".join(payloads))

    def end(self) -> None:
        if self._chunked:
            self._wire.write(LAST_CHUNK)
        self._wire.finished()

    async def drain(self) -> None:
        """Wait until more can be sent. Raises ResponseOver when nothing more will be."""
        await self._wire.drained()

    def close(self) -> None:
        """The exchange is over."""


class CutOutlet(Outlet):
    """Lets the response pass up to the place the action names; what comes after a stall waits here."""

    __slots__ = ("_action", "_count", "_error", "_fired", "_held", "_loop", "_over", "_resumed", "_timer", "_total")

    def __init__(self, wire: Wire, action: Action, loop: asyncio.AbstractEventLoop, error: tuple[bytes, ...]) -> None:
        """`error`: the events of a stream whose engine fails."""
        super().__init__(wire)
        self._action = action
        self._error = error
        self._loop = loop
        self._count = 0
        self._total = action.after + action.extra
        self._fired = False
        self._over = False
        self._held: list[tuple[bytes, bool]] | None = None
        self._resumed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def whole(self, head: bytes, body: bytes) -> None:
        self.start(head, chunked=False)
        self.send(body)
        self.end()

    def start(self, head: bytes, *, chunked: bool) -> None:
        self._chunked = chunked
        self._put(head)
        if self._action.unit != "response" and self._total == 0:
            self._fire()

    def send(self, *payloads: bytes) -> None:
        for payload in payloads:
            if self._held is not None or self._fired:
                self._put(chunk(payload) if self._chunked else payload)
            elif self._action.unit == "body":
                self._put_body(payload, self._total - self._count)
            elif self._action.unit == "event":
                self._put_event(payload)
            else:
                self._put(chunk(payload) if self._chunked else payload)

    def end(self) -> None:
        self._put(LAST_CHUNK if self._chunked else b"", last=True)

    async def drain(self) -> None:
        if self._held is not None:
            await self._resumed.wait()
        if self._over:
            raise ResponseOver
        await super().drain()

    def close(self) -> None:
        self._over = True
        self._resumed.set()
        if self._timer is not None:
            self._timer.cancel()

    def _put_body(self, payload: bytes, room: int) -> None:
        """Send at most `room` bytes of the payload before the action."""
        first, rest = payload[:room], payload[room:]
        self._count += len(first)
        if first:
            self._put(chunk(first) if self._chunked else first)
        if self._count >= self._total:
            self._fire()
        if rest:
            self._put(chunk(rest) if self._chunked else rest)

    def _put_event(self, payload: bytes) -> None:
        if self._count < self._action.after:
            self._count += 1
            self._put(chunk(payload) if self._chunked else payload)
            if self._count == self._total:
                self._fire()
            return
        first, rest = payload[: self._action.extra], payload[self._action.extra :]
        self._put(chunk(first) if self._chunked else first)
        self._fire()
        if rest:
            self._put(chunk(rest) if self._chunked else rest)

    def _put(self, data: bytes, *, last: bool = False) -> None:
        if not self._fired and self._action.unit == "response":
            room = self._total - self._count
            self._count += len(data)
            if len(data) >= room:
                self._wire.write(data[:room])
                data = data[room:]
                self._fire()
        if self._over:
            return
        if self._held is not None:
            self._held.append((data, last))
            return
        self._wire.write(data)
        if last:
            self._wire.finished()

    def _fire(self) -> None:
        """Act. Whatever the handler sends after that waits, or never leaves."""
        self._fired = True
        kind = self._action.kind
        if kind == "stall":
            self._held = []
            if self._action.seconds is not None:
                self._timer = self._loop.call_later(self._action.seconds, self._resume)
            return
        self._over = True
        if kind in ("reset", "close"):
            self._wire.die(rst=kind == "reset")
            return
        if self._chunked:
            self._wire.write(b"".join(map(chunk, self._error)) if kind == "stream_error" else b"")
            self._wire.write(LAST_CHUNK)
        self._wire.finished()

    def _resume(self) -> None:
        held, self._held = self._held or [], None
        self._resumed.set()
        for data, last in held:
            self._put(data, last=last)
