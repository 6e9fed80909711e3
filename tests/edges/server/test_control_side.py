"""The way to the control plane: what its app is told, how its bodies are held up, and what the server waits for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from router.dataplane.connections import Connections
from router.dataplane.flow import Flow
from tests.edges.server.rig import BOUNDS, HOST, EchoGate, Rig, post, until
from tests.fuzzing.framing import Wire


class Addressed(Wire):
    """A wire with two ends."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("10.0.0.1", 1234), "sockname": ("10.0.0.2", 80)}.get(name, default)


async def scope_of(data: bytes, *, own: bool) -> dict[str, Any]:
    """What the app is told of a request, by the router's protocol or by uvicorn's own."""
    told: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        told.set_result(scope)
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})

    config = uvicorn.Config(
        app, ws="none", lifespan="off", interface="asgi3", log_config=None, access_log=False, root_path="/under"
    )
    config.load()
    state, loop = ServerState(), asyncio.get_running_loop()
    make: Any = Connections(BOUNDS, EchoGate()) if own else HttpToolsProtocol
    connection = make(config=config, server_state=state, app_state={"kept": 1}, _loop=loop)
    connection.connection_made(Addressed())
    connection.data_received(data)
    scope = await told
    await asyncio.gather(*state.tasks)
    connection.connection_lost(None)
    return scope


@pytest.mark.parametrize(
    "head",
    [
        b"GET /router/state HTTP/1.1\r\n",
        b"GET /a%20b/%C3%A9?x=%20&y HTTP/1.1\r\n",
        b"POST http://router/deep/er?q HTTP/1.1\r\n",
        b"HEAD //twice# HTTP/1.0\r\n",
        b"OPTIONS /x? HTTP/1.1\r\nX-One: 1\r\nx-one: 2\r\nConnection: close\r\n",
    ],
)
async def test_the_app_is_told_what_uvicorn_would_tell_it(head: bytes) -> None:
    data = head + HOST + b"\r\n"
    ours = await scope_of(data, own=True)
    assert ours == await scope_of(data, own=False)
    assert ours["client"] == ("10.0.0.1", 1234)


@pytest.mark.parametrize("target", [b"http://router", b"/\xff"])
async def test_a_target_that_no_app_could_be_told_is_refused(rig: Rig, target: bytes) -> None:
    answer = await rig.exchange(b"GET " + target + b" HTTP/1.1\r\n" + HOST + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_a_body_that_its_app_does_not_read_stays_with_the_client(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/gated", b"first") + post(b"/elsewhere", b"x" * 150_000) + post(b"/v1/x", b"last"))
        await until(lambda: any(one.flow.read_paused for one in rig.connections.open))
        rig.gate.opened.set()
        assert await raw.answer() == (200, b"first")
        assert b'"size": 150000' in (await raw.answer())[1]
        assert await raw.answer() == (200, b"last")


async def test_the_server_waits_for_what_is_being_served_and_for_nothing_else(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/gated"))
        await until(lambda: len(rig.tasks) == 1)
        rig.gate.opened.set()
        await raw.answer()
        await until(lambda: not rig.tasks)
        await raw.send(b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
        await raw.answer()
        await until(lambda: not rig.tasks)


async def test_all_who_wait_for_room_to_write_go_on_once_there_is_some() -> None:
    flow = Flow(Wire())
    await flow.drain()
    flow.pause_writing()
    waiting = [asyncio.create_task(flow.drain()) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(one.done() for one in waiting)
    flow.resume_writing()
    await asyncio.gather(*waiting)
    await flow.drain()
