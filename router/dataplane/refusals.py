"""How a connection is told that what it sent is not understood, comes too late, or finds no room."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from router.dataplane.asgi import ControlRequest
from router.dataplane.client import Client
from router.dataplane.owed import BODY, END
from router.errors import BadRequest, TooManyConnections
from router.wire import plain_error

if TYPE_CHECKING:
    from router.dataplane.server import RouterProtocol

_ids = itertools.count(1)


def refuse(connection: RouterProtocol) -> None:
    """Anything that the parser or a check refused, and end the connection; `rejection` says what, where it is known."""
    error = connection.rejection or BadRequest("The request is not well-formed HTTP.")
    connection.rejection = error
    transport = connection.transport
    if transport.is_closing():
        return
    serving = connection.serving
    if isinstance(serving, Client) and serving.task is not None:
        # An answer to an earlier request is under way; another one can't be put into it.
        transport.abort()
        return
    request = connection.request
    if connection.owed == BODY and request is not None and request.response_complete:
        # Answered before its end, as an unknown path is: there must not be two answers to one request.
        transport.close()
        return
    connection.connections.gate.rejected(error)
    under_way = bool(connection.in_line)
    if isinstance(serving, ControlRequest):
        under_way = True
        serving.lost()
    if isinstance(request, Client) and not request.response_complete:
        request.refuse(error)
        request.response_complete = True
    connection.connections.gate.outgoing.now(transport, plain_error(error, f"rejected-{next(_ids)}"))
    if under_way:
        transport.close()
    else:
        _say_goodbye(connection)


def turn_away(connection: RouterProtocol) -> None:
    """No room for one connection more: say so while there are descriptors left to say it with."""
    connections = connection.connections
    error = TooManyConnections("Too many connections are open.")
    connection.rejection = error
    connections.gate.turned_away(error)
    connection.transport.write(plain_error(error, f"rejected-{next(_ids)}"))
    if len(connections.turned_away) >= connections.bounds.turned_away:
        connection.transport.close()
        return
    # Closed before its request is here, it would be reset, and its client might never read the answer.
    connections.turned_away.add(connection)
    _say_goodbye(connection)


def _say_goodbye(connection: RouterProtocol) -> None:
    """End this side of the connection, and read on for a while.

    Closed over bytes that nobody has read it would be reset, and a client still busy sending would never see why.
    """
    connection.waiting_since = time.monotonic()
    connection.owed = END
    connection.flow.resume_reading()
    connection.transport.write_eof()
