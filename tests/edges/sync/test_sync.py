"""Replicas share what they know over a channel: the protocol, over a local bus and over a real Redis."""

from __future__ import annotations

import logging
import time
from contextlib import AsyncExitStack

import msgspec
import pytest

from router import sync
from router.affinity import AffinityMap, Delta
from router.sync import DROP_CAUSES, NoSync
from router.sync_codec import TRAIN, VERSION, Row, uncouple
from router.workers.registry import Registry
from tests.edges.sync.rig import (
    EPOCH,
    HASHES,
    PRINT,
    URLS,
    Channel,
    LocalChannel,
    make,
    message,
    settings_for,
    wait,
    wait_for_match,
)
from tests.local_bus import LocalBus

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
    "NaN": (msgspec.msgpack.encode([VERSION, PRINT, "x", 1, "news", [[], [["w", float("nan"), 1]], 0]]), "malformed"),
    "negative": (msgspec.msgpack.encode([VERSION, PRINT, "x", 1, "news", [[], [["w", 1.0, -5]], 0]]), "malformed"),
    "later version": (msgspec.msgpack.encode([VERSION + 1, "anything"]), "version"),
    "later kind": (msgspec.msgpack.encode([VERSION, PRINT, "x", 1, "gossip", {}]), "kind"),
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
    one.serve(HASHES)
    await wait(lambda: two.sync.messages.get(("in", "news")) and two.sync.messages.get(("in", "heartbeat")))
    assert one.sync.messages["out", "hello"] == 1
    assert one.sync.lag_seconds is not None
    assert 0 <= one.sync.lag_seconds < 5
    for sequence in (1, 2, 6, 7):
        await channel.inject(message(sequence=sequence))
    await wait(lambda: two.sync.gaps == 1)
    assert set(two.sync.dropped) == set(DROP_CAUSES)
    assert not any(two.sync.dropped.values())


async def test_a_full_queue_drops_the_oldest_and_the_hole_is_repaired(channel: Channel) -> None:
    one, two = await channel.replica(max_queue=10, flush_seconds=0.05), await channel.replica()
    await wait(lambda: two.sync.repairs.seconds is not None)
    for number in range(30):
        one.serve([number])
    assert (one.sync.queued, one.sync.dropped["queue"]) == (10, 20)
    await wait(lambda: len(two.index) >= 10)
    assert all(two.depth([number]) for number in range(20, 30))
    assert two.sync.gaps == 1
    await wait(lambda: len(two.index) == 30)
    assert two.sync.repairs.asked["gap"] == 1


async def test_a_link_that_fails_keeps_the_news() -> None:
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


async def test_what_leaves_together_is_one_message_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncExitStack() as stack:
        channel = LocalChannel(stack)
        channel.bus.splits = False
        one, two = await channel.replica(heartbeat_seconds=5.0, expire_seconds=20.0), await channel.replica()
        await wait(lambda: one.sync.peers == 1)
        sent: list[object] = []
        put = channel.bus.put

        def watched(message: object) -> None:
            sent.append(message)
            put(message)

        monkeypatch.setattr(channel.bus, "put", watched)
        lease = one.lease()
        one.serve(HASHES)
        await wait(lambda: two.depth(HASHES) == 20 and two.load() == 1)
        assert {("out", "news"), ("out", "steps")} <= set(one.sync.messages)
        trains = [uncouple(message) for message in sent if isinstance(message, bytes) and message.startswith(TRAIN)]
        assert any(len(train) >= 2 for train in trains)
        lease.end()
        assert not any(two.sync.dropped.values())
        assert two.sync.gaps == 0


@pytest.mark.parametrize("train", [b"\xc1", b"\xc1\0", b"\xc1\0\0\0\2x", b"\xc1" + 33 * b"\0\0\0\1x"])
async def test_a_train_that_is_none_is_refused_as_a_whole(channel: Channel, train: bytes) -> None:
    two = await channel.replica()
    await channel.inject(train)
    await channel.inject(message(rows=[Row(two.workers[0].id, EPOCH, 3)]))
    await wait(lambda: two.load() == 3)
    assert sum(two.sync.dropped.values()) == two.sync.dropped["malformed"] == (train != b"\xc1")


async def test_without_redis_everything_is_quiet() -> None:
    nothing = NoSync()
    nothing.start()
    worker = Registry().add(URLS[0], slots=1)
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
        replica.sync.epoch(worker)
    # Measured: 0.3 us; the bound leaves room for a busy machine.
    assert (time.perf_counter() - began) / 5000 < 20e-6
