"""Scripted faults, seen by a raw socket: in one process on asyncio, and in a worker process on uvloop."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from loadtest.simworker import Action, Record, Rule, SimConfig, SimProcess, SimWorker

CONFIG = SimConfig(time_scale=0.0, allow_fault_headers=True)
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
STREAM = {**CHAT, "stream": True}


class Served:
    """A worker in this process or another, behind one face."""

    def __init__(self, worker: SimWorker | SimProcess) -> None:
        self.worker = worker
        self.port = worker.port

    async def add(self, *rules: dict[str, Any]) -> None:
        if isinstance(self.worker, SimWorker):
            self.worker.faults.add(*rules)
        else:
            await asyncio.to_thread(self.worker.add_faults, *rules)

    async def records(self) -> list[Record]:
        if isinstance(self.worker, SimWorker):
            return list(self.worker.requests)
        return await asyncio.to_thread(self.worker.requests)

    async def last(self) -> Record:
        return (await self.records())[-1]


@pytest.fixture(scope="module")
def process() -> Iterator[SimProcess]:
    with SimProcess(CONFIG) as made:
        yield made


@pytest.fixture(params=["asyncio", "uvloop"])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    if request.param == "asyncio":
        async with SimWorker(CONFIG) as worker:
            yield Served(worker)
    else:
        running: SimProcess = request.getfixturevalue("process")
        await asyncio.to_thread(running.reset)
        yield Served(running)


def post(body: object, path: str = "/v1/chat/completions", headers: str = "") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    return (head + headers + "\r\n").encode() + data


class Peer:
    """A raw client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, data: bytes = b"") -> Peer:
        peer = cls(*await asyncio.open_connection("127.0.0.1", port))
        peer.writer.write(data)
        return peer

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)

    async def rest(self) -> tuple[bytes, bool]:
        """All that comes until the connection ends, and whether it ended by reset."""
        got = b""
        try:
            async with asyncio.timeout(10):
                while data := await self.reader.read(65536):
                    got += data
        except ConnectionResetError:
            return got, True
        finally:
            await self.close()
        return got, False

    async def read(self, count: int) -> bytes:
        async with asyncio.timeout(10):
            return await self.reader.readexactly(count)

    async def until(self, mark: bytes) -> bytes:
        async with asyncio.timeout(10):
            return await self.reader.readuntil(mark)

    async def silent(self, seconds: float = 0.1) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self.reader.read(1)
        except TimeoutError:
            return True
        return False


async def exchange(served: Served, action: dict[str, Any], body: dict[str, Any]) -> tuple[bytes, bool]:
    await served.add({"action": action})
    return await (await Peer.open(served.port, post(body))).rest()


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


# -- which request is hit


