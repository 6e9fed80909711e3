"""An answer from a worker's socket to a client's: held up by a client that does not read, ended when it leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from router.dataplane.client import Client
from router.dataplane.gate import Bounds
from router.dataplane.passage import Passage
from router.dataplane.upstream import UpstreamPool
from router.errors import RouterError
from tests.edges.server.rig import EchoGate, Rig, post, serving
from tests.edges.upstream.rig import CHUNKED, LAST_CHUNK, OK, WorkerSide, ask, chunk, eventually, pool_for, worker

# A stand-in for the relay.
pytestmark = pytest.mark.interpreted

PATIENT = Bounds(body_bytes=200_000)
EVENT = b"data: " + b"x" * 4000 + b"\n\n"


class PassingGate(EchoGate):
    """Answers with what a worker says, and stands in for the relay that hears how each answer went."""

    pool: UpstreamPool
    ends: list[str]

    async def _answer(self, client: Client, body: bytes) -> None:
        response = await ask(self.pool)
        job: Any = SimpleNamespace(client=client)
        placement: Any = SimpleNamespace(worker=SimpleNamespace(last_served=0.0))
        relay: Any = self
        passage = Passage(relay, job, placement, response, time.monotonic)
        client.stage = "stream"
        try:
            passage.begin()
            await passage.wait()
        finally:
            client.upstream = None
            response.close()

    def tap(self, job: Any, response: Any) -> None:
        return None

    def reader(self, job: Any, response: Any) -> Client:
        client: Client = job.client
        return client

    def start(self, passage: Passage) -> None:
        response = passage.response
        passage.job.client.start(response.status, [], response.content_length)

    def answered(self, passage: Passage) -> None:
        self.ends.append("begun")

    def complete(self, passage: Passage) -> None:
        self.ends.append("complete")

    def broken(self, passage: Passage, error: RouterError) -> None:
        self.ends.append("broken")
        passage.job.client.break_off()


@asynccontextmanager
async def passing(pool: UpstreamPool) -> AsyncIterator[Rig]:
    async with serving(PATIENT) as rig:
        gate = PassingGate(budget=rig.gate.budget)
        gate.pool, gate.ends = pool, []
        rig.connections.gate = rig.gate = gate
        yield rig
        await eventually(lambda: not rig.connections.open)


def ends_of(rig: Rig) -> list[str]:
    assert isinstance(rig.gate, PassingGate)
    return rig.gate.ends


def unchunked(data: bytes) -> bytes:
    """The body of a chunked answer, which must be whole."""
    head, _, rest = data.partition(b"\r\n\r\n")
    assert b"chunked" in head
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if size == b"0":
            assert rest == b"\r\n"
            return body
        assert rest[int(size, 16) :][:2] == b"\r\n"
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]


@pytest.mark.parametrize("framed", [True, False])
async def test_a_client_that_does_not_read_holds_the_worker_up(framed: bool) -> None:
    total = 16 << 20
    sent = 0

    async def script(side: WorkerSide) -> None:
        nonlocal sent
        await side.request()
        side.writer.write(
            CHUNKED if framed else OK + b"Content-Length: %d\r\n\r\n" % (total // len(EVENT) * len(EVENT))
        )
        for _ in range(total // len(EVENT)):
            side.writer.write(chunk(EVENT) if framed else EVENT)
            sent += len(EVENT)
            await side.writer.drain()
        if framed:
            side.writer.write(LAST_CHUNK)
        await side.gone()

    async with worker(script) as it, pool_for(it.origin) as pool, passing(pool) as rig, rig.connected() as raw:
        await raw.send(post(headers=b"Connection: close\r\n"))
        held_up_at = -1
        while held_up_at != sent or not sent:  # until the worker stands still
            held_up_at = sent
            await asyncio.sleep(0.1)
        assert held_up_at < total
        (served,) = rig.connections.open
        assert served.transport.get_write_buffer_size() < 1 << 20
        answer = await raw.rest()
        body = unchunked(answer) if framed else answer.partition(b"\r\n\r\n")[2]
        assert body == EVENT * (total // len(EVENT))
        assert ends_of(rig) == ["begun", "complete"]


async def test_a_client_that_leaves_ends_the_worker_s_connection_at_once() -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(CHUNKED + chunk(EVENT), chunk(EVENT))
        await side.gone()

    async with worker(script) as it, pool_for(it.origin) as pool, passing(pool) as rig:
        async with rig.connected() as raw:
            await raw.send(post())
            await raw.until(b"\n\n")
            await raw.until(b"\n\n")
        await eventually(lambda: pool.statistics().open == 0)
        await eventually(lambda: it.connections[0].reader.at_eof())
        await eventually(lambda: rig.gate.cancelled == 1)
        assert ends_of(rig) == ["begun"]


async def test_a_client_that_leaves_while_it_holds_the_worker_up() -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        side.writer.write(CHUNKED)
        while True:
            side.writer.write(chunk(EVENT))
            await side.writer.drain()

    async with worker(script) as it, pool_for(it.origin) as pool, passing(pool) as rig:
        async with rig.connected() as raw:
            await raw.send(post())
            await eventually(lambda: any(one.flow.write_paused for one in rig.connections.open))
        await eventually(lambda: pool.statistics().open == 0)
        await eventually(lambda: rig.gate.cancelled == 1)


async def test_an_answer_that_breaks_has_no_last_chunk() -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(CHUNKED + chunk(EVENT), chunk(EVENT), b"5\r\nhel")
        side.reset()

    async with worker(script) as it, pool_for(it.origin) as pool, passing(pool) as rig, rig.connected() as raw:
        await raw.send(post())
        answer = await raw.rest()
        assert answer.count(EVENT) >= 1
        assert not answer.endswith(b"0\r\n\r\n")
        assert ends_of(rig) == ["begun", "broken"]


async def test_answers_follow_each_other_on_one_connection_each_way() -> None:
    async def script(side: WorkerSide) -> None:
        while True:
            await side.request()
            await side.send(CHUNKED + chunk(b"one"), chunk(b"two"), chunk(b"three") + LAST_CHUNK)

    async with worker(script) as it, pool_for(it.origin) as pool, passing(pool) as rig, rig.connected() as raw:
        for _ in range(5):
            await raw.send(post())
            assert unchunked(await raw.until(LAST_CHUNK)) == b"onetwothree"
        assert len(it.connections) == 1
        assert ends_of(rig) == ["begun", "complete"] * 5
