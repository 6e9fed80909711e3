"""The downstream protocol: uvicorn's httptools protocol, made strict and given deadlines.

httptools leaves open what a proxy must not: both length headers at once, several Host headers, header sections of any
size, and clients that never finish. What is refused here never reaches a worker.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from router.errors import BadRequest, HeadersTooLarge, PayloadTooLarge, RequestTimeout, RouterError
from router.wire import error_body, plain_response

CONNECTION = "router.connection"
_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one connection may send and how long it may take; bytes and seconds."""

    header_bytes: int = 32 * 1024
    header_count: int = 100
    body_bytes: int = 64 * 1024 * 1024
    header_seconds: float = 10.0
    body_seconds: float = 60.0
    write_stall_seconds: float = 60.0


class RouterProtocol(HttpToolsProtocol):
    """One client connection."""

    bounds: ClassVar[Bounds] = Bounds()
    open_connections: ClassVar[set[RouterProtocol]] = set()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.on_gone: Callable[[], None] | None = None
        self.rejection: RouterError | None = None
        # Deadlines are looked at by one sweep for all connections; a timer for each would cost more than a request.
        self.waiting_since = time.monotonic()
        self.waiting_for = "header"
        self.stalled_since: float | None = None
        self._header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.open_connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open_connections.discard(self)
        super().connection_lost(exc)
        if self.on_gone is not None:
            self.on_gone()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.stalled_since = time.monotonic()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.stalled_since = None

    # -- parser callbacks ------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]
        self._header_bytes = 0
        self.waiting_since = time.monotonic()
        self.waiting_for = "header"

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value) + 4)
        if len(self.headers) > self.bounds.header_count:
            self._reject(HeadersTooLarge(f"More than {self.bounds.header_count} header fields."))

    def on_headers_complete(self) -> None:
        self._check_framing()
        self.waiting_since = time.monotonic()
        self.waiting_for = "body"
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self.waiting_for = ""
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.waiting_for:
            self.waiting_since = time.monotonic()

    # -- refusals --------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """Called for anything that the parser or a check refused."""
        error = self.rejection or BadRequest("The request is not well-formed HTTP.")
        busy = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if busy:
            self.transport.abort()
            return
        self.transport.write(plain_response(error.status, error_body(error), request_id=f"rejected-{next(_ids)}"))
        self.transport.close()

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self.bounds.header_bytes:
            self._reject(HeadersTooLarge(f"More than {self.bounds.header_bytes} bytes of header fields."))

    def _check_framing(self) -> None:
        hosts = lengths = 0
        chunked = False
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                lengths += 1
                self._check_length(value)
            elif name == b"transfer-encoding":
                if value.strip().lower() != b"chunked" or chunked:
                    self._reject(BadRequest("Only one transfer coding, chunked, is understood."))
                chunked = True
        version = self.parser.get_http_version()
        if lengths > 1 or (lengths and chunked):
            self._reject(BadRequest("The length of the body is given more than once."))
        if chunked and version == "1.0":
            self._reject(BadRequest("HTTP/1.0 has no chunked bodies."))
        if hosts > 1 or (hosts == 0 and version != "1.0"):
            self._reject(BadRequest("A request has exactly one Host header."))

    def _check_length(self, value: bytes) -> None:
        if not value.isdigit():
            self._reject(BadRequest("Content-Length is not a number."))
        if len(value) > 18 or int(value) > self.bounds.body_bytes:
            self._reject(PayloadTooLarge(f"The body is larger than {self.bounds.body_bytes} bytes."))

    def _reject(self, error: RouterError) -> None:
        self.rejection = error
        raise error

    # -- deadlines -------------------------------------------------------------------------------------

    @classmethod
    def sweep(cls, now: float) -> None:
        """Close what has taken too long; called about once a second."""
        bounds = cls.bounds
        for connection in tuple(cls.open_connections):
            if connection.stalled_since is not None and now - connection.stalled_since > bounds.write_stall_seconds:
                connection.transport.abort()
            elif connection.waiting_for:
                limit = bounds.header_seconds if connection.waiting_for == "header" else bounds.body_seconds
                if now - connection.waiting_since > limit:
                    connection._too_slow()

    def _too_slow(self) -> None:
        if self.transport.is_closing():
            return
        self.rejection = RequestTimeout("The request did not arrive in time.")
        self.send_400_response("")

    def break_off(self) -> None:
        """End an answer so that nobody takes it for complete: no last chunk, and a reset where that shows nothing."""
        cycle: RequestResponseCycle = self.cycle
        cycle.disconnected = True
        if cycle.chunked_encoding or cycle.expected_content_length > 0:
            self.transport.close()
        else:
            self.transport.abort()


def protocol_class(bounds: Bounds) -> type[RouterProtocol]:
    """The protocol with these bounds and its own set of connections."""
    return type("BoundProtocol", (RouterProtocol,), {"bounds": bounds, "open_connections": set()})
