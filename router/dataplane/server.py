"""The downstream protocol: httptools' parser, made strict, given deadlines, and short for inference.

The parser leaves open what a proxy must not: both length headers at once, several Host headers, header sections of any
size, and clients that never finish. What is refused here never reaches a worker. Inference requests become a `Client`
and bypass ASGI; all others take uvicorn's way to the control plane.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

import httptools

from router.dataplane.asgi import ControlRequest, ControlSide
from router.dataplane.client import Client
from router.dataplane.flow import Flow
from router.dataplane.framing import check_framing, head_without_upgrade
from router.dataplane.headers import USUAL_NAMES, Headers
from router.dataplane.owed import BODY, HEADER, LINGER_SECONDS, NOTHING
from router.dataplane.refusals import refuse, turn_away
from router.errors import BadRequest, HeadersTooLarge, PayloadTooLarge, RouterError

if TYPE_CHECKING:
    from router.dataplane.connections import Connections

# A read brings up to this much at once, so this much more than the limit may arrive before it is noticed.
_READ_SLACK: Final = 256 * 1024
# While so many requests of one connection wait for their turn, nothing more is read from it, not even between answers.
# A few may come: a connection that is closed over bytes that nobody has read is reset, and its last answer may be lost.
_LONG_LINE: Final = 16


class RouterProtocol:
    """One client connection.

    `request` is the latest one on it, `serving` the one that is answered, `in_line` are those that wait for their turn.
    """

    __slots__ = (
        "_control",
        "_header_bytes",
        "_loop",
        "_parser",
        "_url",
        "_waits_anew",
        "connections",
        "expects",
        "fields",
        "flow",
        "headers",
        "in_line",
        "keep_alive",
        "old",
        "owed",
        "parting",
        "rejection",
        "request",
        "serving",
        "stalled_since",
        "transport",
        "unparsed",
        "waiting_since",
    )

    transport: asyncio.Transport
    flow: Flow

    def __init__(self, connections: Connections, control: ControlSide, loop: asyncio.AbstractEventLoop) -> None:
        self.connections = connections
        self._control = control
        self._loop = loop
        self._parser: Any = None
        self._parse_anew()
        self.rejection: RouterError | None = None
        self.request: Client | ControlRequest | None = None
        self.serving: Client | ControlRequest | None = None
        self.in_line: deque[Client | ControlRequest] = deque()
        # The head of the request that is read.
        self._url = b""
        self.headers: Headers = []
        self.fields: dict[bytes, bytes] = {}  # the first value of each
        self.expects = False
        self.old = False  # HTTP/1.0
        self.keep_alive = True
        self._header_bytes = 0
        # What the client owes, since when; bytes that have come and were not yet made a head or a body's end.
        self.owed: int = HEADER
        self.waiting_since = time.monotonic()
        self._waits_anew = False
        self.unparsed = 0
        self.stalled_since: float | None = None
        # Since when a connection that is being closed has had so many bytes left to send.
        self.parting: tuple[float, int] | None = None

    # -- the transport -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:
        """A client is there."""
        self.transport = transport
        self.flow = Flow(transport)
        connections = self.connections
        self._control.connections.add(self)
        connections.open.add(self)
        if len(connections.open) - len(connections.turned_away) > connections.bounds.connections:
            turn_away(self)
        elif connections.draining:
            self.shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, and with it whatever is done for it."""
        self._control.connections.discard(self)
        self.connections.open.discard(self)
        self.connections.turned_away.discard(self)
        for request in (self.serving, *self.in_line, self.request):
            if isinstance(request, Client):
                if not request.gone and not request.response_complete:
                    request.lost()
                    if request.task is None:
                        self.connections.gate.left(request)
            elif request is not None:
                request.lost()
        self.in_line.clear()
        self.flow.resume_writing()
        # They refer to this.
        self._parser = self.request = self.serving = None

    def eof_received(self) -> None:
        """The client has closed its side, and is taken to have left: the transport closes."""

    def pause_writing(self) -> None:
        """The client does not read."""
        self.flow.pause_writing()
        self.stalled_since = time.monotonic()

    def resume_writing(self) -> None:
        """It reads again."""
        self.flow.resume_writing()
        self.stalled_since = None
        if isinstance(self.serving, Client):
            self.serving.writable()

    def data_received(self, data: bytes) -> None:
        """Bytes of requests, in any pieces."""
        if self.rejection is not None:
            if self in self.connections.turned_away:
                # It has asked for something, so that it may be listening for an answer, which is there.
                self.transport.close()
            return
        self.unparsed += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrades(memoryview(data)[int(upgrade.args[0]) :])
        except httptools.HttpParserError:
            refuse(self)
        if self._waits_anew:
            # Most requests came whole, and nothing is owed any more: their times would be nobody's business.
            self._waits_anew = False
            if self.owed == HEADER or self.owed == BODY:
                self.waiting_since = time.monotonic()
        if self.owed == HEADER and self.unparsed > self.connections.bounds.header_bytes + _READ_SLACK:
            # A single field that never ends is held back by the parser, so no callback counts it.
            self.rejection = HeadersTooLarge(
                f"More than {self.connections.bounds.header_bytes} bytes of header fields."
            )
            refuse(self)

    # -- the parser's callbacks ----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._url = b""
        self.headers = []
        self.fields = {}
        self._header_bytes = 0
        self.owed = HEADER
        self._waits_anew = True

    def on_url(self, url: bytes) -> None:
        """The target, or a piece of it."""
        self._url += url
        self._header_bytes += len(url)
        self._check_size()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer."""
        # A trailer counts, but must not be taken for a header: it comes too late for what those are checked for.
        if self.owed == HEADER:
            usual = USUAL_NAMES.get(name)
            name = name.lower() if usual is None else usual
            self.headers.append((name, value))
            self.fields.setdefault(name, value)
        self._header_bytes += len(name) + len(value) + 4
        bounds = self.connections.bounds
        if self._header_bytes > bounds.header_bytes or len(self.headers) > bounds.header_count:
            self._check_size()

    def on_headers_complete(self) -> None:
        """The head is there: whose request it is, and what becomes of it."""
        parser = self._parser
        version: str = parser.get_http_version()
        try:
            self.expects = check_framing(self.headers, self.fields, version, self.connections.bounds.body_bytes)
        except RouterError as error:
            self._reject(error)
        method: bytes = parser.get_method()
        if parser.should_upgrade():
            if method == b"CONNECT":
                self._reject(BadRequest("This is no proxy for connections."))
            return  # the parser takes what follows for another protocol; see `_decline_upgrades`
        self.old = version == "1.0"
        self.keep_alive = not self.old and bool(parser.should_keep_alive())
        before = self.request
        self.request = request = self._request(method, version)
        self.owed = BODY
        self._waits_anew = True
        self.unparsed = 0
        if self.connections.draining:
            request.be_last()
        if before is None or before.response_complete:
            self._give_turn(request)
        else:
            self.in_line.append(request)
            self.flow.crowded = len(self.in_line) >= _LONG_LINE
            self.flow.pause_reading()

    def _request(self, method: bytes, version: str) -> Client | ControlRequest:
        path, _, query = self._url.partition(b"?")
        if not path.startswith(b"/"):
            path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
        client = self.connections.gate.admit(self, method, path, query)
        if client is not None:
            client.expects = self.expects
            return client
        return self._control.request(
            self.transport,
            self.flow,
            (method, self._url, version),
            self.headers,
            expects=self.expects,
            keep_alive=self.keep_alive,
            done=self.on_response_complete,
        )

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        request = self.request
        if isinstance(request, Client):
            try:
                request.feed(body)
            except PayloadTooLarge as error:
                self._reject(error)
        elif request is not None:
            request.feed(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self.owed == HEADER:
            return  # only the head of a request that asks for another protocol
        self.owed = NOTHING
        self.unparsed = 0
        request = self.request
        if isinstance(request, Client):
            request.whole = True
            if request.turn and not request.response_complete:
                self.connections.gate.begin(request)
        elif request is not None:
            request.end_body()

    # -- turns ---------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """An answer has ended: the next request on the connection, or rest."""
        self.serving = None
        if self.owed == NOTHING:
            self.waiting_since = time.monotonic()
        if self.transport.is_closing():
            return
        request = self.in_line.popleft() if self.in_line else None
        self.flow.crowded = len(self.in_line) >= _LONG_LINE
        self.flow.resume_reading()
        if request is not None:
            self._give_turn(request)
            if isinstance(request, Client) and request.whole and not request.response_complete:
                # Not from within the answer before it: many in line that are refused at once would nest without end.
                self._loop.call_soon(self._begin_in_turn, request)
        if self.connections.draining and not self.transport.is_closing():
            self.shutdown()

    def shutdown(self) -> None:
        """The listener is closed: end with the answer under way, or soon, if nothing comes."""
        request = self.request
        if request is not None and not request.response_complete:
            request.be_last()
        else:
            self._loop.call_later(LINGER_SECONDS, self._close_if_idle)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that the server's shutdown waits for, until `forget` is called with it: a callback would cost more."""
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._control.tasks.add(task)
        return task

    def forget(self, task: asyncio.Task[None]) -> None:
        """It is about to end."""
        self._control.tasks.discard(task)

    def _close_if_idle(self) -> None:
        if self.request is None or self.request.response_complete:
            self.transport.close()

    def _give_turn(self, request: Client | ControlRequest) -> None:
        """All earlier answers on the connection have ended, so that this client may be spoken to."""
        self.serving = request
        if not isinstance(request, Client):
            request.start(self._loop)
            return
        request.turn = True
        if not request.expects or request.whole:
            return
        if request.refusal is None:
            self.connections.gate.outgoing.now(self.transport, b"HTTP/1.1 100 Continue\r\n\r\n")
        else:
            # The client waits for leave to send its body, and will not get it.
            self.connections.gate.begin(request)

    def _begin_in_turn(self, client: Client) -> None:
        if not client.gone and not client.response_complete and not self.transport.is_closing():
            self.connections.gate.begin(client)

    # -- what is not served --------------------------------------------------------------------------------

    def _decline_upgrades(self, rest: memoryview) -> None:
        """Read a request again without its wish for another protocol, as servers that know none do, and what follows.

        Some clients of HTTP/2 ask for it with every first request, and the parser takes such a request's body for
        bytes of that protocol. Any number of such requests may stand in one piece of data.
        """
        while self.rejection is None:
            parser = self._parser
            head = head_without_upgrade(parser.get_method(), self._url, parser.get_http_version(), self.headers)
            self._parse_anew()
            try:
                self._parser.feed_data(head)
                self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[int(upgrade.args[0]) :]
            except httptools.HttpParserError:
                refuse(self)

    def _parse_anew(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        # What stands behind a request that asks for the connection's end does not make that request wrong.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _check_size(self) -> None:
        bounds = self.connections.bounds
        if self._header_bytes > bounds.header_bytes:
            self._reject(HeadersTooLarge(f"More than {bounds.header_bytes} bytes of header fields."))
        if len(self.headers) > bounds.header_count:
            self._reject(HeadersTooLarge(f"More than {bounds.header_count} header fields."))

    def _reject(self, error: RouterError) -> None:
        self.rejection = error
        raise error
