"""The downstream side of one request: its head, its body, and an answer that can be broken off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from router.dataplane.headers import Headers, first
from router.dataplane.server import CONNECTION, RouterProtocol
from router.errors import ClientGone, PayloadTooLarge, RouterError, Unavailable, UnsupportedMediaType
from router.wire import error_body, error_headers, usable_request_id

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


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
        "_held",
        "_receive",
        "_send",
        "_task",
        "gone",
        "headers",
        "method",
        "path",
        "query",
        "request_id",
        "stage",
        "started",
        "status",
    )

    def __init__(self, scope: Any, receive: Receive, send: Send, budget: BodyBudget, request_id: bytes) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: bytes = scope["query_string"]
        self.headers: Headers = scope["headers"]
        given = first(self.headers, b"x-request-id")
        self.request_id = given if given is not None and usable_request_id(given) else request_id
        self.gone = False
        self.started = False
        self.status = 0
        self.stage = "body"
        self._receive = receive
        self._send = send
        self._budget = budget
        self._held = 0
        self._connection: RouterProtocol = scope[CONNECTION]
        self._task: asyncio.Task[Any] | None = None

    def attach(self, task: asyncio.Task[Any]) -> None:
        """Cancel this task, which serves the request, as soon as the client leaves."""
        self._task = task
        self._connection.on_gone = self._gone

    def detach(self) -> None:
        """The request has ended; give back what it held."""
        self._connection.on_gone = None
        self._task = None
        self.let_body_go()

    def _gone(self) -> None:
        self.gone = True
        if self._task is not None:
            self._task.cancel()

    async def read_body(self, limit: int) -> bytes:
        """The whole body; raises PayloadTooLarge, UnsupportedMediaType, Unavailable, ClientGone."""
        if first(self.headers, b"content-encoding") not in (None, b"identity"):
            raise UnsupportedMediaType("Compressed request bodies are not accepted.")
        declared = first(self.headers, b"content-length")
        if declared is not None and int(declared) > limit:
            raise PayloadTooLarge(f"The body is larger than {limit} bytes.")
        pieces: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone("The client left.")
            piece = message["body"]
            size += len(piece)
            if size > limit:
                raise PayloadTooLarge(f"The body is larger than {limit} bytes.")
            self._budget.take(len(piece))
            self._held += len(piece)
            pieces.append(piece)
            more = message["more_body"]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def let_body_go(self) -> None:
        """The body is no longer needed."""
        self._budget.give(self._held)
        self._held = 0

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head of the answer; x-request-id is added here."""
        self.started = True
        self.status = status
        headers.append((b"x-request-id", self.request_id))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes, *, more: bool) -> None:
        """Send bytes of the answer, waiting while the client reads slowly."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def answer_error(self, error: RouterError) -> None:
        """A whole answer that says what went wrong."""
        body = error_body(error)
        headers = error_headers(error)
        headers.append((b"content-length", str(len(body)).encode()))
        if not self._complete:
            # What is left of the body would be taken for the next request.
            headers.append((b"connection", b"close"))
        await self.start(error.status, headers)
        await self.write(body, more=False)

    def break_off(self) -> None:
        """End a begun answer so that nobody takes it for complete."""
        self._connection.on_gone = None
        self._connection.break_off()

    @property
    def _complete(self) -> bool:
        return not self._connection.waiting_for
