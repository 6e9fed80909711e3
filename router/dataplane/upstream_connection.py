"""One connection to a worker, and the answer that is on it.

The socket's callbacks do the work: bytes go through the parser and on to a sink, or land in the response and wake the
one task that waits. Nothing here creates tasks or timers; the pool looks at `deadline` now and then.
"""

from __future__ import annotations

import asyncio
import select
from math import inf
from typing import Final, Protocol, cast

from router import errors
from router.dataplane.outgoing import Outgoing
from router.dataplane.upstream_parser import ResponseParser
from router.dataplane.upstream_types import UpstreamLimits, UpstreamLost

# Up to here one copy of the body is cheaper than a second buffer for the kernel.
JOIN_BYTES: Final = 16384


class ConnectionOwner(Protocol):
    """What a connection tells its pool."""

    def give_back(self, connection: UpstreamConnection) -> None:
        """The answer is complete and the connection may serve another request."""

    def forget(self, connection: UpstreamConnection) -> None:
        """The connection is closed."""


class Sink(Protocol):
    """Takes an answer's body from within the connection's callback, with no task in between. Must not raise."""

    def take(self, data: bytes) -> bool:
        """More of the body, at least a byte; False when nothing more may be read until `resume` is called."""

    def take_chunk(self, data: bytes, start: int) -> bool:
        """The same for a chunk of the chunked coding as it came, framing and all; its body is `data[start:-2]`."""

    def end(self, data: bytes, error: errors.RouterError | None) -> None:
        """The end, once, with what is left of the body before it; the error says why it is not a clean one."""


class UpstreamResponse:
    """The answer to one request; ends when it is complete, failed or closed, and then holds no connection.

    Its body is read by one task, or poured into a sink from some moment on.
    """

    __slots__ = (
        "_connection",
        "_ended",
        "_error",
        "_loop",
        "_outgoing",
        "_pieces",
        "_waiter",
        "content_length",
        "headers",
        "sent",
        "sink",
        "status",
    )

    status: int
    sink: Sink | None
    headers: list[tuple[bytes, bytes]]  # names in lower case, wire order
    content_length: int | None  # as declared; None when chunked or until close

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: UpstreamConnection,
        pieces: list[bytes],
        sent: float,
        outgoing: Outgoing,
    ) -> None:
        self._loop = loop
        self._outgoing = outgoing
        self.sent = sent  # loop time at which the request was written
        self._connection: UpstreamConnection | None = connection
        self._pieces = pieces
        self._waiter: asyncio.Future[None] | None = None
        self._error: errors.RouterError | None = None
        self._ended = False
        self.sink = None
        self.status = 0
        self.headers = []
        self.content_length = None

    @property
    def complete(self) -> bool:
        """The clean end was seen and nothing is left to read."""
        return self._ended and not self._pieces and self._error is None

    @property
    def error(self) -> errors.RouterError | None:
        """Why the answer will not become complete."""
        return self._error

    @property
    def shown(self) -> bool:
        """Its head is here, or it has failed."""
        return self.status > 0 or self._ended

    def age(self) -> float:
        """Seconds since its request was written."""
        return self._loop.time() - self.sent

    def read_nowait(self) -> bytes:
        """All bytes of the body at hand, possibly none."""
        pieces = self._pieces
        if not pieces:
            return b""
        data = self._taken()
        if self._connection is not None:
            self._connection.consumed()
        return data

    async def read(self) -> bytes:
        """At least one byte, or b"" at the clean end. A fault is raised after the bytes that came before it."""
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._ended:
                return b""
            await self.wait()
        return self.read_nowait()

    async def wait(self) -> None:
        """Until something happened; the wait's cancellation closes the response."""
        if self._waiter is not None:
            raise RuntimeError("another task waits for this response already")
        waiter = self._waiter = self._loop.create_future()
        try:
            await waiter
        except BaseException:
            self.close()
            raise
        finally:
            if waiter.done() and not waiter.cancelled():
                self._outgoing.arrived()
            self._waiter = None

    def pour(self, sink: Sink) -> None:
        """Give the sink what is at hand and all that comes; it may have ended when this returns."""
        self.sink = sink
        if self._ended:
            sink.end(self._taken(), self._error)
        elif self._pieces and self._connection is not None:
            connection = self._connection
            if sink.take(self._taken()):
                connection.consumed()
            else:
                connection.hold()

    def resume(self) -> None:
        """The sink may be given more again."""
        if self._connection is not None:
            self._connection.consumed()

    def close(self) -> None:
        """Give up what has not been read; an unfinished answer's connection is aborted at once.

        A sink hears nothing of it.
        """
        self.sink = None
        if self._connection is not None:
            self._connection.fail(errors.ClientGone("The response was closed before its end."))
        elif self._pieces:
            self._error = self._error or errors.ClientGone("The response was closed before it was read.")
        self._pieces.clear()

    # -- called by the connection --------------------------------------------------------------------------

    def show_head(self, parser: ResponseParser) -> None:
        self.status = parser.status
        self.headers = parser.headers
        self.content_length = parser.content_length

    def finish(self, error: errors.RouterError | None) -> None:
        self._connection = None
        self._ended = True
        self._error = error
        if self.sink is not None:
            self.sink.end(self._taken(), error)
        else:
            self.wake()

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            self._outgoing.expect()
            waiter.set_result(None)

    def _taken(self) -> bytes:
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return data


