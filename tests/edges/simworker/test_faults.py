"""Scripted faults as a raw socket sees them: ends, stalls and odd answers, on asyncio and in a process on uvloop."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from tests.edges.simworker.faults_rig import CHAT, STREAM, Peer, Served, exchange, post

# -- ends


async def test_reset_before_anything(served: Served) -> None:
    assert await exchange(served, {"kind": "reset"}, CHAT) == (b"", True)
    record = await served.last()
    assert (record.outcome, record.fault, record.first_byte_at) == ("fault", "reset", None)


@pytest.mark.parametrize("after", [1, 40, 200])
async def test_reset_after_bytes_of_the_response(served: Served, after: int) -> None:
    got, reset = await exchange(served, {"kind": "reset", "after": after}, STREAM)
    assert (len(got), reset) == (after, True)
    assert got == b"HTTP/1.1 200 OK\r\n"[:after] + got[17:]


async def test_close_before_anything(served: Served) -> None:
    assert await exchange(served, {"kind": "close"}, CHAT) == (b"", False)


async def test_close_between_events(served: Served) -> None:
    got, reset = await exchange(served, {"kind": "close", "unit": "event", "after": 2}, STREAM)
    assert not reset
    assert got.count(b"data: ") == 2
    assert got.endswith(b"\n\n\r\n")


async def test_close_inside_an_event(served: Served) -> None:
    got, _ = await exchange(served, {"kind": "close", "unit": "event", "after": 2, "extra": 10}, STREAM)
    assert got.endswith(b'\r\na\r\ndata: {"id\r\n')


async def test_close_after_bytes_of_a_body_with_a_length(served: Served) -> None:
    got, reset = await exchange(served, {"kind": "close", "unit": "body", "after": 15}, CHAT)
    head, _, body = got.partition(b"\r\n\r\n")
    assert b"content-length: " in head
    assert (body, reset) == (b'{"id":"chatcmpl', False)


async def test_a_stream_that_ends_early_in_good_form(served: Served) -> None:
    await served.add({"action": {"kind": "end", "unit": "event", "after": 3}})
    peer = await Peer.open(served.port, post(STREAM) + post(CHAT))
    first = await peer.until(b"\r\n0\r\n\r\n")
    assert first.count(b"data: ") == 3
    assert b"[DONE]" not in first
    assert await peer.read(15) == b"HTTP/1.1 200 OK"
    await peer.close()


async def test_the_error_event_of_a_failing_engine(served: Served) -> None:
    await served.add({"action": {"kind": "stream_error", "unit": "event", "after": 1}})
    peer = await Peer.open(served.port, post(STREAM))
    got = await peer.until(b"\r\n0\r\n\r\n")
    assert got.count(b"data: ") == 3
    assert b'data: {"error":{' in got
    assert b"data: [DONE]" in got
    await peer.close()


# -- stalls


async def test_a_stall_before_the_head_ends_in_time(served: Served) -> None:
    await served.add({"action": {"kind": "stall", "seconds": 0.2}})
    peer = await Peer.open(served.port, post(CHAT))
    begun = time.monotonic()
    assert await peer.read(15) == b"HTTP/1.1 200 OK"
    assert 0.19 < time.monotonic() - begun < 2
    await peer.close()
    assert (await served.last()).outcome == "done"


async def test_a_stall_before_the_first_body_byte_lets_the_head_through(served: Served) -> None:
    await served.add({"action": {"kind": "stall", "unit": "body"}})
    peer = await Peer.open(served.port, post(STREAM))
    await peer.until(b"\r\n\r\n")
    assert await peer.silent()
    await peer.close()


@pytest.mark.parametrize("body", [CHAT, STREAM])
async def test_a_stall_inside_the_body_lasts_until_the_client_leaves(served: Served, body: dict[str, Any]) -> None:
    await served.add({"action": {"kind": "stall", "unit": "body", "after": 30}})
    peer = await Peer.open(served.port, post(body))
    await peer.until(b"\r\n\r\n")
    await peer.until(b'"id":"chatcmpl-')
    assert await peer.silent(0.15) is False  # the bytes up to 30
    while not await peer.silent(0.05):
        pass
    left = time.monotonic()
    await peer.close()
    for _ in range(100):
        record = await served.last()
        if record.aborted_at is not None:
            break
        await asyncio.sleep(0.01)
    assert record.outcome == "aborted"
    assert record.aborted_at is not None
    assert 0 <= record.aborted_at - left < 0.5


async def test_a_stall_inside_a_stream_goes_on(served: Served) -> None:
    await served.add({"action": {"kind": "stall", "unit": "event", "after": 2, "seconds": 0.1}})
    peer = await Peer.open(served.port, post(STREAM))
    got = await peer.until(b"\r\n0\r\n\r\n")
    assert got.count(b"data: ") == 6
    await peer.close()


async def test_delay_comes_before_any_action(served: Served) -> None:
    begun = time.monotonic()
    got, _ = await exchange(served, {"kind": "close", "delay": 0.15}, CHAT)
    assert got == b""
    assert time.monotonic() - begun > 0.14


# -- other answers


async def test_raw_bytes(served: Served) -> None:
    assert await exchange(served, {"kind": "raw", "text": "SSH-2.0-x\r\n"}, CHAT) == (b"SSH-2.0-x\r\n", False)
    assert await exchange(served, {"kind": "raw", "base64": "/wA=", "then": "reset"}, CHAT) == (b"\xff\x00", True)


async def test_raw_bytes_on_a_connection_that_stays(served: Served) -> None:
    await served.add({"action": {"kind": "raw", "text": "HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK", "then": "keep"}})
    peer = await Peer.open(served.port, post(CHAT))
    assert await peer.read(34) == b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK"
    assert await peer.silent(0.05)
    peer.writer.write(post(CHAT))
    assert await peer.read(15) == b"HTTP/1.1 200 OK"
    await peer.close()


async def test_informational_answers_before_the_answer(served: Served) -> None:
    early = "HTTP/1.1 103 Early Hints\r\n\r\n"
    await served.add({"action": {"kind": "raw", "text": early * 3, "then": "answer"}})
    peer = await Peer.open(served.port, post(CHAT))
    got = await peer.until(b"HTTP/1.1 200 OK\r\n")
    assert got.count(b"HTTP/1.1 103 ") == 3
    await peer.close()


@pytest.mark.parametrize(
    ("path", "body", "last"),
    [
        ("/v1/messages", {**STREAM}, b'event: error\ndata: {"type":"error",'),
        ("/v1/responses", {"input": "x", "stream": True}, b"event: response.created\n"),
    ],
)
async def test_failing_engines_in_other_forms(served: Served, path: str, body: dict[str, Any], last: bytes) -> None:
    await served.add({"action": {"kind": "stream_error", "unit": "event", "after": 1}})
    peer = await Peer.open(served.port, post(body, path))
    got = await peer.until(b"\r\n0\r\n\r\n")
    assert last in got
    assert b"[DONE]" not in got
    await peer.close()


async def test_a_status_with_headers_and_body(served: Served) -> None:
    action = {"kind": "status", "status": 429, "headers": {"Retry-After": "7"}, "body": {"error": "slow down"}}
    await served.add({"action": action})
    peer = await Peer.open(served.port, post(STREAM))
    head = await peer.until(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 429 ")
    assert b"\r\nRetry-After: 7\r\n" in head
    assert json.loads(await peer.read(21)) == {"error": "slow down"}
    await peer.close()


async def test_a_huge_health_answer(served: Served) -> None:
    await served.add({"path": "/health", "action": {"kind": "status", "status": 200, "body_bytes": 300_000}})
    peer = await Peer.open(served.port, b"GET /health HTTP/1.1\r\nHost: w\r\nConnection: close\r\n\r\n")
    got, _ = await peer.rest()
    assert len(got) > 300_000
