"""The downstream protocol on raw sockets. Bodies: limits, room, and leave to send them."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.edges.server.rig import CHUNKED, LIMIT, Rig, error_of, post, until


async def test_a_body_arrives_whole_however_it_is_cut(rig: Rig) -> None:
    body = bytes(range(256)) * 20
    async with rig.connected() as raw:
        await raw.send(post(body=body))
        assert await raw.answer() == (200, body)
        data = post(body=body)
        for start in range(0, len(data), 700):
            await raw.send(data[start : start + 700])
            await asyncio.sleep(0)
        assert await raw.answer() == (200, body)
    assert [seen for _, _, seen in rig.gate.seen] == [body, body]


async def test_a_chunked_body_arrives_whole(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(headers=CHUNKED, length=False))
        for piece in (b"5\r\nhello\r\n", b"1;ext=1\r\n \r\n", b"5\r\nworld\r\n0\r\nX-Trailer: 1\r\n\r\n"):
            await raw.send(piece)
            await asyncio.sleep(0)
        assert await raw.answer() == (200, b"hello world")


async def test_trailers_are_not_taken_for_headers(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/headers", headers=CHUNKED, length=False))
        await raw.send(b"1\r\nx\r\n0\r\nAuthorization: Bearer late\r\nX-Late: 1\r\n\r\n")
        assert await raw.answer() == (200, b"host,transfer-encoding")


async def test_trailers_have_a_size(rig: Rig) -> None:
    trailers = b"X-T: " + b"x" * 1_000 + b"\r\n"
    answer = await rig.exchange(post(headers=CHUNKED, length=False), b"1\r\nx\r\n0\r\n" + trailers * 40 + b"\r\n")
    assert error_of(answer) == (431, "headers_too_large")


async def test_blanks_around_a_length_do_no_harm(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(headers=b"Content-Length: \t2 \t\r\n", length=False) + b"ab")
        assert await raw.answer() == (200, b"ab")


@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_a_client_that_is_busy_sending_learns_why_it_is_refused(rig: Rig, framing: str) -> None:
    length = framing == "length"
    headers = b"Content-Length: 999999999\r\n" if length else CHUNKED
    piece = b"x" * 1_000_000 if length else b"f4240\r\n" + b"x" * 1_000_000 + b"\r\n"
    async with rig.connected() as raw:
        await raw.send(post(headers=headers, length=False))
        for _ in range(20):
            raw.writer.write(piece)
            await raw.writer.drain()
        assert error_of(await raw.rest()) == (413, "payload_too_large")
    await until(lambda: not rig.connections.open)
    assert len(rig.gate.rejections) == 1


async def test_a_refused_client_that_goes_on_sending_is_not_listened_to_for_ever(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(b"nonsense\r\n\r\n")
        assert error_of(await raw.rest()) == (400, "bad_request")
        await rig.sweeping(lambda: not rig.connections.open)
    assert len(rig.gate.rejections) == 1


async def test_a_request_that_was_answered_before_its_end_is_answered_once(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"/early", headers=CHUNKED, length=False) + b"1\r\nx\r\n")
        assert (await raw.answer())[0] == 200
        await raw.send(b"nonsense\r\n")
        assert await raw.rest() == b""
    assert rig.gate.rejections == []


async def test_a_body_over_its_limit_is_refused_by_its_declared_length(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(body=b"x" * (LIMIT + 1)))
        status, body = await raw.answer()
    assert (status, json.loads(body)["error"]["code"]) == (413, "payload_too_large")
    assert rig.gate.seen == []


async def test_a_body_that_could_never_be_taken_is_refused_at_its_head(rig: Rig) -> None:
    answer = await rig.exchange(post(headers=b"Content-Length: 999999999999\r\n", length=False))
    assert error_of(answer) == (413, "payload_too_large")


async def test_a_chunked_body_is_refused_once_it_is_over_the_limit(rig: Rig) -> None:
    chunk = b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n"
    answer = await rig.exchange(post(headers=CHUNKED, length=False), chunk, chunk)
    assert error_of(answer) == (413, "payload_too_large")
    assert rig.gate.budget.held == 0


async def test_a_body_finds_no_room_when_others_hold_it(rig: Rig) -> None:
    rig.gate.budget.limit = 10
    async with rig.connected() as raw:
        await raw.send(post(body=b"x" * 11))
        status, body = await raw.answer()
        assert (status, json.loads(body)["error"]["code"]) == (503, "no_worker_available")
        await raw.send(post(body=b"x" * 9))
        assert (await raw.answer())[0] == 200


EXPECT = b"Expect: 100-continue\r\n"


async def test_a_client_that_asks_for_leave_gets_it(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(headers=EXPECT + b"Content-Length: 5\r\n", length=False))
        assert await raw.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await raw.send(b"hello")
        assert await raw.answer() == (200, b"hello")


@pytest.mark.parametrize("length", [LIMIT + 1, 10_000_000], ids=["over-the-routes-limit", "over-any-limit"])
async def test_a_client_that_asks_for_leave_to_send_too_much_is_refused_at_once(rig: Rig, length: int) -> None:
    answer = await rig.exchange(post(headers=EXPECT + b"Content-Length: %d\r\n" % length, length=False))
    assert error_of(answer) == (413, "payload_too_large")
    assert b"100 Continue" not in answer


async def test_leave_is_not_given_in_the_middle_of_another_answer(rig: Rig) -> None:
    async with rig.connected() as raw:
        second = post(headers=EXPECT + b"Content-Length: 2\r\n", length=False)
        await raw.send(post(b"/v1/slow", b"first") + second)
        assert await raw.answer() == (200, b"first")
        assert await raw.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await raw.send(b"ok")
        assert await raw.answer() == (200, b"ok")


async def test_leave_is_not_given_for_a_body_that_is_here_already(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/slow", b"first") + post(b"/v1/x", b"second", EXPECT))
        assert await raw.answer() == (200, b"first")
        assert await raw.answer() == (200, b"second")
