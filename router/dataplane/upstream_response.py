"""The answer to one request of a worker, read by one task or poured into a sink.

Its connection fills it from within the socket's callbacks, and wakes the one task that waits.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from router import errors
from router.dataplane.outgoing import Outgoing
from router.dataplane.upstream_parser import ResponseParser

if TYPE_CHECKING:
    from router.dataplane.upstream_connection import UpstreamConnection


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
