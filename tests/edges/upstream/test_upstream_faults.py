"""Workers that refuse, reset, stall, cut off or talk nonsense: each has its error, and nothing is left behind."""

from __future__ import annotations

import asyncio
import errno
import random
import socket
from typing import Any, NoReturn

import pytest

from router import errors
from router.dataplane import sockets, upstream
from router.dataplane.upstream import Origin, UpstreamLost
from tests.edges.upstream.rig import (
    CHUNKED,
    HELLO,
    LAST_CHUNK,
    OK,
    WorkerSide,
    ask,
    chunk,
    eventually,
    nobody_accepts,
    pool_for,
    read_all,
    settle,
    worker,
)


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


# -- connecting ------------------------------------------------------------------------------------------------


async def test_a_closed_port() -> None:
    async with pool_for(Origin("127.0.0.1", closed_port())) as pool:
        for _ in range(3):
            with pytest.raises(errors.ConnectFailed) as failed:
                await ask(pool)
        assert failed.value.try_another
        assert "127.0.0.1" not in failed.value.message
        assert pool.statistics().opened_total == 0


async def test_a_name_that_does_not_exist() -> None:
    async with pool_for(Origin("worker.invalid", 80)) as pool:
        with pytest.raises(errors.ConnectFailed):
            await ask(pool)


async def test_a_name_that_leads_where_no_worker_is_gets_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()

    monkeypatch.setattr(sockets, "may_be_a_worker", lambda host: False)
    async with worker(script) as scripted, pool_for(scripted.origin) as pool:
        with pytest.raises(errors.ConnectFailed):
            await ask(pool)
        assert scripted.requests == 0
        assert (pool.statistics().open, pool.statistics().connecting) == (0, 0)


async def test_a_worker_that_never_accepts() -> None:
    with nobody_accepts() as origin:
        async with pool_for(origin, connect_seconds=0.1, max_connections=1) as pool:
            for _ in range(2):  # the place of the first is free again
                with pytest.raises(errors.ConnectFailed):
                    await ask(pool)
            assert pool.statistics().connecting == 0


async def test_want_of_descriptors_is_no_fault_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_more(*args: object, **kwargs: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    async with pool_for(Origin("127.0.0.1", 1)) as pool:
        monkeypatch.setattr(sockets, "open_connection", no_more)
        with pytest.raises(errors.Unavailable):
            await ask(pool)


# -- resets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["reset", "close"])
@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200", CHUNKED, OK + b"Content-Length: 3\r\n\r\n"])
async def test_lost_before_the_first_byte_of_the_body(how: str, answer: bytes) -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(answer)
        if how == "reset":
            side.reset()

    async with worker(script) as it, pool_for(it.origin) as pool:
        with pytest.raises(errors.UpstreamReset) as lost:
            await ask(pool)
        assert isinstance(lost.value, UpstreamLost)
        assert lost.value.bytes_received in ({len(answer)} if how == "close" else {0, len(answer)})
        assert not lost.value.reused
        assert it.requests == 1
        assert pool.statistics().open == 0


@pytest.mark.parametrize("how", ["reset", "close"])
@pytest.mark.parametrize("head", [CHUNKED + chunk(b"one") + b"9\r\n", OK + b"Content-Length: 9\r\n\r\none"])
async def test_lost_in_the_middle(how: str, head: bytes) -> None:
    go_on = asyncio.Event()

    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(head, b"two")
        await go_on.wait()
        if how == "reset":
            side.reset()

    async with worker(script) as it, pool_for(it.origin) as pool:
        response = await ask(pool)
        seen = b""
        while len(seen) < 6:
            seen += await response.read()
        go_on.set()
        for _ in range(2):
            with pytest.raises(errors.UpstreamReset):
                await response.read()
        assert seen == b"onetwo"
        assert not response.complete
        assert response.read_nowait() == b""


async def test_what_came_before_the_loss_is_handed_out_first() -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(CHUNKED + chunk(b"one"), chunk(b"two"))

    async with worker(script) as it, pool_for(it.origin) as pool:
        response = await ask(pool)
        await eventually(lambda: pool.statistics().open == 0)
        assert await response.read() == b"onetwo"
        assert not response.complete
        with pytest.raises(errors.UpstreamReset):
            await response.read()


async def test_a_body_until_close_that_is_reset_is_not_complete() -> None:
    go_on = asyncio.Event()

    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(OK + b"X-A: b\r\n\r\none")
        await go_on.wait()
        side.reset()

    async with worker(script) as it, pool_for(it.origin) as pool:
        response = await ask(pool)
        assert response.read_nowait() == b"one"
        go_on.set()
        with pytest.raises(errors.UpstreamReset):
            await response.read()


async def test_lost_while_the_request_is_being_sent() -> None:
    async def script(side: WorkerSide) -> None:
        await side.reader.readuntil(b"\r\n\r\n")
        side.reset()

    async with worker(script) as it, pool_for(it.origin) as pool:
        with pytest.raises(errors.UpstreamReset) as lost:
            await ask(pool, b"x" * (16 << 20))
        assert isinstance(lost.value, UpstreamLost)
        assert lost.value.bytes_received == 0


# -- the keep-alive race -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_an_old_connection_that_dies_without_a_byte_is_replaced(how: str) -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(HELLO)
        await side.request()
        if how == "reset":
            side.reset()

    async with worker(script) as it, pool_for(it.origin) as pool:
        for _ in range(4):
            assert await read_all(await ask(pool)) == b"hello"
        assert len(it.connections) == 4


@pytest.mark.parametrize("begun", [b"", CHUNKED + chunk(b"hel")])
async def test_an_answer_without_a_length_does_not_make_the_next_one_end_with_its_connection(begun: bytes) -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(b"HTTP/1.1 204 No Content\r\n\r\n")
        await side.request()
        if begun:
            await side.send(begun)

    async with worker(script) as it, pool_for(it.origin) as pool:
        assert await read_all(await ask(pool)) == b""
        response = await ask(pool)
        if begun:
            with pytest.raises(UpstreamLost):
                await read_all(response)
        else:
            assert response.status == 204  # of another connection
        assert len(it.connections) == (1 if begun else 2)


async def test_a_request_that_must_not_be_replayed_reports_the_race() -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(HELLO)
        await side.request()

    async with worker(script) as it, pool_for(it.origin) as pool:
        await ask(pool)
        with pytest.raises(errors.UpstreamReset) as lost:
            await ask(pool, replayable=False)
        assert isinstance(lost.value, UpstreamLost)
        assert (lost.value.reused, lost.value.bytes_received) == (True, 0)
        assert it.requests == 2


async def test_the_race_is_run_once() -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        if side.number == 1:
            await side.send(HELLO)
            await side.request()

    async with worker(script) as it, pool_for(it.origin) as pool:
        await ask(pool)
        with pytest.raises(errors.UpstreamReset):
            await ask(pool)
        assert it.requests == 3


async def test_an_old_connection_that_answered_anything_is_not_replaced() -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(HELLO)
        await side.request()
        await side.send(b"HTTP/1.1 2")

    async with worker(script) as it, pool_for(it.origin) as pool:
        await ask(pool)
        with pytest.raises(errors.UpstreamReset):
            await ask(pool)
        assert it.requests == 2


@pytest.mark.interpreted
async def test_a_death_long_after_the_request_is_no_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "REUSE_RACE_SECONDS", 0.02)

    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(HELLO)
        await side.request()
        await asyncio.sleep(0.04)

    async with worker(script) as it, pool_for(it.origin) as pool:
        await ask(pool)
        with pytest.raises(errors.UpstreamReset):
            await ask(pool)
        assert it.requests == 2


