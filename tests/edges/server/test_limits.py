"""The downstream protocol on raw sockets. No room, and deadlines."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from tests.edges.server.rig import BOUNDS, Rig, error_of, post, until


async def test_a_connection_too_many_is_told_so_and_room_comes_back(rig: Rig) -> None:
    rig.connections.bounds = replace(BOUNDS, connections=1, turned_away=1)
    async with rig.connected() as first:
        await first.send(post(body=b"one"))
        assert await first.answer() == (200, b"one")
        for _ in range(3):
            answer = await rig.exchange(post(body=b"two"))
            assert error_of(answer) == (503, "too_many_connections")
            assert b"\r\nretry-after: 1\r\n" in answer
        assert (rig.gate.turned, rig.gate.admitted) == (3, 1)
        await first.send(post(body=b"three"))
        assert await first.answer() == (200, b"three")
    await until(lambda: not rig.connections.open)
    assert (await rig.exchange(post(body=b"four", headers=b"Connection: close\r\n"))).endswith(b"four")


async def test_who_is_told_that_there_is_no_room_need_not_ask_and_cannot_stay(rig: Rig) -> None:
    rig.connections.bounds = replace(BOUNDS, connections=0, turned_away=1)
    async with rig.connected() as silent, rig.connected() as beyond:
        assert error_of(await silent.rest()) == (503, "too_many_connections")
        assert error_of(await beyond.rest()) == (503, "too_many_connections")
        await until(lambda: len(rig.connections.open) <= 1)
        await rig.sweeping(lambda: not rig.connections.open)
    assert not rig.connections.turned_away


async def test_work_waits_while_its_client_does_not_read(rig: Rig) -> None:
    rig.connections.bounds = replace(BOUNDS, write_stall_seconds=0.1)
    async with rig.connected() as raw:
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await raw.send(post(b"/v1/flood"))
        await rig.sweeping(lambda: rig.gate.cancelled == 1)


async def test_what_is_left_to_send_at_the_end_does_not_wait_for_ever(rig: Rig) -> None:
    rig.connections.bounds = replace(BOUNDS, write_stall_seconds=0.1)
    async with rig.connected() as raw:
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await raw.send(post(b"/v1/remainder"))
        await until(lambda: bool(rig.gate.seen))
        await rig.sweeping(lambda: not rig.connections.open)
    assert rig.gate.cancelled == rig.gate.departures == 0


async def test_a_header_that_drips_gets_408_and_the_connection_ends(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(b"POST /v1/x HTTP/1.1\r\n")

        async def drip() -> None:
            while not raw.reader.at_eof():
                await raw.send(b"X")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        await rig.sweeping(lambda: len(rig.gate.rejections) == 1)
        assert error_of(await raw.rest()) == (408, "request_timeout")
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)


async def test_a_body_that_does_not_come_gets_408(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(body=b"half", headers=b"Content-Length: 100\r\n", length=False))
        await rig.sweeping(lambda: len(rig.gate.rejections) == 1)
        assert error_of(await raw.rest()) == (408, "request_timeout")
    assert rig.gate.departures == 0


async def test_a_connection_that_sends_nothing_ends_without_a_word(rig: Rig) -> None:
    async with rig.connected() as raw:
        await rig.sweeping(raw.reader.at_eof)
        assert await raw.rest() == b""
    assert rig.gate.rejections == []


async def test_a_connection_at_rest_ends_in_its_time_and_not_in_a_headers(rig: Rig) -> None:
    rig.connections.bounds = replace(BOUNDS, keep_alive_seconds=0.4)
    async with rig.connected() as raw:
        await raw.send(post(body=b"one"))
        await raw.answer()
        for _ in range(20):
            await asyncio.sleep(0.01)
            rig.sweep()
        await raw.send(post(body=b"two"))
        assert await raw.answer() == (200, b"two")
        began = time.monotonic()
        await rig.sweeping(raw.reader.at_eof)
        assert time.monotonic() - began > 0.3


async def test_an_answer_under_way_knows_no_deadline(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/forever"))
        await until(lambda: len(rig.gate.seen) == 1)
        for _ in range(30):
            await asyncio.sleep(0.01)
            rig.sweep()
        assert rig.gate.cancelled == 0
        assert not raw.reader.at_eof()
