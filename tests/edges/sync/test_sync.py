"""Replicas share what they know over a channel, and get over everything that can happen to it.

What concerns the protocol runs over a local bus and over a real Redis; faults of Redis run over a Redis of their own.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest
import redis.asyncio
from redis.asyncio.retry import Retry

from router import sync, sync_redis
from router.affinity import AffinityMap, Delta
from router.errors import SettingsError
from router.settings import SyncSettings
from router.sync import DROP_CAUSES, NoSync, Sync
from router.sync_codec import VERSION, News, Row, encode
from router.workers.registry import Lease, Registry, Worker
from tests.local_bus import LocalBus
from tests.redis_server import RedisServer

PRINT = "00112233445566aa"
EPOCH = 1_700_000_000.0
URLS = ("http://10.0.0.1:8000", "http://10.0.0.2:8000")
HASHES = list(range(100, 120))
_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits of a real outage, a fifth as long."""
    monkeypatch.setattr(sync_redis, "IO_SECONDS", 0.2)
    monkeypatch.setattr(sync_redis, "ATTEMPT_SECONDS", 0.2)
    monkeypatch.setattr(sync, "ATTEMPT_SECONDS", 0.2)


@pytest.fixture(scope="module")
def shared_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


# -- a replica without the rest of the router ----------------------------------------------------------------


@dataclass
class Replica:
    sync: Sync
    index: AffinityMap
    registry: Registry

    @property
    def workers(self) -> list[Worker]:
        return list(self.registry)

    def serve(self, hashes: list[int], worker: int = 0) -> None:
        """A request was served: own its blocks and tell the others."""
        chosen = self.workers[worker]
        delta = self.index.record(chosen.id, chosen.epoch, hashes, time.monotonic())
        assert delta is not None
        self.sync.owned(delta)

    def depth(self, hashes: list[int], worker: int = 0) -> int:
        return self.index.match(hashes, time.monotonic()).get(self.workers[worker].id, 0)

    def lease(self, worker: int = 0) -> Lease:
        return Lease(self.registry, self.workers[worker])

    def load(self, worker: int = 0) -> int:
        return self.workers[worker].load


class Channel(Protocol):
    async def replica(self, *, fingerprint: str = PRINT, **settings: Any) -> Replica: ...

    async def inject(self, message: Any) -> None: ...


def settings_for(url: str | None, **changed: Any) -> SyncSettings:
    defaults = {"redis_url": url, "flush_seconds": 0.002, "heartbeat_seconds": 0.05, "expire_seconds": 0.4}
    return SyncSettings(**(defaults | changed))


def make(settings: SyncSettings, fingerprint: str = PRINT, link: sync_redis.Link | None = None) -> Replica:
    index = AffinityMap(10_000, 600.0, 5.0)
    registry = Registry()
    sender = f"{next(_numbers):016x}"
    replica = Replica(Sync(settings, fingerprint, index, registry, time.monotonic, sender, link), index, registry)
    registry.hooks.load.append(replica.sync.load)
    registry.hooks.epoch.append(lambda worker: put_epoch(index, worker))
    registry.hooks.epoch.append(replica.sync.epoch)
    for url in URLS:
        registry.set_epoch(registry.add(url, slots=16), EPOCH)
    return replica


def put_epoch(index: AffinityMap, worker: Worker) -> None:
    index.set_epoch(worker.id, worker.epoch)


def sync_tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("sync-")}


async def wait(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.002)


async def wait_for_match(replica: Replica) -> None:
    await wait(lambda: replica.depth(HASHES) == len(HASHES))


async def started(replica: Replica, stack: AsyncExitStack) -> Replica:
    replica.sync.start()
    stack.push_async_callback(replica.sync.aclose)
    await wait(lambda: replica.sync.up)
    return replica


class LocalChannel:
    def __init__(self, stack: AsyncExitStack) -> None:
        self.bus = LocalBus()
        self.stack = stack

    async def replica(self, *, fingerprint: str = PRINT, **settings: Any) -> Replica:
        return await started(make(settings_for(None, **settings), fingerprint, self.bus.link()), self.stack)

    async def inject(self, message: Any) -> None:
        self.bus.put(message)


