"""Requests and answers that go well: framing, reuse, first byte, both directions of flow."""

from __future__ import annotations

import asyncio
import math
import socket
import time

import pytest

from router import errors
from router.dataplane.upstream import Origin, UpstreamLimits, UpstreamPool
from tests.edges.upstream.rig import (
    CHUNKED,
    HELLO,
    LAST_CHUNK,
    OK,
    Flood,
    WorkerSide,
    ask,
    chunk,
    eventually,
    head,
    pool_for,
    read_all,
    settle,
    worker,
)


async def echo_length(side: WorkerSide) -> None:
    """Answers every request with the size of its body, for as long as the client keeps the connection."""
    while True:
        size = b"%d" % len((await side.request()).partition(b"\r\n\r\n")[2])
        await side.send(OK + b"Content-Length: %d\r\nX-Connection: %d\r\n\r\n%b" % (len(size), side.number, size))


async def test_one_request() -> None:
    async with worker(echo_length) as it, pool_for(it.origin) as pool:
        response = await ask(pool, b"12345678")
        assert response.status == 200
        assert response.headers == [(b"content-length", b"1"), (b"x-connection", b"1")]
        assert response.content_length == 1
        assert not response.complete
        assert response.read_nowait() == b"8"
        assert response.complete
        assert response.read_nowait() == b""
        assert await response.read() == b""
        assert it.connections[0].requests == [head(b"12345678") + b"12345678"]


async def test_requests_one_after_another_share_a_connection() -> None:
    async with worker(echo_length) as it, pool_for(it.origin) as pool:
        for size in range(1, 20):
            assert await read_all(await ask(pool, b"x" * size)) == b"%d" % size
        counts = pool.statistics()
        assert len(it.connections) == 1
        assert (counts.open, counts.idle, counts.opened_total, counts.reused_total) == (1, 1, 1, 18)


async def test_the_connection_is_free_before_its_answer_is_read() -> None:
    async with worker(echo_length) as it, pool_for(it.origin) as pool:
        first = await ask(pool, b"1")
        second = await ask(pool, b"22")
        assert (first.read_nowait(), second.read_nowait()) == (b"1", b"2")
        assert len(it.connections) == 1


async def test_requests_at_once_have_their_own_connections() -> None:
    async with worker(echo_length) as it, pool_for(it.origin) as pool:
        answers = await asyncio.gather(*(ask(pool, b"x" * size) for size in range(30)))
        assert [answer.read_nowait() for answer in answers] == [b"%d" % size for size in range(30)]
        assert len(it.connections) == 30
        assert pool.statistics().idle == 30


async def test_no_more_idle_connections_than_the_limit() -> None:
    async with worker(echo_length) as it, pool_for(it.origin, max_idle=3) as pool:
        await asyncio.gather(*(ask(pool) for _ in range(10)))
        counts = pool.statistics()
        assert (counts.open, counts.idle) == (3, 3)
        await eventually(lambda: sum(side.reader.at_eof() for side in it.connections) == 7)


async def test_the_answer_is_held_back_until_the_body_begins() -> None:
    go_on = asyncio.Event()

    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(CHUNKED)
        await go_on.wait()
        await side.send(chunk(b"first"), chunk(b"second"), LAST_CHUNK)

    async with worker(script) as it, pool_for(it.origin) as pool:
        asking = asyncio.create_task(ask(pool))
        await eventually(lambda: it.requests == 1)
        await asyncio.sleep(0.02)
        assert not asking.done()
        go_on.set()
        response = await asking
        assert response.content_length is None
        assert await read_all(response) == b"firstsecond"


async def test_pieces_arrive_as_they_are_sent() -> None:
    gates = [asyncio.Event() for _ in range(5)]

    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(CHUNKED + chunk(b"0"))
        for number, gate in enumerate(gates):
            await gate.wait()
            await side.send(chunk(b"%d" % number))
        await side.send(LAST_CHUNK)

    async with worker(script) as it, pool_for(it.origin) as pool:
        response = await ask(pool)
        assert response.read_nowait() == b"0"
        for number, gate in enumerate(gates):
            gate.set()
            assert await response.read() == b"%d" % number
        assert await response.read() == b""


