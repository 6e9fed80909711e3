"""The downstream protocol: uvicorn's httptools protocol, made strict, given deadlines, and short for inference.

httptools leaves open what a proxy must not: both length headers at once, several Host headers, header sections of any
size, and clients that never finish. What is refused here never reaches a worker. Inference requests become a `Client`
and bypass ASGI; all others take uvicorn's way to the control plane.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from router.dataplane.client import Client
from router.dataplane.framing import check_framing, head_without_upgrade
from router.dataplane.gate import Bounds, Gate
from router.dataplane.sockets import peer_has_left
from router.errors import BadRequest, HeadersTooLarge, PayloadTooLarge, RequestTimeout, RouterError, TooManyConnections
from router.wire import plain_error

_ids = itertools.count(1)
# A read brings up to this much at once, so this much more than the limit may arrive before it is noticed.
_READ_SLACK = 256 * 1024
# A balancer may be writing into a kept connection while it is closed; so long such connections outlive the listener.
_LINGER_SECONDS = 1.0


class RouterProtocol(HttpToolsProtocol):
    """One client connection."""

    bounds: ClassVar[Bounds]
    gate: ClassVar[Gate]
    open_connections: ClassVar[set[RouterProtocol]]
    turned_away: ClassVar[set[RouterProtocol]]
    # Set for all connections when the replica is about to end: each answer then says that its connection does too.
    draining: ClassVar[bool] = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The control plane's connections rest as long as the others.
        self.timeout_keep_alive = self.bounds.keep_alive_seconds  # type: ignore[assignment]
        self.rejection: RouterError | None = None
        self.fields: dict[bytes, bytes] = {}
        # Deadlines are looked at by one sweep for all connections; a timer for each would cost more than a request.
        self.waiting_since = time.monotonic()
        self.waiting_for = "header"
        self.stalled_since: float | None = None
        # Since when a connection that is being closed has had so many bytes left to send.
        self._parting: tuple[float, int] | None = None
        self._serving: Client | None = None
        self._control: Any = None  # the control plane's answer under way
        self._header_bytes = 0
        self._unparsed = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.open_connections.add(self)
        if len(self.open_connections) - len(self.turned_away) > self.bounds.connections:
            self._turn_away()
        elif self.draining:
            self.shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open_connections.discard(self)
        self.turned_away.discard(self)
        super().connection_lost(exc)
        waiting = [cycle for cycle, _ in self.pipeline]
        for cycle in (self._serving, *waiting, self.cycle):
            if isinstance(cycle, Client) and not cycle.gone and not cycle.response_complete:
                cycle.lost()
                if cycle.task is None:
                    self.gate.left(cycle)
        self.pipeline.clear()
        self._leave_control()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.stalled_since = time.monotonic()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.stalled_since = None
        if self._serving is not None:
            self._serving.writable()

    def data_received(self, data: bytes) -> None:
        if self.rejection is not None:
            if self in self.turned_away:
                # It has asked for something, so that it may be listening for an answer, which is there.
                self.transport.close()
            return
        self._unparsed += len(data)
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrades(memoryview(data)[int(upgrade.args[0]) :])
        except httptools.HttpParserError:
            self.send_400_response("")
        if self.waiting_for == "header" and self._unparsed > self.bounds.header_bytes + _READ_SLACK:
            # A single field that never ends is held back by the parser, so no callback counts it.
            self.rejection = HeadersTooLarge(f"More than {self.bounds.header_bytes} bytes of header fields.")
            self.send_400_response("")

    # -- parser callbacks ----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._header_bytes = 0
        self.waiting_since = time.monotonic()
        self.waiting_for = "header"

    def on_url(self, url: bytes) -> None:
        self.url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.waiting_for == "header":
            self.headers.append((name.lower(), value))
        # A trailer counts, but must not be taken for a header: it comes too late for what those are checked for.
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > self.bounds.header_bytes or len(self.headers) > self.bounds.header_count:
            self._count(0)

    def on_headers_complete(self) -> None:
        self.fields = fields = dict(reversed(self.headers))
        try:
            version = self.parser.get_http_version()
            self.expect_100_continue = check_framing(self.headers, fields, version, self.bounds.body_bytes)
        except RouterError as error:
            self._reject(error)
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                self._reject(BadRequest("This is no proxy for connections."))
            return  # the parser takes what follows for another protocol; see `_decline_upgrade`
        path, _, query = self.url.partition(b"?")
        if not path.startswith(b"/"):
            path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
        client = self.gate.admit(self, self.parser.get_method(), path, query)
        before = self.cycle
        if client is None:
            self._to_control()
        else:
            self.cycle = client  # type: ignore[assignment]
        self.waiting_since = time.monotonic()
        self.waiting_for = "body"
        self._unparsed = 0
        if client is not None:
            self._get_in_line(client, before)

    def _get_in_line(self, client: Client, before: Any) -> None:
        """It is the client's turn at once, unless an answer is under way."""
        client.expects = self.expect_100_continue
        if self.draining:
            client.keep_alive = False
        if before is None or before.response_complete:
            self._give_turn(client)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((client, self.app))  # type: ignore[arg-type]

    def on_body(self, body: bytes) -> None:
        client = self.cycle
        if isinstance(client, Client):
            try:
                client.feed(body)
            except PayloadTooLarge as error:
                self._reject(error)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.waiting_for == "header":
            return  # only the head of a request that asks for another protocol
        self.waiting_for = ""
        self._unparsed = 0
        client = self.cycle
        if isinstance(client, Client):
            client.whole = True
            if client.turn and not client.response_complete:
                self.gate.begin(client)
        else:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer has ended: the next request on the connection, or rest."""
        self._serving = self._control = None
        if isinstance(self.cycle, Client) and not self.pipeline:
            self.server_state.total_requests += 1
            if not self.transport.is_closing():
                self.flow.resume_reading()
        else:
            super().on_response_complete()
        if not self.waiting_for:
            self.waiting_since = time.monotonic()
        if self.draining and not self.transport.is_closing():
            self.shutdown()

    def shutdown(self) -> None:
        """The listener is closed: end with the answer under way, or soon, if nothing comes."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = cycle.keep_alive and cycle.response_started
        else:
            self.loop.call_later(_LINGER_SECONDS, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """uvicorn's moment for the next request in line."""
        if not isinstance(cycle, Client):
            self._control = cycle
            super()._start_asgi_task(cycle, app)
            return
        self._give_turn(cycle)
        if cycle.whole and not cycle.response_complete:
            # Not from within the answer before it: many in line that are refused at once would nest without end.
            self.loop.call_soon(self._begin_in_turn, cycle)

    def _begin_in_turn(self, client: Client) -> None:
        if not client.gone and not client.response_complete and not self.transport.is_closing():
            self.gate.begin(client)

    def spawn(self, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """A task that the server's shutdown waits for."""
        task: asyncio.Task[None] = self.loop.create_task(work())  # type: ignore[arg-type]
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)
        return task

    def _to_control(self) -> None:
        """Let uvicorn begin the message after all, now that it is known to be its own."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue = url, headers, expects
        self.scope["headers"] = headers
        super().on_headers_complete()
        if self.draining:
            self.cycle.keep_alive = False

    def _give_turn(self, client: Client) -> None:
        """All earlier answers on the connection have ended, so that this client may be spoken to."""
        client.turn = True
        self._serving = client
        if not client.expects or client.whole:
            return
        if client.refusal is None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        else:
            # The client waits for leave to send its body, and will not get it.
            self.gate.begin(client)

    def _decline_upgrades(self, rest: memoryview) -> None:
        """Read a request again without its wish for another protocol, as servers that know none do, and what follows.

        Some clients of HTTP/2 ask for it with every first request, and the parser takes such a request's body for
        bytes of that protocol. Any number of such requests may stand in one piece of data.
        """
        while self.rejection is None:
            parser = self.parser
            head = head_without_upgrade(parser.get_method(), self.url, parser.get_http_version(), self.headers)
            self.parser = httptools.HttpRequestParser(self)
            try:
                self.parser.feed_data(head)
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[int(upgrade.args[0]) :]
            except httptools.HttpParserError:
                self.send_400_response("")

    # -- refusals ------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """Called for anything that the parser or a check refused."""
        error = self.rejection or BadRequest("The request is not well-formed HTTP.")
        self.rejection = error
        if self.transport.is_closing():
            return
        serving = self._serving
        if serving is not None and serving.task is not None:
            # An answer to an earlier request is under way; another one can't be put into it.
            self.transport.abort()
            return
        cycle = self.cycle
        if self.waiting_for == "body" and cycle is not None and cycle.response_complete:
            # Answered before its end, as an unknown path is: there must not be two answers to one request.
            self.transport.close()
            return
        self.gate.rejected(error)
        under_way = bool(self.pipeline) or self._control is not None
        self._leave_control()
        if isinstance(cycle, Client) and not cycle.response_complete:
            cycle.refuse(error)
            cycle.response_complete = cycle.disconnected = True
        self.transport.write(plain_error(error, f"rejected-{next(_ids)}"))
        if under_way:
            self.transport.close()
        else:
            self._say_goodbye()

    def _turn_away(self) -> None:
        """No room for one connection more: say so while there are descriptors left to say it with."""
        error = TooManyConnections("Too many connections are open.")
        self.rejection = error
        self.gate.turned_away(error)
        self.transport.write(plain_error(error, f"rejected-{next(_ids)}"))
        if len(self.turned_away) >= self.bounds.turned_away:
            self.transport.close()
            return
        # Closed before its request is here, it would be reset, and its client might never read the answer.
        self.turned_away.add(self)
        self._say_goodbye()

    def _leave_control(self) -> None:
        """Nobody is left to read what the control plane is about to say; uvicorn tells so only the last request."""
        if self._control is not None:
            self._control.disconnected = True
            self._control.message_event.set()

    def _say_goodbye(self) -> None:
        """End this side of the connection, and read on for a while.

        Closed over bytes that nobody has read it would be reset, and a client still busy sending would never see why.
        """
        self.waiting_since = time.monotonic()
        self.waiting_for = "end"
        self.flow.resume_reading()
        self.transport.write_eof()

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self.bounds.header_bytes:
            self._reject(HeadersTooLarge(f"More than {self.bounds.header_bytes} bytes of header fields."))
        if len(self.headers) > self.bounds.header_count:
            self._reject(HeadersTooLarge(f"More than {self.bounds.header_count} header fields."))

    def _reject(self, error: RouterError) -> None:
        self.rejection = error
        raise error

    # -- deadlines -----------------------------------------------------------------------------------------

    @classmethod
    def sweep(cls, now: float) -> None:
        """Close what has taken too long; called about once a second."""
        for connection in tuple(cls.open_connections):
            connection._check_deadlines(now)

    def _check_deadlines(self, now: float) -> None:
        bounds = self.bounds
        waited = now - self.waiting_since
        if self.stalled_since is not None and now - self.stalled_since > bounds.write_stall_seconds:
            self.transport.abort()
        elif self.flow.read_paused and peer_has_left(self.transport):
            # Whoever does not read can't see that, and what is under way would go on until its next write.
            self.transport.abort()
        elif self.transport.is_closing():
            self._part(now)
        elif self._serving is not None and self._serving.task is not None:
            # What follows is not late before its turn: it may be this side that does not read it.
            self.waiting_since = now
        elif self.waiting_for == "header":
            # A connection that has been used may rest; one that has begun a request, or never did, may not.
            if waited > bounds.header_seconds and self._unparsed:
                self._too_slow()
            elif waited > bounds.header_seconds:
                self.transport.close()
        elif self.waiting_for == "body":
            if waited > bounds.body_seconds:
                self._too_slow()
        elif self.waiting_for == "end":
            if waited > (_LINGER_SECONDS if self in self.turned_away else bounds.header_seconds):
                self.transport.close()
        elif (self.cycle is None or self.cycle.response_complete) and waited > bounds.keep_alive_seconds:
            self.transport.close()

    def _part(self, now: float) -> None:
        """What is left to send may be too little to count as a stall, and its client may never read it."""
        left = self.transport.get_write_buffer_size()
        if self._parting is None or self._parting[1] != left:
            self._parting = (now, left)
        elif now - self._parting[0] > self.bounds.write_stall_seconds:
            self.transport.abort()

    def _too_slow(self) -> None:
        self.rejection = RequestTimeout("The request did not arrive in time.")
        self.send_400_response("")


def protocol_class(bounds: Bounds, gate: Gate) -> type[RouterProtocol]:
    """The protocol with these bounds, this gate and its own sets of connections."""
    own = {"bounds": bounds, "gate": gate, "open_connections": set(), "turned_away": set()}
    return type("BoundProtocol", (RouterProtocol,), own)