class RedisChannel:
    def __init__(self, server: RedisServer, stack: AsyncExitStack) -> None:
        self.server = server
        self.stack = stack
        self.name = f"channel-{next(_numbers)}"
        self.client = redis.asyncio.Redis(unix_socket_path=str(server.socket))
        stack.push_async_callback(self.client.aclose)

    async def replica(self, *, fingerprint: str = PRINT, **settings: Any) -> Replica:
        chosen = settings_for(self.server.url, channel=self.name, **settings)
        return await started(make(chosen, fingerprint), self.stack)

    async def inject(self, message: Any) -> None:
        await self.client.publish(self.name, message)


async def vanish(replica: Replica) -> None:
    """End a replica without a goodbye, as a crash does."""
    replica.sync.lost()
    await replica.sync.aclose()


@pytest.fixture(params=["local", pytest.param("redis", marks=pytest.mark.redis)])
async def channel(request: pytest.FixtureRequest) -> AsyncIterator[Channel]:
    async with AsyncExitStack() as stack:
        if request.param == "local":
            yield LocalChannel(stack)
        else:
            yield RedisChannel(request.getfixturevalue("shared_redis"), stack)
    assert not sync_tasks()


def message(sender: str = "stranger", sequence: int = 1, fingerprint: str = PRINT, **content: Any) -> bytes:
    return encode(fingerprint, sender, sequence, News(**({"kind": "news"} | content)))


# -- ownership -----------------------------------------------------------------------------------------------


async def test_what_one_replica_saw_the_other_matches(channel: Channel) -> None:
    one, two = await channel.replica(), await channel.replica()
    one.serve(HASHES[:10])
    await wait(lambda: two.depth(HASHES) == 10)
    two.serve(HASHES)
    await wait(lambda: one.depth(HASHES) == 20)
    assert one.depth(HASHES, worker=1) == 0


async def test_news_reaches_every_replica(channel: Channel) -> None:
    replicas = [await channel.replica() for _ in range(4)]
    for number, replica in enumerate(replicas):
        replica.serve([number * 1000 + block for block in range(10)])
    await wait(lambda: all(len(replica.index) == 40 for replica in replicas))
    assert [replica.sync.peers for replica in replicas] == [3, 3, 3, 3]


async def test_a_large_backlog_goes_out_in_several_messages(channel: Channel) -> None:
    one, two = await channel.replica(), await channel.replica()
    for number in range(1000):
        one.serve([number * 1000 + block for block in range(3)])
    assert one.sync.queued == 1000
    await wait(lambda: len(two.index) == 3000)
    assert one.sync.queued == 0
    assert two.sync.gaps == one.sync.gaps == 0


async def test_own_messages_teach_nothing(channel: Channel) -> None:
    one = await channel.replica()
    one.serve(HASHES)
    lease = one.lease()
    await wait(lambda: one.sync.messages.get(("out", "heartbeat"), 0) > 2)
    assert (one.load(), one.sync.peers) == (1, 0)
    assert not any(direction == "in" for direction, _ in one.sync.messages)
    lease.end()


# -- load ----------------------------------------------------------------------------------------------------


async def test_requests_in_flight_appear_and_vanish_elsewhere(channel: Channel) -> None:
    one, two = await channel.replica(), await channel.replica()
    leases = [one.lease(), one.lease(), one.lease(worker=1)]
    await wait(lambda: (two.load(0), two.load(1)) == (2, 1))
    own = two.lease()
    await wait(lambda: one.load() == 3)
    for lease in (*leases, own):
        lease.end()
    await wait(lambda: [r.load(w) for r in (one, two) for w in (0, 1)] == [0, 0, 0, 0])


async def test_a_goodbye_takes_the_load_away_at_once(channel: Channel) -> None:
    one, two = await channel.replica(expire_seconds=60.0), await channel.replica(expire_seconds=60.0)
    one.lease()
    await wait(lambda: two.load() == 1)
    await one.sync.aclose()
    await wait(lambda: two.load() == 0, seconds=2.0)
    assert two.sync.peers == 0


