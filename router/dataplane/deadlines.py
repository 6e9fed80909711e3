"""What becomes of a client connection that takes too long; one sweep looks at all, as timers would cost more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.dataplane.client import Client
from router.dataplane.owed import BODY, END, HEADER, LINGER_SECONDS
from router.dataplane.refusals import refuse
from router.dataplane.sockets import peer_has_left
from router.errors import RequestTimeout

if TYPE_CHECKING:
    from router.dataplane.server import RouterProtocol


def check_deadlines(connection: RouterProtocol, now: float) -> None:
    """End a connection whose client lets the router wait, be it for bytes or for room to write."""
    transport = connection.transport
    bounds = connection.connections.bounds
    serving = connection.serving
    stalled = connection.stalled_since
    if stalled is not None and now - stalled > bounds.write_stall_seconds:
        transport.abort()
    elif connection.flow.read_paused and peer_has_left(transport):
        # Whoever does not read can't see that, and what is under way would go on until its next write.
        transport.abort()
    elif transport.is_closing():
        _part(connection, now, bounds.write_stall_seconds)
    elif isinstance(serving, Client) and serving.task is not None:
        # What follows is not late before its turn: it may be this side that does not read it.
        connection.waiting_since = now
    else:
        _check_what_is_owed(connection, now)


def _check_what_is_owed(connection: RouterProtocol, now: float) -> None:
    bounds = connection.connections.bounds
    transport = connection.transport
    waited = now - connection.waiting_since
    owed = connection.owed
    request = connection.request
    if owed == HEADER:
        # A connection that has been used may rest; one that has begun a request, or never did, may not.
        if waited > bounds.header_seconds and connection.unparsed:
            _too_slow(connection)
        elif waited > bounds.header_seconds:
            transport.close()
    elif owed == BODY:
        if waited > bounds.body_seconds:
            _too_slow(connection)
    elif owed == END:
        away = connection in connection.connections.turned_away
        if waited > (LINGER_SECONDS if away else bounds.header_seconds):
            transport.close()
    elif (request is None or request.response_complete) and waited > bounds.keep_alive_seconds:
        transport.close()


def _part(connection: RouterProtocol, now: float, seconds: float) -> None:
    """What is left to send may be too little to count as a stall, and its client may never read it."""
    left = connection.transport.get_write_buffer_size()
    parting = connection.parting
    if parting is None or parting[1] != left:
        connection.parting = (now, left)
    elif now - parting[0] > seconds:
        connection.transport.abort()


def _too_slow(connection: RouterProtocol) -> None:
    connection.rejection = RequestTimeout("The request did not arrive in time.")
    refuse(connection)
