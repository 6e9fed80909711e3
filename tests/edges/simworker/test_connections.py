"""Connections of the simulated worker: clients that leave, keep-alive, pipelining, limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import httpx
import pytest

from loadtest.simworker import Record, SimConfig, SimWorker
from tests.edges.simworker.life_rig import FAST, SLOW, chat, connected, post, response

# -- clients that leave


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("place", ["queue", "prefill", "decode"])
async def test_a_client_that_leaves_is_seen_at_once(place: str, stream: bool) -> None:
    async with SimWorker(SLOW) as worker, connected(worker.port) as (_, ahead):
        if place == "queue":
            ahead.write(post(chat(30_000)))
            await worker.until(lambda: worker.engine.running == 1)
        words = {"queue": 10, "prefill": 30_000, "decode": 10}[place]
        async with connected(worker.port) as (_, writer):
            writer.write(post(chat(words, stream=stream, max_tokens=400)))
            await worker.until(lambda: len(worker.calls) == 1 + (place == "queue"))
            await worker.until(lambda: worker.engine.waiting + worker.engine.running == 1 + (place == "queue"))
            if place == "decode":
                await worker.until(lambda: bool(worker.engine.totals.prompt_tokens))
                await asyncio.sleep(0.05)
            left = time.monotonic()
        await worker.until(lambda: worker.aborted == 1)
        record = worker.calls[-1]
        assert record.outcome == "aborted"
        assert record.aborted_at is not None
        assert 0 <= record.aborted_at - left < 0.5
        assert worker.engine.waiting == 0
        assert worker.engine.running == (place == "queue")


async def test_half_a_close_counts_as_leaving() -> None:
    async with SimWorker(SLOW) as worker, connected(worker.port) as (_, writer):
        writer.write(post(chat(30_000)))
        writer.write_eof()
        await worker.until(lambda: worker.aborted == 1)
        await worker.until(lambda: not worker.connections)


async def test_a_client_that_leaves_inside_its_body() -> None:
    async with SimWorker(FAST) as worker:
        async with connected(worker.port) as (_, writer):
            writer.write(post(chat())[:-5])
            await worker.until(lambda: len(worker.requests) == 1)
        await worker.until(lambda: worker.requests[0].outcome == "aborted")
        assert worker.requests[0].received_at is None


async def test_stopping_breaks_what_is_open() -> None:
    async with SimWorker(SLOW) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(post(chat(30_000, stream=True)))
        await reader.readuntil(b"\r\n\r\n")
    assert not worker.connections
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


# -- streams


async def test_the_head_of_a_stream_comes_before_its_prefill() -> None:
    async with SimWorker(SLOW) as worker, connected(worker.port) as (reader, writer):
        writer.write(post(chat(30_000, stream=True)))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert worker.engine.totals.generation_tokens == 0
        assert worker.engine.running == 1


async def test_tokens_come_one_by_one() -> None:
    config = SimConfig(models=("base",), prefill_tokens_per_second=1e6, decode_seconds_per_token=0.03)
    async with SimWorker(config) as worker, httpx.AsyncClient(base_url=worker.url) as client:
        begun = time.monotonic()
        async with client.stream("POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=5)) as answer:
            lines = answer.aiter_lines()
            seen = [time.monotonic() - begun async for line in lines if '"content":" ' in line]
        assert len(seen) == 4
        for number, at in enumerate(seen, 1):
            assert number * 0.03 - 0.005 < at < number * 0.03 + 0.5


async def test_a_client_that_does_not_read_stops_the_writing() -> None:
    async with SimWorker(FAST) as worker, connected(worker.port) as (reader, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(post(chat(stream=True, max_tokens=30_000)))
        await worker.until(lambda: len(worker.connections) == 1)
        (connection,) = worker.connections
        await worker.until(lambda: connection.unsent > 0)
        await asyncio.sleep(0.05)
        assert connection.unsent < 200_000
        assert worker.calls[0].outcome == "open"
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(20):
            while b"[DONE]" not in await reader.readuntil(b"\n\n"):
                pass
        await worker.until(lambda: worker.calls[0].outcome == "done")


async def test_overload_is_refused_before_the_stream() -> None:
    config = SimConfig(models=("base",), max_num_queued_reqs=1)
    async with SimWorker(config) as worker, contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            _, writer = await stack.enter_async_context(connected(worker.port))
            writer.write(post(chat(30_000)))
        await worker.until(lambda: worker.engine.waiting == 1)
        reader, writer = await stack.enter_async_context(connected(worker.port))
        writer.write(post(chat(stream=True)))
        status, body = await response(reader)
        assert status == 503
        assert json.loads(body)["error"]["type"] == "Service Unavailable"
        assert worker.rejections == 1


# -- connections


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with SimWorker(FAST) as worker, connected(worker.port) as (reader, writer):
        writer.write(b"".join(post(chat(sim_echo=f"token-{n}")) for n in range(200)))
        for number in range(200):
            status, body = await response(reader)
            assert status == 200
            assert f'"content":"token-{number} '.encode() in body
        assert [record.ordinal for record in worker.requests] == list(range(1, 201))
        assert {record.connection for record in worker.requests} == {1}


async def test_pipelined_requests_to_a_slow_engine() -> None:
    config = SimConfig(models=("base",), time_scale=0.01)
    async with SimWorker(config) as worker, connected(worker.port) as (reader, writer):
        for number in range(5):
            writer.write(post(chat(200 * number, sim_echo=f"token-{number}")))
        for number in range(5):
            assert f"token-{number}".encode() in (await response(reader))[1]


async def test_idle_connections_are_closed_in_silence() -> None:
    config = SimConfig(models=("base",), time_scale=0.0, keep_alive_seconds=0.2)
    async with SimWorker(config) as worker, connected(worker.port) as (reader, writer):
        for _ in range(2):
            writer.write(post(chat()))
            assert (await response(reader))[0] == 200
            answered = time.monotonic()
            await asyncio.sleep(0.1)
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        assert 0.19 < time.monotonic() - answered < 1


async def test_a_working_connection_is_not_idle() -> None:
    config = SimConfig(models=("base",), decode_seconds_per_token=0.1, keep_alive_seconds=0.1)
    async with SimWorker(config) as worker, connected(worker.port) as (reader, writer):
        for _ in range(2):
            writer.write(post(chat()))
            assert (await response(reader))[0] == 200


async def test_http_1_0_gets_no_chunks() -> None:
    async with SimWorker(FAST) as worker, connected(worker.port) as (reader, writer):
        writer.write(post(chat(stream=True), version="1.0"))
        async with asyncio.timeout(5):
            head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
        assert b"chunked" not in head
        assert body.startswith(b"data: ")
        assert body.endswith(b"data: [DONE]\n\n")


async def test_a_chunked_request() -> None:
    async with SimWorker(FAST) as worker, connected(worker.port) as (reader, writer):
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        data = json.dumps(chat()).encode()
        for part in (data[:10], data[10:]):
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        writer.write(b"0\r\n\r\n")
        assert (await response(reader))[0] == 200
        assert worker.calls[0].body == data


async def test_a_request_that_waits_to_be_asked_for_its_body() -> None:
    async with SimWorker(FAST) as worker, connected(worker.port) as (reader, writer):
        for _ in range(2):
            head, _, body = post(chat(), extra="Expect: 100-continue\r\n").partition(b"\r\n\r\n")
            writer.write(head + b"\r\n\r\n")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(body)
            assert (await response(reader))[0] == 200


async def test_a_body_over_the_limit() -> None:
    config = SimConfig(models=("base",), max_body_bytes=1000)
    async with SimWorker(config) as worker, connected(worker.port) as (reader, writer):
        writer.write(post(chat(1000))[:2500])
        async with asyncio.timeout(5):
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 413 ")


async def test_large_bodies_arrive_byte_for_byte() -> None:
    async with SimWorker(FAST) as worker, httpx.AsyncClient(base_url=worker.url, timeout=30) as client:
        content = json.dumps({"messages": [], "filler": "é" * 6_000_000}, ensure_ascii=False).encode()
        await client.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
        assert worker.calls[0].body == content
        assert worker.calls[0].body_bytes > 12_000_000


async def test_what_is_not_http_is_400() -> None:
    async with SimWorker(FAST) as worker, connected(worker.port) as (reader, writer):
        writer.write(b"hello\r\n\r\n")
        async with asyncio.timeout(5):
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")


# -- records


async def test_a_record_has_the_bytes_of_the_request() -> None:
    async with SimWorker(FAST) as worker, connected(worker.port) as (reader, writer):
        request = post(chat(), path="/v1/chat/completions?a=%20b", extra="X-Odd:  Value \r\nx-odd: 2\r\n")
        writer.write(request)
        await response(reader)
        record = worker.requests[0]
        assert (record.method, record.target) == ("POST", "/v1/chat/completions?a=%20b")
        assert [value for name, value in record.headers if name.lower() == b"x-odd"] == [b"Value ", b"2"]
        assert record.headers[0] == (b"Host", b"w")
        assert record.body == request.partition(b"\r\n\r\n")[2]
        times = [record.arrived_at, record.received_at, record.first_byte_at, record.ended_at]
        assert None not in times
        assert times == sorted(times, key=lambda at: at or 0)


async def test_records_are_bounded() -> None:
    config = SimConfig(models=("base",), time_scale=0.0, max_records=3, max_record_bytes=400)
    async with SimWorker(config) as worker, httpx.AsyncClient(base_url=worker.url) as client:
        for number in range(5):
            await client.post("/v1/chat/completions", json=chat(20, sim_echo=f"t{number}"))
        assert [b"t4" in record.body for record in worker.requests] == [False, False, True]
        assert sum(len(record.body) for record in worker.requests) <= 400
        assert worker.requests.total == 5
        shown = (await client.get("/sim/requests?bodies=1&last=1")).json()
        assert Record.from_json(shown[0]).body == worker.requests[2].body
        assert (await client.get("/sim/requests?path=/nope")).json() == []


async def test_the_state() -> None:
    async with SimWorker(SLOW) as worker, connected(worker.port) as (_, writer), httpx.AsyncClient() as client:
        writer.write(post(chat(30_000)))
        await worker.until(lambda: worker.engine.running == 1)
        state = (await client.get(f"{worker.url}/sim/state")).json()
        assert (state["running"], state["waiting"], state["aborted"], state["connections"]) == (1, 0, 0, 2)