async def test_the_load_of_a_replica_that_died_expires(channel: Channel) -> None:
    one, two = await channel.replica(), await channel.replica()
    one.lease()
    await wait(lambda: two.load() == 1)
    await vanish(one)
    died = time.monotonic()
    await wait(lambda: two.load() == 0, seconds=2.0)
    assert time.monotonic() - died > 0.2
    assert two.sync.peers == 0


async def test_a_heartbeat_repairs_counts_that_were_lost(channel: Channel) -> None:
    two = await channel.replica(expire_seconds=60.0)
    name = two.workers[0].id
    await channel.inject(message(rows=[Row(name, EPOCH, 5)]))
    await wait(lambda: two.load() == 5)
    await channel.inject(message(sequence=3, kind="heartbeat", rows=[Row(two.workers[1].id, EPOCH, 2)]))
    await wait(lambda: (two.load(0), two.load(1)) == (0, 2))
    assert two.sync.gaps == 1


async def test_a_newcomer_learns_the_load_without_waiting_for_a_heartbeat(channel: Channel) -> None:
    one = await channel.replica(heartbeat_seconds=30.0, expire_seconds=60.0)
    one.lease()
    await wait(lambda: ("out", "news") in one.sync.messages)
    two = await channel.replica(heartbeat_seconds=30.0, expire_seconds=60.0)
    await wait(lambda: two.load() == 1, seconds=5.0)


# -- epochs --------------------------------------------------------------------------------------------------


async def test_a_restart_seen_by_one_replica_is_forgotten_by_all(channel: Channel) -> None:
    one, two = await channel.replica(), await channel.replica()
    one.serve(HASHES)
    await wait_for_match(two)
    one.registry.set_epoch(one.workers[0], EPOCH + 10)
    await wait(lambda: two.workers[0].epoch == EPOCH + 10)
    assert (one.depth(HASHES), two.depth(HASHES)) == (0, 0)


async def test_the_larger_epoch_wins_whoever_saw_it(channel: Channel) -> None:
    one, two = await channel.replica(), await channel.replica()
    one.registry.set_epoch(one.workers[0], EPOCH + 1)
    two.registry.set_epoch(two.workers[0], EPOCH + 2)
    await wait(lambda: one.workers[0].epoch == two.workers[0].epoch == EPOCH + 2)


async def test_news_of_an_earlier_epoch_is_ignored_and_of_a_later_one_taken(channel: Channel) -> None:
    one, two = await channel.replica(), await channel.replica()
    old = one.index.record(one.workers[0].id, EPOCH, HASHES, time.monotonic())
    assert old is not None
    two.registry.set_epoch(two.workers[0], EPOCH + 10)
    await wait(lambda: one.workers[0].epoch == EPOCH + 10)
    one.sync.owned(old)
    await wait(lambda: two.sync.dropped["old_epoch"] == 1)
    assert two.depth(HASHES) == 0
    one.sync.owned(Delta(old.worker, EPOCH + 20, None, old.new))
    await wait_for_match(two)
    assert two.workers[0].epoch == EPOCH + 20


async def test_an_epoch_from_the_far_future_is_not_believed(channel: Channel) -> None:
    two = await channel.replica()
    await channel.inject(message(rows=[Row(two.workers[0].id, time.time() + 30 * 86_400, 1)]))
    await wait(lambda: two.sync.dropped["absurd_epoch"] == 1)
    assert two.workers[0].epoch == EPOCH


# -- refusal -------------------------------------------------------------------------------------------------


async def test_unknown_workers_are_refused_and_counted(channel: Channel) -> None:
    two = await channel.replica()
    unknown = Registry().add("http://10.9.9.9:8000", slots=1)
    delta = AffinityMap(10, 1.0, 1.0)
    delta.set_epoch(unknown.id, 1.0)
    recorded = delta.record(unknown.id, 1.0, HASHES[:2], 0.0)
    assert recorded is not None
    known = Row(two.workers[1].id, EPOCH, 4)
    await channel.inject(message(deltas=[recorded], rows=[Row(unknown.id, 1.0, 3), known]))
    await wait(lambda: two.load(1) == 4)
    assert two.sync.dropped["unknown_worker"] == 2
    assert len(two.index) == 0


