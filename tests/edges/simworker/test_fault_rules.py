"""Which requests and connections scripted faults hit."""

from __future__ import annotations

import asyncio

import pytest

from loadtest.simworker import Action, Rule, SimConfig, SimWorker
from tests.edges.simworker.faults_rig import CHAT, CONFIG, Peer, Served, post


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
