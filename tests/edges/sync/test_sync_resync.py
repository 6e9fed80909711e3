"""Maps agree: a new replica is told what the others know, and what was lost is found and repaired."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack

import msgspec
import pytest

from router import sync_resync, sync_sketches
from router.hashing import HASH_BITS
from router.sync_codec import Chunk, News, Sum, Want, encode
from router.sync_codec import Digest as DigestMessage
from router.sync_redis import Listener
from tests.edges.sync.rig import (
    EPOCH,
    HASHES,
    PRINT,
    Channel,
    LocalChannel,
    Replica,
    Stopwatch,
    make,
    settings_for,
    started,
    wait,
    wait_for_match,
)
from tests.redis_server import RedisServer


def kind_of(message: object) -> str:
    assert isinstance(message, bytes)
    return str(msgspec.msgpack.decode(message)[4])


def fill(replica: Replica, blocks: int, *, seed: int = 1, age: float = 0.0, tell: bool = False) -> None:
    """Prompts of 20 blocks on every worker in turn; told to nobody, unless asked for."""
    rng = random.Random(seed)
    for number in range(blocks // 20):
        worker = replica.workers[number % len(replica.workers)]
        hashes = [rng.getrandbits(HASH_BITS) for _ in range(20)]
        delta = replica.index.record(worker.id, worker.epoch, hashes, time.monotonic() - age)
        if tell:
            assert delta is not None
            replica.sync.owned(delta)


def ages(replica: Replica) -> dict[int, float]:
    found: dict[int, float] = {}
    for worker in replica.registry:
        export = replica.index.export(worker.id)
        assert export is not None
        for use in export.take(1_000_000, time.monotonic()):
            found |= dict.fromkeys(use.blocks, use.age)
    return found


async def alike(*replicas: Replica, seconds: float = 10.0) -> None:
    await wait(lambda: all(replica.known == replicas[0].known for replica in replicas), seconds)


async def full_ones(channel: Channel, count: int) -> list[Replica]:
    """Replicas that all hold the same thousand blocks."""
    replicas = [await channel.replica()]
    fill(replicas[0], 1_000)
    replicas += [await channel.replica() for _ in range(1, count)]
    await alike(*replicas)
    await wait(lambda: not any(replica.sync.warming for replica in replicas))
    return replicas


# -- warm start ----------------------------------------------------------------------------------------------


async def test_a_new_replica_is_told_everything_with_its_age(channel: Channel) -> None:
    one = await channel.replica()
    fill(one, 1_000, age=100.0)
    one.serve(HASHES)
    two = await channel.replica()
    await wait(lambda: not two.sync.warming)
    assert two.known == one.known
    here, there = ages(one), ages(two)
    assert max(abs(here[block] - there[block]) for block in here) < 2.0
    assert two.sync.repairs.asked["start"] == one.sync.repairs.answered == 1
    assert two.sync.repairs.restored >= 1_000
    assert two.sync.repairs.seconds is not None


async def test_exactly_one_replica_answers(channel: Channel) -> None:
    old = await full_ones(channel, 4)
    answered = [replica.sync.repairs.answered for replica in old]
    new = await channel.replica()
    await alike(old[0], new)
    await wait(lambda: not new.sync.warming)
    now_answered = [replica.sync.repairs.answered for replica in old]
    assert sum(now_answered) - sum(answered) == 1


async def test_the_one_that_knows_most_is_asked(channel: Channel) -> None:
    full = await channel.replica()
    fill(full, 2_000)
    new = await channel.replica(heartbeat_seconds=0.05)
    await channel.inject(encode(PRINT, "empty-one", 7, News("heartbeat")))
    await alike(full, new)
    assert new.sync.repairs.failed == 0


async def test_what_happens_meanwhile_is_not_overridden(channel: Channel) -> None:
    one = await channel.replica()
    fill(one, 4_000, age=300.0)
    old = next(iter(one.known[one.workers[0].id]))
    two = await channel.replica()
    two.serve([old])
    await wait(lambda: not two.sync.warming)
    await alike(one, two)
    assert ages(two)[old] < 10.0


async def test_one_that_has_learned_before_it_could_speak_is_asked_too() -> None:
    async with AsyncExitStack() as stack:
        channel = LocalChannel(stack)
        one = await channel.replica(digest_seconds=60.0)
        late = make(settings_for(None, digest_seconds=60.0), link=channel.bus.link())
        fill(late, 1_000)
        await started(late, stack)
        await wait(lambda: len(one.index) == 1_000, seconds=0.4)
        assert one.sync.repairs.asked["start"] == 1


async def test_alone_a_replica_is_ready_soon(channel: Channel) -> None:
    began = time.monotonic()
    one = await channel.replica()
    assert one.sync.warming
    await wait(lambda: not one.sync.warming)
    assert time.monotonic() - began < 2.0
    assert not any(one.sync.repairs.asked.values())


async def test_without_a_link_nobody_waits(own_redis: RedisServer) -> None:
    own_redis.kill()
    replica = make(settings_for(own_redis.url))
    replica.sync.start()
    began = time.monotonic()
    assert replica.sync.warming
    await wait(lambda: not replica.sync.warming)
    assert 0.5 < time.monotonic() - began < 2.0
    await replica.sync.aclose()


async def test_two_that_start_together_do_not_wait_for_each_other(channel: Channel) -> None:
    replicas = await asyncio.gather(channel.replica(), channel.replica())
    await wait(lambda: not any(replica.sync.warming for replica in replicas), seconds=3.0)


async def test_a_worker_that_nobody_has_probed_here_is_told_of_too() -> None:
    async with AsyncExitStack() as stack:
        channel = LocalChannel(stack)
        one = await channel.replica()
        plain = one.registry.add("http://10.0.0.9:8000", slots=4)
        one.index.set_epoch(plain.id, 0.0)
        one.index.record(plain.id, 0.0, HASHES, time.monotonic())
        two = make(settings_for(None), link=channel.bus.link())
        two.registry.add("http://10.0.0.9:8000", slots=4)
        await started(two, stack)
        await wait(lambda: two.index.match(HASHES, time.monotonic()).get(plain.id) == len(HASHES))


async def test_a_later_epoch_comes_with_the_blocks_and_an_earlier_one_is_refused() -> None:
    async with AsyncExitStack() as stack:
        channel = LocalChannel(stack)
        one = await channel.replica()
        one.registry.set_epoch(one.workers[0], EPOCH + 10)
        one.serve(HASHES, worker=0)
        one.serve(HASHES, worker=1)
        two = make(settings_for(None), link=channel.bus.link())
        two.registry.set_epoch(two.workers[1], EPOCH + 20)
        await started(two, stack)
        await wait(lambda: not two.sync.warming)
        assert two.workers[0].epoch == EPOCH + 10
        assert (two.depth(HASHES, 0), two.depth(HASHES, 1)) == (len(HASHES), 0)


@pytest.mark.redis
async def test_a_full_map_is_taken_over_in_seconds_and_stops_nobody(own_redis: RedisServer) -> None:
    async with AsyncExitStack() as stack:
        one = await started(make(settings_for(own_redis.url)), stack)
        fill(one, 200_000)
        assert len(one.index) == 200_000
        watch = Stopwatch()
        watching = asyncio.create_task(watch.run())
        began = time.monotonic()
        two = await started(make(settings_for(own_redis.url)), stack)
        await wait(lambda: len(two.index) == 200_000)
        took = time.monotonic() - began
        watching.cancel()
        # Measured: 0.7 s for both sides in one loop on one idle core, the longest turn 12 ms.
        assert took < 5.0
        assert watch.busiest < 0.25
        assert two.sync.messages["in", "snapshot"] < 40


# -- answers that do not come --------------------------------------------------------------------------------


async def test_when_one_does_not_answer_another_does() -> None:
    async with AsyncExitStack() as stack:
        channel = LocalChannel(stack)
        old = await full_ones(channel, 2)
        asked: list[str] = []

        def first_want(listener: Listener, message: object) -> bool:
            """The first replica that is asked hears no questions."""
            if kind_of(message) != "want":
                return False
            assert isinstance(message, bytes)
            asked.append(msgspec.msgpack.decode(message)[5][0])
            return asked[-1] == asked[0]

        channel.bus.loses = first_want
        new = await channel.replica()
        await alike(old[0], new, seconds=5.0)
        assert new.sync.repairs.failed == 1
        assert len(set(asked)) >= 2


async def test_when_nobody_answers_a_replica_is_ready_nevertheless() -> None:
    async with AsyncExitStack() as stack:
        channel = LocalChannel(stack)
        one = await channel.replica(digest_seconds=60.0)
        fill(one, 1_000)
        channel.bus.loses = lambda listener, message: kind_of(message) == "snapshot"
        new = await channel.replica(digest_seconds=60.0)
        await wait(lambda: new.sync.repairs.failed)
        await wait(lambda: not new.sync.warming, seconds=sync_resync.WARM_SECONDS + 1)
        assert len(new.index) == 0


@pytest.mark.parametrize("body", [b"garbage", b""])
async def test_an_answer_of_garbage_is_refused(body: bytes) -> None:
    async with AsyncExitStack() as stack:
        channel = LocalChannel(stack)
        new = make(settings_for(None), link=channel.bus.link())
        await started(new, stack)
        await channel.inject(encode(PRINT, "liar", 9, News("heartbeat", blocks=10**6)))
        await wait(lambda: new.sync.repairs.asked["start"] == 1)
        await channel.inject(encode(PRINT, "liar", 10, Chunk(new.sender, 1, 0, False, body)))
        await wait(lambda: new.sync.repairs.failed == 1)
        assert len(new.index) == 0


async def test_an_answer_that_nobody_asked_for_is_ignored(channel: Channel) -> None:
    one = await channel.replica()
    fill(one, 100)
    two = await channel.replica()
    await alike(one, two)
    for number in range(5):
        await channel.inject(encode(PRINT, "liar", number + 1, Chunk(two.sender, 2, number, False, b"x")))
    one.serve(HASHES)
    await wait_for_match(two)
    assert two.sync.repairs.failed == 0


async def test_questions_are_not_answered_as_often_as_asked(channel: Channel) -> None:
    one = await channel.replica()
    fill(one, 2_000)
    for number in range(50):
        await channel.inject(encode(PRINT, "greedy", number + 1, Want(one.sender, number, 60.0, [])))
    await wait(lambda: one.sync.messages.get(("in", "want")) == 50)
    one.serve(HASHES)
    await wait(lambda: one.sync.messages.get(("out", "snapshot")))
    assert 1 <= one.sync.repairs.answered <= 3


# -- loss ----------------------------------------------------------------------------------------------------


async def test_what_was_lost_on_the_way_is_asked_for() -> None:
    async with AsyncExitStack() as stack:
        channel = LocalChannel(stack)
        one, two = await channel.replica(digest_seconds=60.0), await channel.replica(digest_seconds=60.0)
        await wait(lambda: not two.sync.warming and two.sync.repairs.seconds is not None)
        fill(one, 1_000, age=60.0, seed=2)
        channel.bus.loses = lambda listener, message: kind_of(message) == "news"
        fill(one, 1_000, tell=True)
        await wait(lambda: not one.sync.queued)
        channel.bus.loses = lambda listener, message: False
        await wait(lambda: len(two.index) == 1_000, seconds=5.0)
        assert two.sync.repairs.asked["gap"] >= 1
        assert len(one.index) == 2_000  # what was used before the loss is not sent again


async def test_a_difference_that_nobody_noticed_shows_in_a_digest(channel: Channel) -> None:
    one, two = await channel.replica(digest_seconds=0.5), await channel.replica(digest_seconds=0.5)
    await wait(lambda: not two.sync.warming and two.sync.repairs.seconds is not None)
    fill(one, 4_000, seed=3)
    fill(two, 2_000, seed=4)
    await alike(one, two)
    assert len(one.index) == 6_000
    assert one.sync.repairs.differences
    assert two.sync.repairs.differences
    assert two.sync.repairs.asked["digest"] >= 1
    assert one.sync.gaps == two.sync.gaps == 0


async def test_a_small_difference_is_left_alone(channel: Channel) -> None:
    one, two = await channel.replica(digest_seconds=0.2), await channel.replica(digest_seconds=0.2)
    await wait(lambda: not two.sync.warming and two.sync.repairs.seconds is not None)
    one.index.record(one.workers[0].id, EPOCH, HASHES, time.monotonic())
    heard = two.sync.messages.get(("in", "digest"), 0)
    await wait(lambda: two.sync.messages.get(("in", "digest"), 0) > heard + 2)
    assert two.depth(HASHES) == 0
    assert two.sync.repairs.differences == two.sync.repairs.asked["digest"] == 0


async def test_what_does_not_fit_into_a_smaller_cache_is_not_asked_for(channel: Channel) -> None:
    """Replicas may believe in other capacities; the one that believes in less has not lost anything."""
    one, two = await channel.replica(digest_seconds=0.2), await channel.replica(digest_seconds=0.2)
    await wait(lambda: not two.sync.warming and two.sync.repairs.seconds is not None)
    room = 512 * 100
    for worker in two.workers:
        two.index.set_capacity(worker.id, room)
    fill(one, 6_000, tell=True)
    await wait(lambda: not one.sync.queued)
    await wait(lambda: all(two.index.fill(worker.id) > sync_sketches.FULL for worker in two.workers))
    heard = two.sync.messages.get(("in", "digest"), 0)
    await wait(lambda: two.sync.messages.get(("in", "digest"), 0) > heard + 3)
    assert len(two.index) < len(one.index) / 2
    assert two.sync.repairs.differences == two.sync.repairs.asked["digest"] == 0


async def test_replicas_that_were_apart_agree_soon_after() -> None:
    async with AsyncExitStack() as stack:
        channel = LocalChannel(stack)
        replicas = [await channel.replica() for _ in range(3)]
        await wait(lambda: all(replica.sync.peers == 2 and not replica.sync.warming for replica in replicas))
        far = replicas[2]

        def cut(listener: Listener, message: object) -> bool:
            assert isinstance(message, bytes)
            sender: str = msgspec.msgpack.decode(message)[2]
            return (listener is far.sync) != (sender == far.sender)

        channel.bus.loses = cut
        for seed, replica in enumerate(replicas):
            fill(replica, 1_000, seed=seed, tell=True)
        await wait(lambda: far.sync.peers == 0 and all(replica.sync.peers == 1 for replica in replicas[:2]))
        await alike(*replicas[:2])
        assert len(far.index) == 1_000
        channel.bus.loses = lambda listener, message: False
        await alike(*replicas)
        assert len(far.index) == 3_000


async def test_digests_of_strangers_are_bounded(channel: Channel) -> None:
    one = await channel.replica()
    fill(one, 1_000)
    name = one.workers[0].id
    sums = [Sum(name, EPOCH, 10_000, b"x"), Sum(name, EPOCH + 1, 1, b""), Sum("unknown", EPOCH, 1, b"")]
    await wait(lambda: not one.sync.warming)
    for number in range(300):
        await channel.inject(encode(PRINT, f"s{number % 3}", number // 3 + 1, DigestMessage(sums)))
    await wait(lambda: one.sync.messages.get(("in", "digest")) == 300)
    await wait(lambda: sum(one.sync.repairs.asked.values()) >= 1)
    assert sum(one.sync.repairs.asked.values()) <= 3
    assert one.sync.messages.get(("out", "digest"), 0) <= 3


# -- ends ----------------------------------------------------------------------------------------------------


async def test_nothing_is_left_when_a_snapshot_is_cut_short(channel: Channel) -> None:
    one = await channel.replica()
    fill(one, 60_000)
    two = await channel.replica()
    await wait(lambda: two.sync.messages.get(("in", "snapshot")))
    await two.sync.aclose()
    await one.sync.aclose()
    await wait(lambda: not [task for task in asyncio.all_tasks() if task.get_name().startswith("sync-")])
