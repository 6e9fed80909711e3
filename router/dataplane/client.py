"""The downstream side of one inference request: its head, its body, and an answer written straight to the transport.

There are no ASGI messages in between: they would cost as much again as forwarding the bytes. The head of the answer
waits for the first piece of its body, so that both go out in one write.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Coroutine
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from router.dataplane.headers import Headers
from router.errors import PayloadTooLarge, RouterError, Unavailable
from router.routes import Route
from router.wire import error_body, error_headers, usable_request_id

if TYPE_CHECKING:
    from router.dataplane.server import RouterProtocol
    from router.dataplane.upstream import UpstreamResponse

_RESET: Final = struct.pack("ii", 1, 0)
_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus if status >= 200
}


class BodyBudget:
    """Bytes of request bodies held in memory by all requests."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def take(self, size: int) -> None:
        """Hold more bytes; raises Unavailable when the limit is reached."""
        if self.held + size > self.limit:
            raise Unavailable("Too many request bodies are in memory at the moment.", retry_after=2)
        self.held += size

    def give(self, size: int) -> None:
        """Let bytes go."""
        self.held -= size


class Client:
    """One request as the data plane sees it. `gone` turns true when the connection is lost before the answer's end."""

    __slots__ = (
        "_budget",
        "_connection",
        "_head",
        "_held",
        "_outgoing",
        "_pieces",
        "_size",
        "chunked",
        "expects",
        "fields",
        "gone",
        "headers",
        "keep_alive",
        "limit",
        "method",
        "path",
        "query",
        "refusal",
        "request_id",
        "response_complete",
        "route",
        "stage",
        "started",
        "status",
        "stored",
        "task",
        "tenant",
        "turn",
        "upstream",
        "version_10",
        "whole",
    )

    def __init__(
        self, connection: RouterProtocol, method: bytes, path: str, query: bytes, budget: BodyBudget, spare_id: bytes
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers: Headers = connection.headers
        # The first value of each field; the list above has all of them in order.
        self.fields = connection.fields
        given = self.fields.get(b"x-request-id")
        self.request_id = given if given is not None and usable_request_id(given) else spare_id
        self.route: Route | None = None
        self.stored: tuple[str, str] | None = None
        self.tenant = ""
        self.limit = 0
        self.version_10 = connection.old
        self.keep_alive = connection.keep_alive
        self.response_complete = False
        # The request's own state: whole once its body is here, its turn once earlier ones on the connection are done.
        self.whole = False
        self.turn = False
        self.expects = False
        self.gone = False
        self.started = False
        self.status = 0
        self.stage = "body"
        self.refusal: RouterError | None = None
        self.task: asyncio.Task[Any] | None = None
        # The answer that is poured into this client.
        self.upstream: UpstreamResponse | None = None
        self._connection = connection
        self._outgoing = connection.connections.gate.outgoing
        self._budget = budget
        self._pieces: list[bytes] = []
        self._size = 0
        self._held = 0
        self._head: bytes | None = None
        self.chunked = False

    @property
    def size(self) -> int:
        """Bytes of the body that have come so far."""
        return self._size

    # -- the request -------------------------------------------------------------------------------------

    def feed(self, piece: bytes) -> None:
        """More of the body; raises PayloadTooLarge. What is refused already is not kept."""
        if self.refusal is not None:
            return
        self._size += len(piece)
        if self._size > self.limit:
            raise PayloadTooLarge(f"The body is larger than {self.limit} bytes.")
        try:
            self._budget.take(len(piece))
        except Unavailable as error:
            self.refuse(error)
            return
        self._held += len(piece)
        self._pieces.append(piece)

    def refuse(self, error: RouterError) -> None:
        """Answer with this error once the request is whole, and keep none of it until then."""
        self.refusal = error
        self._pieces.clear()
        self.let_body_go()

    def take_body(self) -> bytes:
        """The whole body, handed over."""
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def let_body_go(self) -> None:
        """The body is no longer needed."""
        self._budget.give(self._held)
        self._held = 0

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task for this request, which the server's shutdown waits for."""
        return self._connection.spawn(work)

    def end_task(self) -> None:
        """Called by the task of this request as its last word."""
        task, self.task = self.task, None
        if task is not None:
            self._connection.forget(task)

    def be_last(self) -> None:
        """The connection ends with this answer, unless its head has promised otherwise."""
        self.keep_alive = self.keep_alive and self.started

    def lost(self) -> None:
        """The connection is gone: end the work for it at once."""
        if self.gone or self.response_complete:
            return
        self.gone = True
        if self.task is not None:
            # A task that is cancelled before its first step never gets to its own end; it will see for itself.
            if self.stage != "body":
                self.task.cancel()
        else:
            self._pieces.clear()
            self.let_body_go()

    # -- the answer --------------------------------------------------------------------------------------

    def start(self, status: int, headers: Headers, length: int | None) -> None:
        """The head of the answer, framing and x-request-id added; it is sent with the first piece of the body."""
        self.begin(status, b"".join([b"%b: %b\r\n" % pair for pair in headers]), length)

    def begin(self, status: int, lines: bytes, length: int | None) -> None:
        """The same with header lines that are written already, each with its end."""
        self.started = True
        self.status = status
        if status in (204, 304):
            framing = b""  # neither has a body, whatever its worker says
        elif length is not None:
            framing = b"content-length: %d\r\n" % length
        elif self.version_10:
            self.keep_alive = False
            framing = b""
        else:
            self.chunked = True
            framing = b"transfer-encoding: chunked\r\n"
        if not self.keep_alive:
            framing += b"connection: close\r\n"
        line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
        self._head = b"%b%bx-request-id: %b\r\n%b\r\n" % (line, lines, self.request_id, framing)

    @property
    def paused(self) -> bool:
        """The client reads more slowly than it is written to."""
        return self._connection.flow.write_paused

    def writable(self) -> None:
        """The client has read enough to be written to again."""
        if self.upstream is not None:
            self.upstream.resume()

    async def drain(self) -> None:
        """Wait until the client has read enough; the connection's write stall bounds it."""
        await self._connection.flow.drain()

    def write(self, data: bytes, *, more: bool) -> None:
        """Send bytes of the answer; without `more` they are the last ones."""
        if self.gone:
            return
        if self.chunked:
            if data:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            if not more:
                data += b"0\r\n\r\n"
        if self._head is not None:
            data, self._head = self._head + data, None
        if data:
            if more or not self.keep_alive:
                self._outgoing.now(self._connection.transport, data)
            else:
                self._outgoing.send(self._connection.transport, data)
        if not more:
            self._finish()

    def write_chunk(self, data: bytes) -> None:
        """Send a chunk that is framed already; the answer is `chunked`, and its head has gone out."""
        if not self.gone:
            self._connection.transport.write(data)

    def answer_error(self, error: RouterError) -> None:
        """A whole answer that says what went wrong."""
        body = error_body(error)
        if not self.whole:
            # What is left of the body would be taken for the next request.
            self.keep_alive = False
        self.start(error.status, error_headers(error), len(body))
        self.write(b"" if self.method == b"HEAD" else body, more=False)

    def break_off(self, *, told: bool = False) -> None:
        """End a begun answer so that nobody takes it for complete: no last chunk, no full length.

        Where the end of the connection is the end of the answer, and the client was not `told` of the failure in an
        event, only a reset shows that something is missing. An answer that has ended already is left alone: what failed
        after that is none of its client's business, and its last bytes may not have left yet.
        """
        if self.response_complete:
            return
        self.response_complete = True
        transport = self._connection.transport
        if self.version_10 and not told:
            # Without this a transport that aborts says goodbye like one that has finished.
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()
        else:
            transport.close()

    def _finish(self) -> None:
        self.response_complete = True
        if not self.keep_alive:
            self._connection.transport.close()
        self._connection.on_response_complete()
