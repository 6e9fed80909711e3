"""The downstream protocol on raw sockets. Requests in line on one connection, and which kinds there are."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from router.dataplane.client import Client
from router.dataplane.server import RouterProtocol
from tests.edges.server.rig import BOUNDS, CHUNKED, HOST, Rig, error_of, post, until


async def test_pipelined_requests_are_answered_in_order(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(b"".join(post(b"/v1/slow" if n % 2 else b"/v1/x", b"%d" % n) for n in range(6)))
        assert [await raw.answer() for _ in range(6)] == [(200, b"%d" % number) for number in range(6)]


async def test_any_number_of_refused_requests_may_stand_in_line(rig: Rig) -> None:
    refused = b"GET /v1/x HTTP/1.1\r\n" + HOST + b"\r\n"
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/slow", b"first") + refused * 2_000 + post(b"/v1/x", b"last"))
        assert await raw.answer() == (200, b"first")
        assert {(await raw.answer())[0] for _ in range(2_000)} == {405}
        assert await raw.answer() == (200, b"last")


async def test_what_waits_behind_an_answer_is_not_late_before_its_turn(rig: Rig) -> None:
    late = post(b"/v1/x", b"late")
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/gated", b"first") + late[:-2])
        await until(lambda: rig.gate.admitted == 2)
        end = time.monotonic() + 3 * BOUNDS.body_seconds
        await rig.sweeping(lambda: time.monotonic() > end)
        rig.gate.opened.set()
        assert await raw.answer() == (200, b"first")
        await raw.send(late[-2:])
        assert await raw.answer() == (200, b"late")


async def test_requests_behind_one_that_is_served_are_not_read_without_end(rig: Rig) -> None:
    one = post(b"/v1/x", b"x" * 1_000)
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/forever"))
        await until(lambda: len(rig.gate.seen) == 1)
        raw.writer.write(one * 8_000)
        before = -1
        while before != rig.gate.admitted:
            before = rig.gate.admitted
            await asyncio.sleep(0.05)
        assert 1 < rig.gate.admitted < 1_000
        raw.writer.transport.abort()
        for connection in tuple(rig.connections.open):
            connection.transport.abort()  # it was not reading, and has not seen the client leave
        await until(lambda: rig.gate.cancelled == 1)


async def test_what_stands_behind_a_last_request_is_no_fault_of_it_whatever_was_wished_before(rig: Rig) -> None:
    wish = post(b"/v1/x", b"one", b"Connection: upgrade\r\nUpgrade: h2c\r\n")
    last = post(b"/v1/slow", b"two", b"Connection: close\r\n")
    async with rig.connected() as raw:
        await raw.send(wish)
        assert await raw.answer() == (200, b"one")
        await raw.send(last + post(b"/v1/x", b"three"))
        assert await raw.answer() == (200, b"two")
        assert await raw.rest() == b""


@pytest.mark.parametrize("path", [b"/v1/x", b"/elsewhere"])
async def test_the_line_does_not_grow_with_the_answers(rig: Rig, path: bytes) -> None:
    one = post(path, b"x" * 1_000)
    honest, longest = rig.gate.admit, 0

    def admit(connection: RouterProtocol, method: bytes, path: bytes, query: bytes) -> Client | None:
        nonlocal longest
        longest = max(longest, len(connection.in_line))
        return honest(connection, method, path, query)

    rig.gate.admit = admit  # type: ignore[method-assign]
    async with rig.connected() as raw:
        sending = asyncio.create_task(raw.send(one * 4_000))
        assert {(await raw.answer())[0] for _ in range(4_000)} == {200}
        await sending
    assert longest <= 256 * 1024 // len(one) + 1 + 16  # what one read brings to a line that is still short


async def test_inference_and_control_share_a_connection(rig: Rig) -> None:
    async with rig.connected() as raw:
        for _ in range(2):
            await raw.send(post(b"/v1/x", b"one"))
            assert await raw.answer() == (200, b"one")
            await raw.send(b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
            status, shown = await raw.answer()
            assert (status, json.loads(shown)) == (200, {"method": "GET", "path": "/health", "size": 0})
        await raw.send(post(b"/v1/slow", b"two") + post(b"/elsewhere", b"three") + post(b"/v1/x", b"four"))
        assert await raw.answer() == (200, b"two")
        assert json.loads((await raw.answer())[1]) == {"method": "POST", "path": "/elsewhere", "size": 5}
        assert await raw.answer() == (200, b"four")


async def test_absolute_targets_are_served(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"http://router/v1/x?q=1", b"hello"))
        assert await raw.answer() == (200, b"hello")
    assert rig.gate.seen[0][1] == "/v1/x"


@pytest.mark.parametrize("path", [b"/v1/x", b"/elsewhere"])
@pytest.mark.parametrize("cut", [0, 1, 5])
async def test_a_wish_for_another_protocol_is_declined_and_the_request_served(rig: Rig, path: bytes, cut: int) -> None:
    wish = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    data = post(path, b"hello", wish)
    async with rig.connected() as raw:
        for _ in range(2):
            await raw.send(data[: len(data) - cut])
            await asyncio.sleep(0.01)
            await raw.send(data[len(data) - cut :])
            status, body = await raw.answer()
            assert status == 200
            assert b"hello" in body or json.loads(body)["size"] == 5


async def test_any_number_of_wishes_for_another_protocol_may_stand_in_line(rig: Rig) -> None:
    wish = post(b"/v1/x", headers=b"Connection: upgrade\r\nUpgrade: h2c\r\n")
    async with rig.connected() as raw:
        await raw.send(wish * 1_500)
        assert {(await raw.answer())[0] for _ in range(1_500)} == {200}


async def test_nonsense_behind_a_wish_for_another_protocol_is_refused(rig: Rig) -> None:
    wish = post(b"/v1/x", headers=b"Connection: upgrade\r\nUpgrade: h2c\r\n", length=False)
    answer = await rig.exchange(wish.replace(b"\r\n\r\n", b"\r\n" + CHUNKED + b"\r\n") + b"zz\r\n")
    assert error_of(answer) == (400, "bad_request")


async def test_a_refused_verb_leaves_the_connection_usable(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(b"PUT /v1/x HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc")
        assert (await raw.answer())[0] == 405
        await raw.send(b"HEAD /v1/x HTTP/1.1\r\n" + HOST + b"\r\n")
        assert (await raw.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 405 ")
        await raw.send(post(body=b"fine"))
        assert await raw.answer() == (200, b"fine")


async def test_garbage_behind_a_request_does_not_reach_its_answer(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/stream"))
        await raw.until(b"data: one\n\n")
        await raw.send(b"\x00\x01garbage\r\n\r\n")
        rest = await raw.rest()
        assert not rest.endswith(b"0\r\n\r\n")
        assert b"HTTP/1.1 400" not in rest
