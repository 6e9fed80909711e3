"""An answer poured into a sink: the same bytes and the same end as when it is read, and both directions of flow."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Iterable
from typing import Any

import pytest

from router import errors
from router.dataplane.upstream import UpstreamLimits, UpstreamLost, UpstreamResponse
from router.dataplane.upstream_connection import UpstreamConnection
from tests.core.upstream_corpus import ALL, Case, Outcome, bytewise
from tests.edges.upstream.rig import (
    CHUNKED,
    HELLO,
    LAST_CHUNK,
    Flood,
    WorkerSide,
    ask,
    chunk,
    eventually,
    pool_for,
    read_all,
    worker,
)


class Basin:
    """Takes what comes, while it is `open`; notes the end."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.framed = 0
        self.open = True
        self.ends: list[errors.RouterError | None] = []
        self.ended = asyncio.Event()
        self.response: UpstreamResponse | None = None  # closed with the next piece, if set

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)

    def take(self, data: bytes) -> bool:
        assert data
        assert not self.ends
        self.pieces.append(data)
        if self.response is not None:
            self.response.close()
        return self.open

    def take_chunk(self, data: bytes, start: int) -> bool:
        self.framed += 1
        assert chunk(data[start:-2]) == data
        return self.take(data[start:-2])

    def end(self, data: bytes, error: errors.RouterError | None) -> None:
        if data:
            self.pieces.append(data)
        self.ends.append(error)
        self.ended.set()


# -- the corpus of the parser's tests, through a connection without a socket -----------------------------------------


class NoSocket:
    """What a connection wants of its transport."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    def get_extra_info(self, name: str) -> socket.socket:
        return self.end

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None: ...

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None: ...


class Owner:
    def __init__(self) -> None:
        self.given_back = False

    def give_back(self, connection: UpstreamConnection) -> None:
        self.given_back = True

    def forget(self, connection: UpstreamConnection) -> None: ...


def pour(pieces: Iterable[bytes], method: bytes, end: socket.socket) -> Outcome:
    """As the parser's `read_answer`, but the answer is poured from its first byte on."""
    owner, basin = Owner(), Basin()
    connection = UpstreamConnection(asyncio.get_running_loop(), owner, UpstreamLimits())
    transport: Any = NoSocket(end)
    connection.connection_made(transport)
    response = connection.start(b"", b"", bodyless=method == b"HEAD")
    surplus = False
    for piece in pieces:
        surplus = surplus or (bool(basin.ends) and bool(piece.strip(b"\r\n")))
        connection.data_received(piece)
        if response.sink is None and response.status:
            response.pour(basin)
    connection.eof_received()
    if response.sink is None and response.status:
        response.pour(basin)
    if not basin.ends:
        assert response.error is not None
        basin.end(b"", response.error)
    (error,) = basin.ends
    if error is not None:
        return Outcome("truncated" if isinstance(error, UpstreamLost) else "refused")
    return Outcome("complete", response.status, tuple(response.headers), basin.data, owner.given_back and not surplus)


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
async def test_poured_at_every_split_point(case: Case) -> None:
    near, far = socket.socketpair()
    with near, far:
        assert pour([case.data], case.method, near) == case.expected
        assert pour(bytewise(case.data), case.method, near) == case.expected
        for at in range(1, len(case.data)):
            assert pour([case.data[:at], case.data[at:]], case.method, near) == case.expected, at


# -- on sockets --------------------------------------------------------------------------------------------------------


async def test_chunks_come_as_they_are_sent_and_whole_ones_with_their_framing() -> None:
    async def script(side: WorkerSide) -> None:
        while True:
            await side.request()
            await side.send(CHUNKED + chunk(b"0"), chunk(b"1"), chunk(b"2"), chunk(b"3") + chunk(b"4"), LAST_CHUNK)

    async with worker(script) as it, pool_for(it.origin) as pool:
        for _ in range(3):
            basin = Basin()
            (await ask(pool)).pour(basin)
            await basin.ended.wait()
            assert basin.data == b"01234"
            assert basin.ends == [None]
            assert basin.framed <= 2
        assert pool.statistics().opened_total == 1


async def test_a_whole_answer_ends_while_it_is_poured() -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(HELLO)
        await side.gone()

    async with worker(script) as it, pool_for(it.origin) as pool:
        basin = Basin()
        response = await ask(pool)
        response.pour(basin)
        assert (basin.data, basin.ends) == (b"hello", [None])
        assert response.complete
        assert pool.statistics().idle == 1