class UpstreamConnection(asyncio.Protocol):
    """Carries one request at a time. Idle while it has no response; `closed` is final."""

    __slots__ = (
        "_fault",
        "_limits",
        "_loop",
        "_outgoing",
        "_owner",
        "_parser",
        "_paused",
        "_readable",
        "_response",
        "_transport",
        "closed",
        "deadline",
        "reused",
    )

    _readable: select.poll
    closed: bool
    deadline: float  # loop time at which the pool calls `expire`
    reused: bool  # an earlier request went over this connection

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        owner: ConnectionOwner,
        limits: UpstreamLimits,
        outgoing: Outgoing | None = None,
    ) -> None:
        self._loop = loop
        self._outgoing = outgoing or Outgoing()
        self._owner = owner
        self._limits = limits
        self._parser = ResponseParser(limits)
        self._transport: asyncio.Transport | None = None
        self._response: UpstreamResponse | None = None
        self._fault: errors.RouterError | None = None
        self._paused = False
        self.closed = False
        self.deadline = inf
        self.reused = False

    def reconfigure(self, limits: UpstreamLimits) -> None:
        """Other limits for what begins from now on."""
        self._limits = limits

    # -- called by the pool --------------------------------------------------------------------------------

    def start(self, head: bytes, body: bytes, *, bodyless: bool) -> UpstreamResponse:
        """Write a request; its response is filled as the answer comes in."""
        transport = self._transport
        if self.closed or transport is None:
            raise self._fault or self._lost()
        parser = self._parser
        parser.start(bodyless=bodyless)
        now = self._loop.time()
        response = self._response = UpstreamResponse(self._loop, self, parser.pieces, now, self._outgoing)
        self.deadline = now + self._limits.first_byte_seconds
        if len(body) <= JOIN_BYTES:
            self._outgoing.send(transport, head + body)
        else:
            self._outgoing.send(transport, head, body)
        return response

    def rest(self) -> None:
        """Become idle."""
        self.reused = True
        self.deadline = self._loop.time() + self._limits.keep_alive_seconds

    def fresh(self) -> bool:
        """Whether an idle connection may be used: young enough, open, and silent.

        The kernel may hold bytes or an end that the loop has not delivered yet; bytes would be taken for the answer.
        """
        transport = self._transport
        if transport is None or transport.is_closing() or self._loop.time() >= self.deadline:
            return False
        return not self._readable.poll(0)

    def expire(self) -> None:
        """The deadline has passed."""
        response = self._response
        if response is None:
            self.abort()
        elif response.status:
            self.fail(errors.UpstreamTimeout("The worker stopped in the middle of its answer."))
        else:
            self.fail(errors.UpstreamTimeout("The worker did not begin its answer in time."))

    def fail(self, error: errors.RouterError) -> None:
        """End the answer with an error, and the connection."""
        response = self._response
        self._response = None
        self.abort()
        if response is not None:
            response.finish(error)

    def abort(self) -> None:
        """Close now, without sending what is still buffered."""
        if self.closed:
            return
        self.closed = True
        self.deadline = inf
        self._owner.forget(self)
        self._parser.release()
        if self._transport is not None:
            self._transport.abort()

    def lose(self) -> None:
        """End an answer because the connection ended."""
        self.fail(self._lost())

    # -- called by the response ----------------------------------------------------------------------------

    def consumed(self) -> None:
        """The pieces at hand were taken."""
        self._parser.buffered = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self.deadline = self._loop.time() + self._limits.idle_seconds
            self._transport.resume_reading()

    def hold(self) -> None:
        """The pieces at hand were taken, and no more are wanted for now."""
        self._parser.buffered = 0
        if not self.closed:
            self._pause()

    # -- called by the event loop --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = opened = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self._readable = select.poll()
        self._readable.register(opened.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            if not self.closed:
                self._fault = errors.UpstreamProtocolError("The worker sent bytes that nobody asked for.")
                self.abort()
            return
        parser = self._parser
        sink = response.sink
        if sink is not None and (start := parser.plain_chunk(data)):
            if sink.take_chunk(data, start):
                self.deadline = self._loop.time() + self._limits.idle_seconds
            elif self._response is response:
                self._pause()
            return
        try:
            parser.feed(data)
        except errors.UpstreamProtocolError as error:
            self.fail(error)
            return
        if parser.done:
            self._complete(response)
        elif parser.buffered:
            if sink is not None:
                self._pour(response, sink)
                return
            if not response.status:
                response.show_head(parser)
            if parser.buffered > self._limits.read_buffer:
                self._pause()
            else:
                self.deadline = self._loop.time() + self._limits.idle_seconds
            response.wake()

    def eof_received(self) -> None:
        response = self._response
        if response is not None and self._parser.eof():
            self._complete(response)
        else:
            self.lose()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed:
            self.lose()

    def resume_writing(self) -> None:
        response = self._response
        if response is not None and not response.status:
            self.deadline = self._loop.time() + self._limits.first_byte_seconds

    # ------------------------------------------------------------------------------------------------------

    def _complete(self, response: UpstreamResponse) -> None:
        parser = self._parser
        transport = self._transport
        if not response.status:
            response.show_head(parser)
        self._response = None
        if parser.keep_alive and not parser.surplus and transport is not None and self._has_sent(transport):
            self._owner.give_back(self)
        else:
            self.abort()
        response.finish(None)

    def _has_sent(self, transport: asyncio.Transport) -> bool:
        """An answer that came before its request was sent leaves the rest of the request on the connection."""
        return not transport.get_write_buffer_size() and not self._outgoing.holds(transport)

    def _pour(self, response: UpstreamResponse, sink: Sink) -> None:
        parser = self._parser
        pieces = parser.pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        parser.buffered = 0
        if sink.take(data):
            self.deadline = self._loop.time() + self._limits.idle_seconds
        elif self._response is response:
            self._pause()

    def _pause(self) -> None:
        """The reader is behind; its worker's silence is no fault while nobody listens."""
        if not self._paused and self._transport is not None:
            self._paused = True
            self.deadline = inf
            self._transport.pause_reading()

    def _lost(self) -> UpstreamLost:
        return UpstreamLost(
            "The worker closed the connection before its answer was complete.",
            bytes_received=self._parser.received,
            reused=self.reused,
        )
