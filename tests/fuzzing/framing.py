"""Connections of clients without sockets: bytes in, and which requests were taken for whole."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from router.dataplane.client import BodyBudget, Client
from router.dataplane.connections import Connections
from router.dataplane.gate import Bounds
from router.dataplane.outgoing import Outgoing
from router.dataplane.server import RouterProtocol
from router.errors import MethodNotAllowed, RouterError

LIMIT = 32 * 1024
BOUNDS = Bounds(body_bytes=LIMIT, header_bytes=16 * 1024)
Seen = tuple[bytes, str, bytes]


class Wire(asyncio.Transport):
    """A transport that keeps what is written, and does not read on once it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closing = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def write_eof(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class Taker:
    """A gate that takes every request and answers at once with an empty body."""

    def __init__(self) -> None:
        self.budget = BodyBudget(1 << 24)
        self.outgoing = Outgoing()
        self.seen: list[Seen] = []

    def admit(self, connection: RouterProtocol, method: bytes, path: bytes, query: bytes) -> Client | None:
        client = Client(connection, method, path.decode("latin-1"), query, self.budget, b"spare")
        client.limit = LIMIT
        if method != b"POST":
            client.refuse(MethodNotAllowed("Use POST.", allow="POST"))
        return client

    def begin(self, client: Client) -> None:
        if client.refusal is not None:
            client.answer_error(client.refusal)
            return
        self.seen.append((client.method, client.path, client.take_body()))
        client.let_body_go()
        client.start(200, [], 0)
        client.write(b"", more=False)

    def left(self, client: Client) -> None:
        """Its body is no longer held."""
        client.let_body_go()

    def rejected(self, error: RouterError) -> None:
        """Nothing to count."""

    def turned_away(self, error: RouterError) -> None:
        """Nothing to count."""


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    """No request gets as far as the control plane."""


_config = uvicorn.Config(_nothing, ws="none", lifespan="off", interface="asgi3", log_config=None, access_log=False)
_config.load()


def hold_conversation(parts: Iterable[bytes]) -> list[Seen]:
    """Method, path and body of the requests that were taken for whole."""
    return asyncio.run(_converse([part for part in parts if part]))


async def _converse(parts: list[bytes]) -> list[Seen]:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    taker = Taker()
    connections = Connections(BOUNDS, taker)
    wire = Wire()
    connection = connections(_config, ServerState(), {}, asyncio.get_running_loop())
    connection.connection_made(wire)
    for part in parts:
        if wire.closing:
            break
        connection.data_received(part)
        for _ in range(3):
            await asyncio.sleep(0)
    for _ in range(200):  # those in line take their turn one after the other
        if not connection.in_line:
            break
        await asyncio.sleep(0)
    connection.connection_lost(None)
    await asyncio.sleep(0)
    assert not faults, f"in a callback: {faults}"
    assert taker.budget.held == 0, "a body is still held"
    assert not connections.open
    return taker.seen