async def test_calls_spaced_like_the_workers_idle_limit_all_succeed() -> None:
    idle = 0.01

    async def script(side: WorkerSide) -> None:
        await side.request()  # a new connection may take its time, as it may at uvicorn
        while True:
            await side.send(HELLO)
            try:
                async with asyncio.timeout(idle):
                    await side.request()
            except TimeoutError:
                return

    spaces = random.Random(7)
    async with worker(script) as it, pool_for(it.origin, keep_alive_seconds=60.0) as pool:
        for _ in range(60):
            assert await read_all(await ask(pool)) == b"hello"
            await asyncio.sleep(idle * spaces.uniform(0.9, 1.1))
        assert len(it.connections) > 1


# -- silence ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 100 Continue\r\n\r\n", OK, CHUNKED])
async def test_no_body_in_time(answer: bytes) -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(answer)
        await side.gone()

    async with worker(script) as it, pool_for(it.origin, first_byte_seconds=0.1, idle_seconds=9.0) as pool:
        began = asyncio.get_running_loop().time()
        with pytest.raises(errors.UpstreamTimeout) as late:
            await ask(pool)
        assert 0.09 <= asyncio.get_running_loop().time() - began < 3.0
        assert not late.value.try_another
        assert pool.statistics().open == 0
        await eventually(lambda: it.connections[0].reader.at_eof())


async def test_framing_without_body_does_not_stretch_the_limit() -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(CHUNKED, b"3;x=", *([b"y"] * 1000))

    async with worker(script) as it, pool_for(it.origin, first_byte_seconds=0.1) as pool:
        with pytest.raises(errors.UpstreamTimeout):
            await ask(pool)


async def test_silence_in_the_middle() -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(CHUNKED + chunk(b"one"))
        await side.gone()

    async with worker(script) as it, pool_for(it.origin, idle_seconds=0.1) as pool:
        response = await ask(pool)
        assert response.read_nowait() == b"one"
        with pytest.raises(errors.UpstreamTimeout):
            await response.read()
        await eventually(lambda: it.connections[0].reader.at_eof())


