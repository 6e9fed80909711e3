"""Clients that leave: at every moment, the place, the socket and the worker are free again at once."""

from __future__ import annotations

import asyncio
import gc

import pytest

from router import errors
from router.dataplane.upstream import Origin, UpstreamResponse
from router.dataplane.upstream_connection import UpstreamConnection
from router.dataplane.upstream_parser import ResponseParser
from tests.edges.upstream.rig import (
    CHUNKED,
    HELLO,
    OK,
    Script,
    WorkerSide,
    ask,
    chunk,
    eventually,
    nobody_accepts,
    open_sockets,
    pool_for,
    read_all,
    settle,
    worker,
)


async def answer_all(side: WorkerSide) -> None:
    while await side.request():
        await side.send(HELLO)


async def never_answer(side: WorkerSide) -> None:
    await side.request()
    await side.gone()


async def one_piece(side: WorkerSide) -> None:
    await side.request()
    await side.send(CHUNKED + chunk(b"one"))
    await side.gone()


async def cancel(task: asyncio.Task[UpstreamResponse] | asyncio.Task[bytes]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("turns", range(12))
async def test_cancelled_while_connecting_leaves_every_place_free(turns: int) -> None:
    size = 8
    async with worker(answer_all) as it, pool_for(it.origin, max_connections=size) as pool:
        before = open_sockets()
        for _ in range(5):
            asking = [asyncio.create_task(ask(pool)) for _ in range(size)]
            await settle(turns)
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            assert pool.statistics().connecting == 0
            assert pool.statistics().active == 0
        async with asyncio.timeout(1.0):
            assert await read_all(await ask(pool)) == b"hello"
        idle = pool.statistics().idle
        await eventually(lambda: open_sockets() <= before + 2 * idle)


async def test_cancelled_while_nobody_accepts() -> None:
    with nobody_accepts() as origin:
        before = open_sockets()
        async with pool_for(origin, max_connections=10) as pool:
            for _ in range(5):
                asking = [asyncio.create_task(ask(pool)) for _ in range(10)]
                await asyncio.sleep(0.005)
                assert pool.statistics().connecting == 10
                for task in asking:
                    await cancel(task)
            assert pool.statistics().connecting == 0
            await eventually(lambda: open_sockets() == before)


@pytest.mark.parametrize("script", [never_answer, one_piece])
async def test_cancelled_while_waiting_ends_the_connection_at_once(script: Script) -> None:
    async with worker(script) as it, pool_for(it.origin) as pool:

        async def use() -> bytes:
            return await read_all(await ask(pool))

        using = asyncio.create_task(use())
        await eventually(lambda: it.requests == 1)
        await asyncio.sleep(0.01)
        await cancel(using)
        assert pool.statistics().open == 0
        async with asyncio.timeout(1.0):
            await eventually(lambda: it.connections[0].reader.at_eof())


async def test_cancelled_at_any_turn_of_an_exchange() -> None:
    async with worker(answer_all) as it, pool_for(it.origin) as pool:
        for turns in range(40):
            assert await read_all(await ask(pool)) == b"hello"
            asking = asyncio.create_task(ask(pool))
            await settle(turns)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            assert pool.statistics().active == 0
        assert it.requests > 40


async def test_closing_a_response_in_flight_ends_the_connection_at_once() -> None:
    async with worker(one_piece) as it, pool_for(it.origin) as pool:
        response = await ask(pool)
        response.close()
        assert pool.statistics().open == 0
        response.close()
        assert not response.complete
        with pytest.raises(errors.ClientGone):
            await response.read()
        async with asyncio.timeout(1.0):
            await eventually(lambda: it.connections[0].reader.at_eof())


async def test_leaving_while_the_request_is_being_sent_does_not_send_the_rest() -> None:
    async def script(side: WorkerSide) -> None:
        side.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    async with worker(script) as it:
        before = open_sockets()
        async with pool_for(it.origin) as pool:
            asking = asyncio.create_task(ask(pool, b"x" * (32 << 20)))
            await eventually(lambda: pool.statistics().active == 1)
            await cancel(asking)
            await eventually(lambda: open_sockets() <= before + 1)  # the worker's end


async def test_closing_a_response_wakes_its_reader() -> None:
    async with worker(one_piece) as it, pool_for(it.origin) as pool:
        response = await ask(pool)
        assert await response.read() == b"one"
        reading = asyncio.create_task(response.read())
        await settle()
        response.close()
        with pytest.raises(errors.ClientGone):
            await reading


async def test_closing_a_complete_response_does_nothing() -> None:
    async with worker(answer_all) as it, pool_for(it.origin) as pool:
        response = await ask(pool)
        assert await read_all(response) == b"hello"
        response.close()
        assert response.complete
        assert await response.read() == b""
        assert pool.statistics().idle == 1


async def test_closing_an_answer_that_came_but_was_not_read() -> None:
    async with worker(answer_all) as it, pool_for(it.origin) as pool:
        response = await ask(pool)
        response.close()
        assert not response.complete
        assert response.read_nowait() == b""
        with pytest.raises(errors.ClientGone):
            await response.read()
        assert pool.statistics().idle == 1


async def test_closing_a_response_after_its_loss_keeps_the_reason() -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(CHUNKED + chunk(b"one"))

    async with worker(script) as it, pool_for(it.origin) as pool:
        response = await ask(pool)
        await eventually(lambda: pool.statistics().open == 0)
        response.close()
        assert response.read_nowait() == b""
        with pytest.raises(errors.UpstreamReset):
            await response.read()


async def test_closing_a_response_whose_reading_is_paused() -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        side.writer.write(OK + b"Content-Length: %d\r\n\r\n" % (1 << 30))
        while True:
            side.writer.write(b"x" * 65536)
            await side.writer.drain()

    async with worker(script) as it, pool_for(it.origin) as pool:
        response = await ask(pool)
        await asyncio.sleep(0.05)
        response.close()
        await eventually(lambda: it.connections[0].writer.is_closing())
        assert pool.statistics().open == 0


async def test_two_readers_of_one_response_are_a_mistake() -> None:
    async with worker(one_piece) as it, pool_for(it.origin) as pool:
        response = await ask(pool)
        response.read_nowait()
        first = asyncio.create_task(response.read())
        await settle()
        with pytest.raises(RuntimeError):
            await response.read()
        assert not first.done()
        await cancel(first)


# -- the pool's end ----------------------------------------------------------------------------------------------


async def test_closing_the_pool_ends_everything() -> None:
    async with worker(one_piece) as it, pool_for(it.origin) as pool:
        streaming = await ask(pool)
        streaming.read_nowait()
        reading = asyncio.create_task(streaming.read())
        await settle()
        pool.close()
        pool.close()
        with pytest.raises(errors.UpstreamReset):
            await reading
        with pytest.raises(errors.Unavailable):
            await ask(pool)
        assert pool.statistics().open == 0
        await eventually(lambda: it.connections[0].reader.at_eof())


async def test_closing_the_pool_ends_a_wait_for_the_first_byte() -> None:
    async with worker(never_answer) as it, pool_for(it.origin) as pool:
        asking = asyncio.create_task(ask(pool))
        await eventually(lambda: it.requests == 1)
        pool.close()
        with pytest.raises(errors.UpstreamReset):
            await asking
        assert it.requests == 1


async def test_closing_the_pool_does_not_replay_on_a_new_connection() -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(HELLO)
        await side.request()
        await side.gone()

    async with worker(script) as it, pool_for(it.origin) as pool:
        await ask(pool)
        asking = asyncio.create_task(ask(pool))
        await eventually(lambda: it.requests == 2)
        pool.close()
        with pytest.raises(errors.RouterError):
            await asking
        assert len(it.connections) == 1


async def test_closing_the_pool_ends_connecting() -> None:
    with nobody_accepts() as origin:
        async with pool_for(origin, connect_seconds=30.0) as pool:
            asking = asyncio.create_task(ask(pool))
            await asyncio.sleep(0.01)
            assert pool.statistics().connecting == 1
            pool.close()
            async with asyncio.timeout(1.0):
                with pytest.raises(errors.Unavailable):
                    await asking


def alive() -> int:
    return sum(isinstance(thing, UpstreamConnection | ResponseParser | UpstreamResponse) for thing in gc.get_objects())


async def test_closed_connections_are_freed_without_the_cycle_collector() -> None:
    async with worker(one_piece) as it:
        before = alive()
        gc.disable()
        try:
            async with pool_for(it.origin) as pool:
                responses = [await ask(pool) for _ in range(5)]
                assert alive() == before + 15
                for response in responses:
                    response.close()
                del response, responses
                await settle(20)
                assert alive() == before
            async with pool_for(Origin("127.0.0.1", 1)) as pool:
                for _ in range(5):
                    with pytest.raises(errors.ConnectFailed):
                        await ask(pool)
                await settle(20)
                assert alive() == before
        finally:
            gc.enable()