async def test_rules_leave_probes_alone_unless_they_name_them(served: Served) -> None:
    await served.add({"action": {"kind": "status", "status": 500}})
    health = b"GET /health HTTP/1.1\r\nHost: w\r\n\r\n"
    peer = await Peer.open(served.port, health)
    assert (await peer.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    await served.add({"path": "/health", "action": {"kind": "status", "status": 503}})
    peer.writer.write(health + post(CHAT))
    assert (await peer.until(b"\r\n")).startswith(b"HTTP/1.1 503 ")
    got = await peer.until(b"HTTP/1.1 500 ")
    assert got
    await peer.close()


async def statuses(served: Served, *requests: bytes) -> list[int]:
    found = []
    for request in requests:
        peer = await Peer.open(served.port, request)
        found.append(int((await peer.until(b"\r\n")).split()[1]))
        await peer.close()
    return found


async def test_the_nth_request_and_how_often(served: Served) -> None:
    await served.add({"nth": 2, "times": 2, "action": {"kind": "status", "status": 503}})
    assert await statuses(served, *[post(CHAT)] * 5) == [200, 503, 503, 200, 200]


async def test_matching_by_body_header_and_path(served: Served) -> None:
    teapot = {"kind": "status", "status": 418}
    await served.add(
        {"body": "needle", "action": teapot},
        {"header": "die", "action": teapot},
        {"path": "/v1/com*", "times": None, "action": teapot},
    )
    requests = [
        post(CHAT),
        post({**CHAT, "x": "a needle"}),
        post({**CHAT, "x": "a needle"}),
        post(CHAT, headers="X-Sim-Fault: other\r\n"),
        post(CHAT, headers="X-Sim-Fault: die\r\n"),
        *[post({"prompt": "x"}, "/v1/completions")] * 2,
    ]
    assert await statuses(served, *requests) == [200, 418, 200, 200, 418, 418, 418]


async def test_the_second_request_of_a_connection(served: Served) -> None:
    await served.add({"ordinal": 2, "action": {"kind": "close"}})
    assert await statuses(served, post(CHAT), post(CHAT)) == [200, 200]
    peer = await Peer.open(served.port, post(CHAT) + post(CHAT))
    got, _ = await peer.rest()
    assert got.count(b"HTTP/1.1 200 OK") == 1


async def test_a_request_may_carry_its_own_fault(served: Served) -> None:
    own = 'x-sim-fault: {"kind":"status","status":507}\r\n'
    bad = 'x-sim-fault: {"kind":"nonsense"}\r\n'
    assert await statuses(served, post(CHAT, headers=own), post(CHAT), post(CHAT, headers=bad)) == [507, 200, 400]


async def test_own_faults_need_the_switch() -> None:
    async with SimWorker(SimConfig(time_scale=0.0)) as worker:
        own = 'x-sim-fault: {"kind":"status","status":507}\r\n'
        assert await statuses(Served(worker), post(CHAT, headers=own)) == [200]


async def test_an_answer_before_the_body(served: Served) -> None:
    await served.add({"at": "head", "action": {"kind": "status", "status": 413}})
    peer = await Peer.open(served.port, b"POST /v1/completions HTTP/1.1\r\nHost: w\r\nContent-Length: 1000\r\n\r\nx")
    got, _ = await peer.rest()
    assert got.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in got


async def test_faults_as_the_connection_opens(served: Served) -> None:
    await served.add(
        {"at": "connect", "action": {"kind": "raw", "text": "220 mail\r\n"}},
        {"at": "connect", "action": {"kind": "reset"}},
    )
    assert await (await Peer.open(served.port)).rest() == (b"220 mail\r\n", False)
    try:
        ended = await (await Peer.open(served.port)).rest()
    except ConnectionResetError:  # so soon that connecting itself fails
        ended = (b"", True)
    assert ended == (b"", True)
    assert await statuses(served, post(CHAT)) == [200]


async def test_refusing_connections(served: Served) -> None:
    open_before = await Peer.open(served.port, post(CHAT))
    await open_before.until(b"\r\n\r\n")
    await served.add({"action": {"kind": "refuse", "seconds": 0.3}})
    got, reset = await (await Peer.open(served.port, post(CHAT))).rest()
    assert (got, reset) == (b"", True)
    with pytest.raises(ConnectionRefusedError):
        await Peer.open(served.port)
    assert not await open_before.silent(0.05)  # the body of its answer
    async with asyncio.timeout(5):
        while True:
            try:
                found = await statuses(served, post(CHAT))
            except ConnectionRefusedError:
                await asyncio.sleep(0.02)
            else:
                break
    assert found == [200]
    await open_before.close()


async def test_refusing_from_outside() -> None:
    async with SimWorker(CONFIG) as worker:
        port = worker.port
        worker.refuse()
        with pytest.raises(ConnectionRefusedError):
            await Peer.open(port)
        await worker.accept()
        assert worker.port == port
        assert await statuses(Served(worker), post(CHAT)) == [200]


async def test_rules_are_checked(served: Served) -> None:
    rules: list[object] = [
        {"kind": "x"},
        {"action": {"kind": "stall", "seconds": -1}},
        {"action": {"kind": "status", "status": 100}},
        {"action": {"kind": "stall"}, "pth": 1},
        {"action": {"kind": "status"}, "at": "connect"},
    ]
    for rule in rules:
        assert await statuses(served, post([rule], "/sim/faults")) == [400]
    with pytest.raises(ValueError, match="more than"):
        SimWorker().faults.add(*[Rule(action=Action(kind="reset"))] * 1001)
