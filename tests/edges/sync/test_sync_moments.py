"""News that is nearly due goes while a worker is at work, and not between a request and its answer."""

from __future__ import annotations

import asyncio

from router.affinity import AffinityMap
from router.sync import Sync
from router.sync_codec import Message, News, open_envelope, read, uncouple
from router.workers.registry import Registry
from tests.edges.sync.rig import HASHES, PRINT, URLS, Replica, settings_for
from tests.local_bus import LocalBus


class Ear:
    """Hears what goes over a bus."""

    def __init__(self) -> None:
        self.heard: list[Message] = []

    def linked(self) -> None: ...

    def lost(self) -> None: ...

    def receive(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.heard += [read(open_envelope(message, PRINT)) for message in uncouple(data)]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_what_is_nearly_due_goes_when_a_request_has_gone_to_its_worker() -> None:
    bus, ear, clock = LocalBus(), Ear(), Clock()
    bus.join(ear)
    registry, index = Registry(), AffinityMap(1_000, 600.0, 5.0)
    worker = registry.add(URLS[0], slots=4)
    index.set_epoch(worker.id, worker.epoch)
    # By itself nothing would be sent for a minute.
    settings = settings_for(None, flush_seconds=60.0, heartbeat_seconds=60.0, expire_seconds=240.0)
    sync = Sync(settings, PRINT, index, registry, clock, f"{1:016x}", bus.link())
    replica = Replica(sync, index, registry, "")
    sync.start()
    try:
        await _turns()
        replica.serve(HASHES)
        sync.moment()
        clock.now += 53.9
        sync.moment()
        await _turns()
        assert not ear.heard
        clock.now += 0.2
        sync.moment()
        await _turns()
        assert [len(delta.new) for news in ear.heard if isinstance(news, News) for delta in news.deltas] == [
            len(HASHES)
        ]
        said = len(ear.heard)
        sync.moment()  # nothing waits
        await _turns()
        assert len(ear.heard) == said
        # What comes later is not due because of what came before.
        replica.serve(HASHES[:5])
        sync.moment()
        await _turns()
        assert len(ear.heard) == said
    finally:
        await sync.aclose()


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
