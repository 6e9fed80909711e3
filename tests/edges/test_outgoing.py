"""Writes of one turn of the loop leave together, in order, and never later than the next turn."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from router.dataplane.outgoing import Outgoing
from router.dataplane.upstream import UpstreamLimits
from router.dataplane.upstream_connection import JOIN_BYTES, UpstreamConnection
from tests.edges.server.rig import HOST, Rig, error_of, post, serving
from tests.edges.upstream.test_upstream_sink import NoSocket, Owner

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Way:
    """A transport that notes each write."""

    def __init__(self, log: list[tuple[Way, bytes]]) -> None:
        self.log = log
        self.closing = False

    def write(self, data: bytes) -> None:
        assert not self.closing
        self.log.append((self, data))

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"|".join(pieces))

    def is_closing(self) -> bool:
        return self.closing


class Made:
    def __init__(self) -> None:
        self.outgoing = Outgoing()
        self.log: list[tuple[Way, bytes]] = []
        self.ways = [Way(self.log) for _ in range(3)]

    @property
    def written(self) -> list[tuple[int, bytes]]:
        return [(self.ways.index(way), data) for way, data in self.log]


@pytest.fixture
def made() -> Made:
    return Made()


async def test_who_is_alone_writes_at_once(made: Made) -> None:
    made.outgoing.expect()
    made.outgoing.arrived()
    made.outgoing.send(made.ways[0], b"a")
    made.outgoing.send(made.ways[1], b"head", b"body")
    assert made.written == [(0, b"a"), (1, b"head|body")]


async def test_all_leave_with_the_last_of_a_turn_and_in_order(made: Made) -> None:
    for _ in range(3):
        made.outgoing.expect()
    for number, body in enumerate((b"", b"body", b"")):
        made.outgoing.arrived()
        made.outgoing.send(made.ways[number], b"%d" % number, body)
        assert len(made.log) == (3 if number == 2 else 0)
    assert made.written == [(0, b"0"), (1, b"1|body"), (2, b"2")]
    await asyncio.sleep(0)
    assert len(made.log) == 3


async def test_who_was_expected_and_sends_nothing_holds_nobody_up(made: Made) -> None:
    made.outgoing.expect()
    made.outgoing.expect()
    made.outgoing.arrived()
    made.outgoing.send(made.ways[0], b"a")
    made.outgoing.send(made.ways[1], b"b")
    assert not made.log
    assert made.outgoing.holds(made.ways[1])
    await asyncio.sleep(0)
    assert made.written == [(0, b"a"), (1, b"b")]
    assert not made.outgoing.holds(made.ways[1])
    # A count that was wrong is not wrong for ever.
    made.outgoing.send(made.ways[2], b"c")
    assert made.written[-1] == (2, b"c")


async def test_a_turn_that_has_left_does_not_forget_who_is_expected_in_the_next_one(made: Made) -> None:
    for _ in range(2):
        made.outgoing.expect()
    for way in made.ways[:2]:
        made.outgoing.arrived()
        made.outgoing.send(way, b"a")
    for _ in range(2):
        made.outgoing.expect()
    await asyncio.sleep(0)
    made.outgoing.arrived()
    made.outgoing.send(made.ways[0], b"b")
    assert len(made.log) == 2
    made.outgoing.arrived()
    made.outgoing.send(made.ways[1], b"b")
    assert len(made.log) == 4


async def test_what_must_go_now_goes_behind_what_waits_for_the_same_transport(made: Made) -> None:
    made.outgoing.expect()
    for way in made.ways:
        made.outgoing.send(way, b"a")
    made.outgoing.send(made.ways[1], b"b")
    made.outgoing.now(made.ways[1], b"c")
    assert made.written == [(1, b"abc")]
    made.outgoing.now(made.ways[1], b"d")
    made.outgoing.now(made.ways[2])
    assert made.written == [(1, b"abc"), (1, b"d"), (2, b"a")]
    await asyncio.sleep(0)
    assert made.written[3:] == [(0, b"a")]


async def test_a_transport_that_was_closed_meanwhile_is_passed_over(made: Made) -> None:
    made.outgoing.expect()
    for way in made.ways:
        made.outgoing.send(way, b"a")
    made.ways[1].closing = True
    await asyncio.sleep(0)
    assert made.written == [(0, b"a"), (2, b"a")]


async def test_a_transport_that_fails_costs_the_others_nothing(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Way):
        def write(self, data: bytes) -> None:
            raise RuntimeError("the handler is closed")

    made.outgoing.expect()
    for way in (made.ways[0], Broken(made.log), made.ways[1]):
        made.outgoing.send(way, b"a")
    await asyncio.sleep(0)
    assert made.written == [(0, b"a"), (1, b"a")]
    assert "the handler is closed" in caplog.text


# -- both sides of the router, while others are always expected ------------------------------------------------------


class Crowd(Outgoing):
    """Every write finds that somebody else is expected, who never comes."""

    def send(self, way: Any, data: bytes, body: bytes = b"") -> None:
        self.expect()
        super().send(way, data, body)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with serving() as made:
        made.gate.outgoing = Crowd()
        yield made


@pytest.mark.interpreted
async def test_answers_on_one_connection_keep_their_order(rig: Rig) -> None:
    asks = b"POST /v1/x HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\n"
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/x", b"0") + post(b"/v1/slow", b"1") + post(b"/v1/x", b"2"))
        assert [await raw.answer() for _ in range(3)] == [(200, b"%d" % number) for number in range(3)]
        await raw.send(post(b"/v1/x", b"3") + asks)
        assert await raw.answer() == (200, b"3")
        assert await raw.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await raw.send(b"4")
        assert await raw.answer() == (200, b"4")
        await raw.send(b"no request\r\n\r\n")
        assert error_of(await raw.rest())[0] == 400


@pytest.mark.interpreted
async def test_the_last_answer_of_a_connection_is_whole(rig: Rig) -> None:
    answer = await rig.exchange(post(b"/v1/x", b"x" * 1_000, b"Connection: close\r\n"))
    assert answer.endswith(b"\r\n\r\n" + b"x" * 1_000)


@pytest.mark.parametrize("size", [10, JOIN_BYTES + 1])
async def test_an_answer_before_its_request_has_left_ends_the_connection(size: int) -> None:
    """The request would be written nevertheless, and its answer be taken for that of the next one."""
    outgoing, owner = Outgoing(), Owner()
    connection = UpstreamConnection(asyncio.get_running_loop(), owner, UpstreamLimits(), outgoing)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        transport: Any = Late(ours)
        connection.connection_made(transport)
        outgoing.expect()
        response = connection.start(b"head", b"x" * size, bodyless=False)
        connection.data_received(ANSWER)
        assert response.error is None
        assert not owner.given_back
        assert connection.closed
        await asyncio.sleep(0)
        assert transport.written == b""


class Late(NoSocket):
    """Closed once it is aborted."""

    written = b""
    aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, pieces: list[bytes]) -> None:
        self.written += b"".join(pieces)

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True