async def test_a_steady_stream_outlives_every_limit() -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(CHUNKED)
        for number in range(15):
            await side.send(chunk(b"%d," % number))
            await asyncio.sleep(0.03)
        await side.send(LAST_CHUNK)

    async with worker(script) as it, pool_for(it.origin, idle_seconds=0.4, first_byte_seconds=0.4) as pool:
        assert (await read_all(await ask(pool))).count(b",") == 15


async def test_a_worker_that_does_not_take_the_request() -> None:
    async def script(side: WorkerSide) -> None:
        side.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    async with worker(script) as it, pool_for(it.origin, first_byte_seconds=0.1) as pool:
        with pytest.raises(errors.UpstreamTimeout):
            await ask(pool, b"x" * (32 << 20))


async def test_the_wait_for_the_first_byte_begins_when_the_request_is_sent() -> None:
    go_on = asyncio.Event()

    async def script(side: WorkerSide) -> None:
        await side.reader.readuntil(b"\r\n\r\n")
        await go_on.wait()
        await side.reader.readexactly(8 << 20)
        go_on.clear()
        await go_on.wait()
        await side.send(HELLO)

    async with worker(script) as it, pool_for(it.origin) as pool:
        asking = asyncio.create_task(ask(pool, b"x" * (8 << 20)))
        await eventually(lambda: len(it.connections) == 1)
        await asyncio.sleep(0.01)
        (connection,) = pool._open
        written = connection.deadline
        go_on.set()
        await eventually(lambda: not go_on.is_set())
        assert connection.deadline > written
        go_on.set()
        assert await read_all(await asking) == b"hello"


# -- nonsense ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2p1\r\n",
        OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        OK + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        OK + b"X-A: b\r\n c\r\nContent-Length: 0\r\n\r\n",
        OK + b"X-A: \0\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 200 + HELLO,
        OK + b"X-A: b\r\n" * 300 + b"\r\n",
        OK + b"X-A: " + b"b" * 70000,
        OK + b"Transfer-Encoding: gzip\r\n\r\nabc",
    ],
)
async def test_nonsense(answer: bytes) -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(answer)
        await side.gone()

    async with worker(script) as it, pool_for(it.origin) as pool:
        with pytest.raises(errors.UpstreamProtocolError) as refused:
            await ask(pool)
        assert not refused.value.try_another
        assert it.requests == 1
        assert pool.statistics().open == 0
        await eventually(lambda: it.connections[0].reader.at_eof())


async def test_a_greeting_before_the_request() -> None:
    async def script(side: WorkerSide) -> None:
        side.writer.write(b"220 mail.example ESMTP\r\n")
        await side.gone()

    async with worker(script) as it, pool_for(it.origin) as pool:
        with pytest.raises(errors.UpstreamProtocolError):
            await ask(pool)


@pytest.fixture
def late_to_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task comes back from connecting after the worker has acted on the connection."""
    open_connection = sockets.open_connection

    async def late(loop: asyncio.AbstractEventLoop, connection: Any, *where: Any) -> None:
        await open_connection(loop, connection, *where)
        await eventually(lambda: connection.closed)

    monkeypatch.setattr(sockets, "open_connection", late)


@pytest.mark.usefixtures("late_to_the_connection")
async def test_a_greeting_that_comes_first() -> None:
    async def script(side: WorkerSide) -> None:
        side.writer.write(b"220 mail.example ESMTP\r\n")
        await side.gone()

    async with worker(script) as it, pool_for(it.origin) as pool:
        with pytest.raises(errors.UpstreamProtocolError):
            await ask(pool)


@pytest.mark.usefixtures("late_to_the_connection")
async def test_a_worker_that_hangs_up_first() -> None:
    async def script(side: WorkerSide) -> None:
        side.writer.close()

    async with worker(script) as it, pool_for(it.origin) as pool:
        with pytest.raises(errors.UpstreamReset) as lost:
            await ask(pool)
        assert isinstance(lost.value, UpstreamLost)
        assert (lost.value.bytes_received, lost.value.reused) == (0, False)
        assert pool.statistics().open == 0


async def test_nonsense_in_the_middle() -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(CHUNKED + chunk(b"one"))
        await side.send(b"zz\r\n")
        await side.gone()

    async with worker(script) as it, pool_for(it.origin) as pool:
        response = await ask(pool)
        assert await response.read() == b"one"
        with pytest.raises(errors.UpstreamProtocolError):
            await response.read()


async def test_failures_leave_the_pool_usable() -> None:
    answers = [b"", b"junk\r\n", CHUNKED, OK + b"Content-Length: 9\r\n\r\nshort", HELLO]

    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(answers[(side.number - 1) % len(answers)])
        side.reset() if side.number % 2 else None

    async with worker(script) as it, pool_for(it.origin, max_connections=1) as pool:
        good = 0
        for _ in range(50):
            try:
                good += await read_all(await ask(pool)) == b"hello"
            except errors.UpstreamError:
                await settle()
        assert good >= 5
        assert it.requests >= 50