async def test_a_full_sink_holds_the_worker_up() -> None:
    flood = Flood(64 << 20)
    size, block = flood.size, flood.BLOCK

    async with worker(flood) as it, pool_for(it.origin) as pool:
        basin = Basin()
        basin.open = False
        response = await ask(pool)
        (connection,) = pool._open
        response.pour(basin)
        assert connection.deadline == math.inf  # the worker is not silent, it is not listened to
        assert await flood.held_up() < 16 << 20  # the sockets' buffers
        assert len(basin.data) < 262144 * 2 + 65536
        pieces = len(basin.pieces)
        response.resume()
        assert connection.deadline < math.inf
        await eventually(lambda: len(basin.pieces) == pieces + 1)
        assert connection.deadline == math.inf
        basin.open = True
        response.resume()
        await basin.ended.wait()
        assert basin.ends == [None]
        assert len(basin.data) == size
        assert basin.data == block * (size // len(block))
        assert pool.statistics().idle == 1


async def test_what_came_before_a_fault_is_poured_before_it() -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(CHUNKED + chunk(b"one"), chunk(b"two") + chunk(b"three") + b"zz\r\n")
        await side.gone()

    async with worker(script) as it, pool_for(it.origin) as pool:
        basin = Basin()
        (await ask(pool)).pour(basin)
        await basin.ended.wait()
        assert basin.data == b"onetwothree"
        assert isinstance(basin.ends[0], errors.UpstreamProtocolError)
        assert pool.statistics().open == 0


@pytest.mark.parametrize("reset", [True, False])
async def test_a_connection_that_is_lost_ends_the_sink(reset: bool) -> None:
    basin = Basin()

    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(CHUNKED + chunk(b"one"), chunk(b"two"))
        await eventually(lambda: basin.data == b"onetwo")
        if reset:
            side.reset()

    async with worker(script) as it, pool_for(it.origin) as pool:
        (await ask(pool)).pour(basin)
        await basin.ended.wait()
        assert isinstance(basin.ends[0], UpstreamLost)
        assert pool.statistics().open == 0


async def test_a_worker_that_falls_silent_ends_the_sink() -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(CHUNKED + chunk(b"one"), chunk(b"two"))
        await side.gone()

    async with worker(script) as it, pool_for(it.origin, idle_seconds=0.2) as pool:
        basin = Basin()
        (await ask(pool)).pour(basin)
        await basin.ended.wait()
        assert basin.data == b"onetwo"
        assert isinstance(basin.ends[0], errors.UpstreamTimeout)


async def test_a_worker_is_not_silent_while_its_sink_is_full() -> None:
    more = asyncio.Event()

    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(CHUNKED + chunk(b"one"), chunk(b"two"))
        await more.wait()
        await side.send(chunk(b"three"), LAST_CHUNK)
        await side.gone()

    async with worker(script) as it, pool_for(it.origin, idle_seconds=0.1) as pool:
        basin = Basin()
        basin.open = False
        response = await ask(pool)
        response.pour(basin)
        await asyncio.sleep(0.3)  # three times the limit, and the sweep has looked
        assert not basin.ends
        basin.open = True
        more.set()
        response.resume()
        await basin.ended.wait()
        assert (basin.data, basin.ends) == (b"onetwothree", [None])


async def test_closing_within_a_piece_is_the_last_that_a_sink_hears() -> None:
    async def script(side: WorkerSide) -> None:
        while True:
            await side.request()
            await side.send(CHUNKED + chunk(b"one"), chunk(b"two"), chunk(b"three"), LAST_CHUNK)

    async with worker(script) as it, pool_for(it.origin) as pool:
        for open_ in (True, False):
            basin = Basin()
            basin.open = open_
            response = await ask(pool)
            basin.response = response
            response.pour(basin)
            assert basin.data.startswith(b"one")
            assert pool.statistics().open == 0
            await eventually(lambda: all(side.writer.is_closing() for side in it.connections))
            assert not basin.ends
            assert len(basin.pieces) == 1
        assert (await read_all(await ask(pool))) == b"onetwothree"


async def test_closing_the_pool_ends_its_sinks() -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(CHUNKED + chunk(b"one"))
        await side.gone()

    async with worker(script) as it, pool_for(it.origin) as pool:
        basin = Basin()
        (await ask(pool)).pour(basin)
        pool.close()
        assert isinstance(basin.ends[0], UpstreamLost)
