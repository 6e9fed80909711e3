"""Connections of workers that go and come back under the same name: each has its own, and ends nobody else's."""

from __future__ import annotations

import asyncio

import pytest

from router.dataplane.pools import Pools
from router.dataplane.upstream_types import UpstreamLimits
from router.workers.registry import Lease, Registry, Worker
from tests.edges.upstream.rig import CHUNKED, LAST_CHUNK, ScriptedWorker, WorkerSide, chunk, head, read_all, worker


class Streams:
    """A worker whose answers end when the test says so."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def script(self, side: WorkerSide) -> None:
        await side.request()
        await side.send(CHUNKED + chunk(b"begin "))
        await self.go_on.wait()
        await side.send(chunk(b"end") + LAST_CHUNK)


def made(registry: Registry, it: ScriptedWorker) -> Worker:
    return registry.add(f"http://127.0.0.1:{it.origin.port}", slots=4)


@pytest.mark.parametrize("ends_first", ["the one before", "its successor"])
async def test_a_worker_that_comes_back_while_it_answers_shares_no_connections_with_the_one_before(
    ends_first: str,
) -> None:
    registry, streams = Registry(), Streams()
    pools = Pools(registry, UpstreamLimits(), None)
    async with worker(streams.script) as it:
        before = made(registry, it)
        lease = Lease(registry, before)
        first = await pools.of(before).pool.request(head(b""), b"")
        registry.remove(before)
        after = made(registry, it)
        assert after is not before
        other_lease = Lease(registry, after)
        second = await pools.of(after).pool.request(head(b""), b"")
        assert pools.connections() == {before.id: 2}
        if ends_first == "the one before":
            ended, lease_of_it, running = first, lease, second
        else:
            ended, lease_of_it, running = second, other_lease, first
            registry.remove(after)
        ended.close()
        lease_of_it.end()
        assert pools.connections() == {before.id: 1}
        streams.go_on.set()
        assert await read_all(running) == b"begin end"
    pools.close()


async def test_nothing_is_kept_for_a_worker_that_has_gone() -> None:
    registry = Registry()
    pools = Pools(registry, UpstreamLimits(), None)
    gone = registry.add("http://127.0.0.1:9", slots=1)
    lease = Lease(registry, gone)
    assert pools.of(gone) is pools.of(gone)
    registry.remove(gone)
    assert pools.connections() == {gone.id: 0}
    lease.end()
    assert pools.connections() == {}
    assert pools.of(gone).authority == b"127.0.0.1:9"
    assert pools.connections() == {}
