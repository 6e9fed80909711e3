"""One connection to a worker.

The socket's callbacks do the work: bytes go through the parser and on to a sink, or land in the response and wake
the one task that waits. Nothing here creates tasks or timers; the pool looks at `deadline` now and then.
"""

from __future__ import annotations

import asyncio
import select
from math import inf
from typing import Final, Protocol, cast

from router import errors
from router.dataplane.outgoing import Outgoing
from router.dataplane.upstream_parser import ResponseParser
from router.dataplane.upstream_response import Sink, UpstreamResponse
from router.dataplane.upstream_types import UpstreamLimits, UpstreamLost

# Up to here one copy of the body is cheaper than a second buffer for the kernel.
JOIN_BYTES: Final = 16384


class ConnectionOwner(Protocol):
    """What a connection tells its pool."""

    def give_back(self, connection: UpstreamConnection) -> None:
        """The answer is complete and the connection may serve another request."""

    def forget(self, connection: UpstreamConnection) -> None:
        """The connection is closed."""


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