GARBAGE: dict[str, tuple[bytes | str, str]] = {
    "bytes": (b"\x00\xff garbage", "malformed"),
    "text": ("hello", "malformed"),
    "empty": (b"", "malformed"),
    "10 MB": (b"x" * 10_000_000, "oversized"),
    "depth 100,000": (b"\x91" * 100_000 + b"\xc0", "oversized"),
    "depth 60,000": (b"\x91" * 60_000 + b"\xc0", "malformed"),
    "deep payload": (
        msgspec.msgpack.encode([VERSION, PRINT, "x", 1, "news", msgspec.Raw(b"\x91" * 60_000 + b"\xc0")]),
        "malformed",
    ),
    "wrong types": (msgspec.msgpack.encode(["1", 2, 3, "4", 5, None]), "malformed"),
    "NaN": (msgspec.msgpack.encode([VERSION, PRINT, "x", 1, "news", [[], [["w", float("nan"), 1]]]]), "malformed"),
    "negative": (msgspec.msgpack.encode([VERSION, PRINT, "x", 1, "news", [[], [["w", 1.0, -5]]]]), "malformed"),
    "later version": (msgspec.msgpack.encode([VERSION + 1, "anything"]), "version"),
    "later kind": (msgspec.msgpack.encode([VERSION, PRINT, "x", 1, "digest", {}]), "kind"),
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_is_counted_and_harms_nothing(channel: Channel, name: str) -> None:
    data, cause = GARBAGE[name]
    one, two = await channel.replica(), await channel.replica()
    for _ in range(3):
        await channel.inject(data)
    await wait(lambda: two.sync.dropped[cause] == 3)
    assert sum(two.sync.dropped.values()) == 3
    one.serve(HASHES)
    await wait_for_match(two)
    assert two.sync.resubscribed == 0


async def test_another_fingerprint_shares_nothing_and_warns_once(
    channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "router.sync")
    one, other = await channel.replica(), await channel.replica(fingerprint="ffffffffffffffff")
    other.serve(HASHES)
    other.lease()
    await wait(lambda: one.sync.dropped["fingerprint"] > 3 and other.sync.dropped["fingerprint"] > 3)
    assert (one.depth(HASHES), one.load(), one.sync.peers) == (0, 0, 0)
    assert [record.getMessage().count("hash secret") for record in caplog.records] == [1, 1]


async def test_a_flood_of_senders_is_bounded(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "MAX_PEERS", 3)
    two = await channel.replica(expire_seconds=60.0)
    name = two.workers[0].id
    for number in range(10):
        await channel.inject(message(sender=f"s{number}", rows=[Row(name, EPOCH, 1)]))
    await wait(lambda: two.sync.dropped["peers"] == 7)
    assert (two.sync.peers, two.load()) == (3, 3)


# -- bookkeeping ---------------------------------------------------------------------------------------------


async def test_messages_lag_and_gaps_are_counted(channel: Channel) -> None:
    one, two = await channel.replica(), await channel.replica()
    await wait(lambda: two.sync.peers == 1)
    gaps: list[str | None] = []
    two.sync.on_gap = gaps.append
    one.serve(HASHES)
    await wait(lambda: two.sync.messages.get(("in", "news")) and two.sync.messages.get(("in", "heartbeat")))
    assert one.sync.messages["out", "hello"] == 1
    assert one.sync.lag_seconds is not None
    assert 0 <= one.sync.lag_seconds < 5
    for sequence in (1, 2, 6, 7):
        await channel.inject(message(sequence=sequence))
    await wait(lambda: gaps == ["stranger"])
    assert two.sync.gaps == 1
    assert set(two.sync.dropped) == set(DROP_CAUSES)
    assert not any(two.sync.dropped.values())


async def test_a_full_queue_drops_the_oldest_and_shows_a_hole(channel: Channel) -> None:
    one, two = await channel.replica(max_queue=10, flush_seconds=0.05), await channel.replica()
    await wait(lambda: two.sync.peers == 1)
    for number in range(30):
        one.serve([number])
    assert (one.sync.queued, one.sync.dropped["queue"]) == (10, 20)
    await wait(lambda: len(two.index) == 10)
    assert [number for number in range(30) if two.depth([number])] == list(range(20, 30))
    assert two.sync.gaps == 1


async def test_a_link_that_fails_keeps_the_news(caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncExitStack() as stack:
        channel = LocalChannel(stack)
        one, two = await channel.replica(), await channel.replica()
        channel.bus.up = False
        one.serve(HASHES)
        lease = one.lease()
        await wait(lambda: not one.sync.up)
        assert two.depth(HASHES) == 0
        channel.bus.up = True
        await wait(lambda: one.sync.up and two.depth(HASHES) == 20 and two.load() == 1)
        assert two.sync.gaps == 0
        lease.end()
    assert [record.getMessage() for record in caplog.records if "cannot be sent" in record.getMessage()]


async def test_without_redis_everything_is_quiet() -> None:
    nothing = NoSync()
    nothing.start()
    worker = Registry().add(URLS[0], slots=1)
    nothing.load(worker)
    nothing.epoch(worker)
    assert (nothing.up, nothing.lag_seconds, nothing.peers, nothing.queued) == (None, None, 0, 0)
    assert not any(nothing.dropped.values())
    await nothing.aclose()
    with pytest.raises(ValueError, match="NoSync"):
        make(settings_for(None))


async def test_leaving_news_costs_microseconds() -> None:
    replica = make(settings_for(None), link=LocalBus().link())
    worker = replica.workers[0]
    delta = replica.index.record(worker.id, EPOCH, HASHES, 0.0)
    assert delta is not None
    began = time.perf_counter()
    for _ in range(5000):
        replica.sync.owned(delta)
        replica.sync.load(worker)
    # Measured: 0.3 us; the bound leaves room for a busy machine.
    assert (time.perf_counter() - began) / 5000 < 20e-6


# -- faults of Redis -----------------------------------------------------------------------------------------


@asynccontextmanager
async def pair(url: str, **settings: Any) -> AsyncIterator[tuple[Replica, Replica]]:
    async with AsyncExitStack() as stack:
        one = await started(make(settings_for(url, **settings)), stack)
        two = await started(make(settings_for(url, **settings)), stack)
        yield one, two


class Stopwatch:
    """Measures the longest turn of the event loop while it runs."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.005)
            self.longest = max(self.longest, time.monotonic() - began - 0.005)


async def use(replica: Replica, seconds: float) -> None:
    """Traffic: requests begin, are remembered, and end."""
    end = time.monotonic() + seconds
    for number in itertools.count(10_000):
        if time.monotonic() > end:
            return
        lease = replica.lease()
        replica.serve([number])
        await asyncio.sleep(0.001)
        lease.end()


Fault = Callable[[RedisServer], Coroutine[Any, Any, None]]


async def crash(server: RedisServer) -> None:
    server.kill()
    await asyncio.sleep(0.6)
    await asyncio.to_thread(server.start)


async def freeze(server: RedisServer) -> None:
    server.pause()
    await asyncio.sleep(1.0)
    server.resume()


@pytest.mark.redis
@pytest.mark.parametrize("fault", [crash, freeze])
async def test_an_outage_touches_no_request_and_passes(own_redis: RedisServer, fault: Fault) -> None:
    async with pair(own_redis.url) as (one, two):
        watch = Stopwatch()
        watching = asyncio.create_task(watch.run())
        traffic = asyncio.create_task(use(one, 0.6))
        outage: asyncio.Task[None] = asyncio.create_task(fault(own_redis))
        await wait(lambda: not one.sync.up and not two.sync.up)
        await traffic
        await outage
        healed = time.monotonic()
        await wait(lambda: one.sync.up and two.sync.up)
        assert time.monotonic() - healed < 5.0
        one.serve(HASHES)
        await wait_for_match(two)
        assert watch.longest < 0.5
        lease = two.lease()
        await wait(lambda: one.load() == 1)
        lease.end()
        await wait(lambda: one.load() == 0)
        watching.cancel()


@pytest.mark.redis
@pytest.mark.parametrize("kind", ["pubsub", "normal"])
async def test_killed_connections_are_noticed_and_replaced(own_redis: RedisServer, kind: str) -> None:
    async with pair(own_redis.url) as (one, two):
        gaps: list[str | None] = []
        two.sync.on_gap = gaps.append
        await asyncio.to_thread(own_redis.call, "CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        if kind == "pubsub":
            await wait(lambda: one.sync.resubscribed == two.sync.resubscribed == 1)
            assert None in gaps
        one.serve(HASHES)
        lease = two.lease()
        await wait(lambda: two.depth(HASHES) == 20 and one.load() == 1)
        await wait(lambda: one.sync.up and two.sync.up)
        lease.end()


@pytest.mark.redis
async def test_a_client_library_that_reconnects_by_itself_hides_nothing(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_redis, "Retry", lambda pause, retries, supported_errors: Retry(pause, 5))
    async with pair(own_redis.url) as (one, two):
        await asyncio.to_thread(own_redis.call, "CLIENT", "KILL", "TYPE", "pubsub")
        await wait(lambda: one.sync.resubscribed == two.sync.resubscribed == 1)
        one.serve(HASHES)
        await wait_for_match(two)


class Witness:
    """Counts what a link reports."""

    def __init__(self) -> None:
        self.links = self.losses = self.messages = 0

    def linked(self) -> None:
        self.links += 1

    def lost(self) -> None:
        self.losses += 1

    def receive(self, data: object) -> None:
        self.messages += 1
        raise RuntimeError("a listener that is broken")


@pytest.mark.redis
async def test_a_subscription_that_has_fallen_silent_is_renewed(own_redis: RedisServer) -> None:
    link = sync_redis.RedisLink(own_redis.url, "quiet", silence_seconds=0.1)
    witness = Witness()
    link.start(witness)
    await wait(lambda: witness.links >= 2)
    assert witness.losses == witness.links - 1
    await link.aclose()


@pytest.mark.redis
async def test_a_broken_listener_does_not_end_the_link(own_redis: RedisServer) -> None:
    link = sync_redis.RedisLink(own_redis.url, "broken", silence_seconds=60.0)
    witness = Witness()
    link.start(witness)
    await wait(lambda: witness.links == 1)
    await link.publish(b"anything")
    await wait(lambda: witness.links == 2)
    await link.publish(b"anything")
    await wait(lambda: witness.messages == 2)
    await link.aclose()


@pytest.mark.redis
async def test_a_subscriber_that_was_too_slow_is_cut_off_and_comes_back() -> None:
    with RedisServer(("--client-output-buffer-limit", "pubsub", "1mb", "1mb", "1")) as server:
        async with pair(server.url, channel="busy") as (one, two):
            for _ in range(400):  # blocks the event loop, so that nobody reads
                server.call("PUBLISH", "busy", b"x" * 60_000)
            await wait(lambda: one.sync.resubscribed == two.sync.resubscribed == 1)
            one.serve(HASHES)
            await wait(lambda: two.depth(HASHES) == 20 and one.sync.up and two.sync.up)


@pytest.mark.redis
async def test_a_start_without_redis_is_degraded_and_gets_well(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "router.sync")
    own_redis.kill()
    url = own_redis.url.replace("redis://", "redis://user:hunter2@")
    replica = make(settings_for(url))
    began = time.monotonic()
    replica.sync.start()
    assert time.monotonic() - began < 0.5
    await wait(lambda: caplog.records)
    replica.serve(HASHES)
    assert replica.sync.up is False
    assert own_redis.url.removeprefix("redis://") in caplog.text
    assert "hunter2" not in caplog.text
    await replica.sync.aclose()


@pytest.mark.redis
async def test_an_unreachable_server_is_not_hammered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_redis, "BACKOFF_LAST", 0.001)
    attempts: list[float] = []

    async def slam(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attempts.append(time.monotonic())
        writer.close()

    server = await asyncio.start_server(slam, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    replica = make(settings_for(f"redis://127.0.0.1:{port}"))
    replica.sync.start()
    await wait(lambda: len(attempts) >= 4)
    await replica.sync.aclose()
    server.close()
    await server.wait_closed()
    assert attempts[3] - attempts[0] > 2 * sync_redis.ATTEMPT_SECONDS


@pytest.mark.redis
@pytest.mark.parametrize("state", ["running", "frozen", "dead"])
async def test_nothing_is_left_after_closing_whatever_redis_does(own_redis: RedisServer, state: str) -> None:
    replica = make(settings_for(own_redis.url))
    replica.sync.start()
    await wait(lambda: replica.sync.up)
    replica.serve(HASHES)
    if state == "frozen":
        own_redis.pause()
    elif state == "dead":
        own_redis.kill()
    began = time.monotonic()
    await replica.sync.aclose()
    assert time.monotonic() - began < 2.0
    assert not sync_tasks()


@pytest.mark.redis
async def test_closing_before_the_first_connection_leaves_nothing(own_redis: RedisServer) -> None:
    own_redis.pause()
    replica = make(settings_for(own_redis.url))
    replica.sync.start()
    await asyncio.sleep(0.05)
    await replica.sync.aclose()
    assert not sync_tasks()


@pytest.mark.redis
async def test_no_connection_is_left_on_the_server(own_redis: RedisServer) -> None:
    def connections() -> int:
        return int(own_redis.call("INFO", "clients")["connected_clients"]) - 1  # but for this question

    async with pair(own_redis.url):
        assert connections() == 4
    await wait(lambda: connections() == 0)


@pytest.mark.redis
async def test_passwords_acl_users_and_unix_sockets_work() -> None:
    options = ("--requirepass", "s3cret", "--user", "router", "on", ">pa55", "+@all", "&*", "~*")
    with RedisServer(options) as server:
        for url in (
            f"redis://:s3cret@127.0.0.1:{server.port}/0",
            f"redis://router:pa55@127.0.0.1:{server.port}/0",
            f"unix://router:pa55@{server.socket}",
        ):
            async with pair(url) as (one, two):
                one.serve(HASHES)
                await wait_for_match(two)


@pytest.mark.redis
@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
async def test_tls_works_and_is_verified(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ("-subj", "/CN=redis", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", str(key), "-out", str(certificate))
    command = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files)
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=30)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ("--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key))
    with RedisServer((*options, "--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no")):
        async with pair(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}") as (one, two):
            one.serve(HASHES)
            await wait_for_match(two)
        stranger = sync_redis.RedisLink(f"rediss://127.0.0.1:{port}/0", "tls", silence_seconds=60.0)
        with pytest.raises(sync_redis.LinkDown):
            await stranger.publish(b"to a server that nobody vouches for")
        await stranger.aclose()


@pytest.mark.redis
async def test_a_wrong_password_is_an_outage_and_not_a_crash(caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer(("--requirepass", "s3cret")) as server:
        replica = make(settings_for(f"redis://:wr0ng@127.0.0.1:{server.port}/0"))
        replica.sync.start()
        await wait(lambda: caplog.records)
        assert "AuthenticationError" in caplog.text
        assert "wr0ng" not in caplog.text
        assert not replica.sync.up
        await replica.sync.aclose()


@pytest.mark.parametrize("url", ["redis://:sec#ret@host:1/0", "redis://:secret@host:port/0"])
def test_a_url_that_cannot_be_read_is_a_settings_error(url: str) -> None:
    with pytest.raises(SettingsError, match=r"sync\.redis_url") as caught:
        make(settings_for(url))
    assert "sec" not in str(caught.value)
