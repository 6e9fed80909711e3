"""Replicas without the rest of the router, and the channels that link them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import redis.asyncio

from router import sync_redis
from router.affinity import AffinityMap
from router.settings import SyncSettings
from router.sync import Sync
from router.sync_codec import News, encode
from router.workers.registry import Lease, Registry, Worker
from tests.local_bus import LocalBus
from tests.redis_server import RedisServer

PRINT = "00112233445566aa"
EPOCH = 1_700_000_000.0
URLS = ("http://10.0.0.1:8000", "http://10.0.0.2:8000")
HASHES = list(range(100, 120))
_numbers = itertools.count(1)


@dataclass
class Replica:
    sync: Sync
    index: AffinityMap
    registry: Registry
    sender: str

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

    @property
    def known(self) -> dict[str, set[int]]:
        """The blocks of every worker."""
        found: dict[str, set[int]] = {}
        for worker in self.registry:
            export = self.index.export(worker.id)
            uses = export.take(1_000_000, time.monotonic()) if export is not None else []
            found[worker.id] = {block for use in uses for block in use.blocks}
        return found

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
    replica = connect(settings, Registry(), AffinityMap(200_000, 600.0, 5.0), link, fingerprint)
    for url in URLS:
        replica.registry.set_epoch(replica.registry.add(url, slots=16), EPOCH)
    return replica


def connect(
    settings: SyncSettings,
    registry: Registry,
    index: AffinityMap,
    link: sync_redis.Link | None = None,
    fingerprint: str = PRINT,
) -> Replica:
    """A replica of these parts, wired as in the whole router."""
    sender = f"{next(_numbers):016x}"
    news = Sync(settings, fingerprint, index, registry, time.monotonic, sender, link)
    registry.hooks.step.append(news.step)
    registry.hooks.epoch.append(lambda worker: put_epoch(index, worker))
    registry.hooks.epoch.append(news.epoch)
    return Replica(news, index, registry, sender)


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


class Stopwatch:
    """Measures the longest turn of the event loop while it runs, and the one that computed for longest."""

    def __init__(self) -> None:
        self.longest = 0.0
        # Other processes on the machine do not count here.
        self.busiest = 0.0

    async def run(self) -> None:
        while True:
            began, spent = time.monotonic(), time.thread_time()
            await asyncio.sleep(0.005)
            self.longest = max(self.longest, time.monotonic() - began - 0.005)
            self.busiest = max(self.busiest, time.thread_time() - spent)


async def vanish(replica: Replica) -> None:
    """End a replica without a goodbye, as a crash does."""
    replica.sync.lost()
    await replica.sync.aclose()


def message(sender: str = "stranger", sequence: int = 1, fingerprint: str = PRINT, **content: Any) -> bytes:
    return encode(fingerprint, sender, sequence, News(**({"kind": "news"} | content)))


@asynccontextmanager
async def pair(url: str, **settings: Any) -> AsyncIterator[tuple[Replica, Replica]]:
    async with AsyncExitStack() as stack:
        one = await started(make(settings_for(url, **settings)), stack)
        two = await started(make(settings_for(url, **settings)), stack)
        yield one, two
