"""The downstream protocol on raw sockets. Clients that leave."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from tests.edges.server.rig import HEARD, HOST, LATE, Rig, post, until


def reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@pytest.mark.parametrize("size", [2, 90_000], ids=["small", "large"])
@pytest.mark.parametrize("way", ["close", "reset", "half-close"])
async def test_work_ends_as_soon_as_its_client_leaves(rig: Rig, way: str, size: int) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/forever", b"x" * size))
        await until(lambda: len(rig.gate.seen) == 1)
        if way == "half-close":
            raw.writer.write_eof()
        elif way == "reset":
            reset(raw.writer)
        else:
            raw.writer.close()
        await until(lambda: rig.gate.cancelled == 1)
    assert rig.gate.departures == 0  # whoever served it has counted it


async def test_work_whose_client_left_before_its_first_step_still_comes_to_its_end(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/vanish", b"body"))
        await until(lambda: rig.gate.cancelled == 1)
    assert rig.gate.budget.held == 0


async def test_the_control_plane_learns_that_nobody_waits_for_its_answer(rig: Rig) -> None:
    late = b"GET /late HTTP/1.1\r\n" + HOST + b"\r\n"
    async with rig.connected() as raw:
        await raw.send(late + post(b"/elsewhere") + b"\x00garbage\r\n\r\n")
        await until(lambda: not rig.connections.open)
        assert len(rig.gate.rejections) == 1
    LATE.set()
    await until(lambda: not rig.tasks)
    assert HEARD == ["http.disconnect"]


async def test_a_client_that_leaves_before_its_body_is_whole_is_counted(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(body=b"half", headers=b"Content-Length: 100\r\n", length=False))
        await until(lambda: rig.gate.budget.held == 4)
        raw.writer.close()
        await until(lambda: rig.gate.departures == 1)
    assert rig.gate.budget.held == 0


async def test_pipelined_requests_of_a_client_that_leaves_are_counted_too(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/forever") + post(b"/v1/x", b"waits"))
        await until(lambda: len(rig.gate.seen) == 1)
        reset(raw.writer)
        await rig.sweeping(lambda: rig.gate.cancelled + rig.gate.departures == 2)


@pytest.mark.parametrize("way", ["close", "reset", "half-close"])
@pytest.mark.parametrize("behind", [1, 1_500], ids=["one", "more-than-is-read"])
async def test_a_client_that_leaves_behind_what_nobody_reads_has_left(rig: Rig, way: str, behind: int) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/forever"))
        await until(lambda: len(rig.gate.seen) == 1)
        raw.writer.write(post(b"/v1/x", b"x" * 100) * behind)
        await until(lambda: rig.gate.admitted > 1)
        rig.sweep()
        assert rig.gate.cancelled == 0
        if way == "half-close":
            raw.writer.write_eof()
        elif way == "reset":
            reset(raw.writer)
        else:
            raw.writer.close()
        await rig.sweeping(lambda: rig.gate.cancelled == 1)
        await until(lambda: not rig.connections.open)
    assert rig.gate.departures == rig.gate.admitted - 1