@pytest.mark.parametrize(
    ("method", "answer", "status", "body", "kept"),
    [
        (b"POST", b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
        (b"GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, b"", True),
        (b"HEAD", OK + b"Content-Length: 5\r\n\r\n", 200, b"", False),
        (b"POST", OK + b"Content-Length: 0\r\n\r\n", 200, b"", True),
        (b"POST", b"HTTP/1.1 100 Continue\r\n\r\n" * 16 + HELLO, 200, b"hello", True),
        (b"POST", b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 5\r\n\r\nhello", 302,
         b"hello", True),
        (b"POST", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello", False),
        (b"POST", OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello", False),
        (b"POST", CHUNKED + b"5;x=y\r\nhello\r\n0;z\r\nX-Trailer: 1\r\n\r\n", 200, b"hello", True),
        (b"POST", OK + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\n\x1f\x8b\x08\0\0", 200,
         b"\x1f\x8b\x08\0\0", True),
    ],
)  # fmt: skip
async def test_kinds_of_answers(method: bytes, answer: bytes, status: int, body: bytes, kept: bool) -> None:
    async def script(side: WorkerSide) -> None:
        while True:
            await side.request()
            await side.send(answer)

    async with worker(script) as it, pool_for(it.origin) as pool:
        for _ in range(2):
            response = await ask(pool, method=method)
            assert (response.status, await read_all(response)) == (status, body)
        assert len(it.connections) == (1 if kept else 2)
        assert it.requests == 2


async def test_a_body_until_close() -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(OK + b"X-A: b\r\n\r\n", b"one", b"two")

    async with worker(script) as it, pool_for(it.origin) as pool:
        response = await ask(pool)
        assert response.content_length is None
        assert await read_all(response) == b"onetwo"
        assert pool.statistics().open == 0


async def test_surplus_bytes_reach_nobody() -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(HELLO + OK + b"Content-Length: 4\r\n\r\nEVIL")
        await side.gone()

    async with worker(script) as it, pool_for(it.origin) as pool:
        for _ in range(3):
            assert await read_all(await ask(pool)) == b"hello"
        assert len(it.connections) == 3


async def test_bytes_on_an_idle_connection_close_it() -> None:
    more = asyncio.Event()

    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(HELLO)
        await more.wait()
        await side.send(HELLO)
        await side.gone()

    async with worker(script) as it, pool_for(it.origin) as pool:
        await read_all(await ask(pool))
        assert pool.statistics().idle == 1
        more.set()
        await eventually(lambda: pool.statistics().open == 0)


async def test_bytes_the_loop_has_not_delivered_yet_are_seen_before_reuse() -> None:
    sockets: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        loop = asyncio.get_running_loop()

        async def serve_once() -> None:
            accepted, _ = await loop.sock_accept(listener)
            accepted.setblocking(False)
            sockets.append(accepted)
            await loop.sock_recv(accepted, 65536)
            await loop.sock_sendall(accepted, HELLO)

        async with pool_for(Origin("127.0.0.1", listener.getsockname()[1])) as pool:
            serving = asyncio.create_task(serve_once())
            await read_all(await ask(pool))
            await serving
            sockets[0].send(OK + b"Content-Length: 4\r\n\r\nEVIL")  # and the loop gets no turn before the next request
            serving = asyncio.create_task(serve_once())
            assert await read_all(await ask(pool)) == b"hello"
            await serving
            assert pool.statistics().opened_total == 2
        for accepted in sockets:
            accepted.close()


async def test_idle_connections_go_after_their_time() -> None:
    async with worker(echo_length) as it, pool_for(it.origin, keep_alive_seconds=0.3) as pool:
        await asyncio.gather(*(ask(pool) for _ in range(5)))
        assert pool.statistics().idle == 5
        await eventually(lambda: pool.statistics().open == 0)
        await eventually(lambda: all(side.reader.at_eof() for side in it.connections))


async def test_a_connection_past_its_time_is_not_used_even_before_the_sweep() -> None:
    async with worker(echo_length) as it, pool_for(it.origin, keep_alive_seconds=0.04) as pool:
        await ask(pool)
        time.sleep(0.05)  # noqa: ASYNC251 - the loop, and with it the sweep, stands still
        await ask(pool)
        assert len(it.connections) == 2
        assert pool.statistics().open == 1


async def test_a_large_request_body_arrives_intact() -> None:
    body = bytes(range(256)) * (20 << 12)  # 20 MiB
    received: list[bytes] = []

    async def script(side: WorkerSide) -> None:
        received.append(await side.request())
        await side.send(HELLO)
        await side.gone()

    async with worker(script) as it, pool_for(it.origin) as pool:
        assert await read_all(await ask(pool, body)) == b"hello"
        assert received[0] == head(body) + body
        assert pool.statistics().idle == 1


async def test_an_answer_before_the_request_was_sent() -> None:
    async def script(side: WorkerSide) -> None:
        await side.reader.readuntil(b"\r\n\r\n")
        await side.send(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 5\r\n\r\nlarge")
        await side.reader.read(1)
        await asyncio.Event().wait()

    async with worker(script) as it, pool_for(it.origin) as pool:
        response = await ask(pool, b"x" * (32 << 20))
        assert (response.status, await read_all(response)) == (413, b"large")
        assert pool.statistics().open == 0


async def test_an_answer_before_the_request_was_sent_and_then_a_close() -> None:
    async def script(side: WorkerSide) -> None:
        await side.reader.readuntil(b"\r\n\r\n")
        await side.send(b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 5\r\n\r\nlarge")

    async with worker(script) as it, pool_for(it.origin) as pool:
        for _ in range(20):
            response = await ask(pool, b"x" * (16 << 20))
            assert (response.status, await read_all(response)) == (413, b"large")
        assert pool.statistics().open == 0


async def test_many_slow_streams_all_reach_the_worker() -> None:
    together = asyncio.Event()

    async def script(side: WorkerSide) -> None:
        await side.request()
        await together.wait()
        await side.send(CHUNKED + chunk(b"%d" % side.number), LAST_CHUNK)

    async with worker(script) as it, pool_for(it.origin) as pool:
        asking = [asyncio.create_task(ask(pool)) for _ in range(150)]
        await eventually(lambda: it.requests == 150)
        together.set()
        bodies = await asyncio.gather(*[read_all(await one) for one in asking])
        assert {int(body) for body in bodies} == set(range(1, 151))


async def test_no_more_connections_than_the_limit() -> None:
    hold = asyncio.Event()

    async def script(side: WorkerSide) -> None:
        while await side.request():
            await hold.wait()
            await side.send(HELLO)

    async with worker(script) as it, pool_for(it.origin, max_connections=3) as pool:
        asking = [asyncio.create_task(ask(pool)) for _ in range(3)]
        await settle(1)
        with pytest.raises(errors.Unavailable) as refused:  # while they still connect
            await ask(pool)
        assert refused.value.retry_after == 1
        await eventually(lambda: it.requests == 3)
        with pytest.raises(errors.Unavailable):
            await ask(pool)
        hold.set()
        await asyncio.gather(*asking)
        assert await read_all(await ask(pool)) == b"hello"


async def test_a_reader_that_does_not_read_holds_the_worker_up() -> None:
    flood = Flood(64 << 20)
    size, block = flood.size, flood.BLOCK

    async with worker(flood) as it, pool_for(it.origin) as pool:
        response = await ask(pool)
        assert await flood.held_up() < 16 << 20  # the sockets' buffers and ours
        (connection,) = pool._open
        assert connection.deadline == math.inf  # the worker is not silent, it is not listened to
        first = response.read_nowait()
        assert len(first) < 262144 * 2 + 65536
        count = len(first)
        assert first == (block * (len(first) // len(block) + 1))[: len(first)]
        while piece := await response.read():
            assert piece[:1] == block[count % 256 : count % 256 + 1]
            assert len(piece) < 262144 * 2 + 65536
            count += len(piece)
            assert count == size or connection.deadline < math.inf
        assert count == size
        assert response.complete
        assert pool.statistics().idle == 1


async def test_a_reader_that_keeps_up_never_holds_the_worker_up() -> None:
    gates = [asyncio.Event() for _ in range(5)]

    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(CHUNKED)
        for gate in gates:
            await side.send(chunk(b"x" * 100))
            await gate.wait()
        await side.send(LAST_CHUNK)

    async with worker(script) as it, pool_for(it.origin, read_buffer=200) as pool:
        response = await ask(pool)
        (connection,) = pool._open
        for gate in gates:
            await eventually(lambda: bool(response._pieces))
            assert connection.deadline < math.inf
            assert len(response.read_nowait()) == 100
            gate.set()
        assert await response.read() == b""


async def test_small_packets_are_not_held_back() -> None:
    async with worker(echo_length) as it, pool_for(it.origin) as pool:
        await ask(pool)
        (connection,) = pool._open
        assert connection._transport is not None
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


async def test_a_worker_on_ipv6() -> None:
    async with worker(echo_length, host="::1") as it, pool_for(it.origin) as pool:
        assert it.origin.authority.startswith(b"[::1]:")
        assert await read_all(await ask(pool, b"123")) == b"3"


def test_a_pool_may_be_made_before_its_loop() -> None:
    async def use(pool: UpstreamPool) -> None:
        with pytest.raises(errors.ConnectFailed):
            await ask(pool)

    asyncio.run(use(UpstreamPool(Origin("127.0.0.1", 1), UpstreamLimits())))
