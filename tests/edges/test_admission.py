"""The waiting line: first come, first served, bounded in number and time, and nobody's slot is lost in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from router.affinity import AffinityMap
from router.calibration import TokenRatios
from router.dataplane.admission import Admission
from router.errors import QueueFull, Unavailable
from router.prompt import Form, Prompt
from router.settings import Settings
from router.workers.health import Event
from router.workers.registry import Facts, Lease, Model, Registry, Worker
from router.workers.selection import Placement, Selector

SECONDS = 10.0  # more than any wait here takes


class Fleet:
    """Workers with a slot each, and a line before them."""

    def __init__(self, workers: int = 1, *, per_worker: int = 4, seconds: float = SECONDS) -> None:
        self.registry = Registry()
        self.selector = Selector(Settings(), self.registry, AffinityMap(1_000, 60, 10), TokenRatios(), lambda: 0.5)
        self.admission = Admission(self.registry, per_worker, seconds)
        self.workers = [self.add(number) for number in range(workers)]

    def add(self, number: int, model: str = "m") -> Worker:
        worker = self.registry.add(f"http://10.0.0.{number + 1}:8000", slots=1)
        self.registry.learn(worker, Facts(models={model: Model(model, b"{}")}))
        self.registry.feed(worker, Event.UP)
        return worker

    async def place(self, model: str = "m", tried: list[str] | None = None) -> Placement:
        inquiry = self.selector.inquire(Prompt(Form.OTHER, model))
        return await self.admission.place(model, lambda: self.selector.place(inquiry, 0.0, tried or []))

    def ask(self, model: str = "m", tried: list[str] | None = None) -> asyncio.Task[Placement]:
        return asyncio.create_task(self.place(model, tried))

    def fill(self) -> list[Lease]:
        """Take every slot."""
        return [Lease(self.registry, worker) for worker in self.workers]

    def assert_empty(self) -> None:
        assert len(self.admission) == 0
        assert [worker.load for worker in self.registry] == [0] * len(self.registry)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def waiting(fleet: Fleet, count: int) -> AsyncIterator[list[asyncio.Task[Placement]]]:
    """So many requests in the line, in the order of the list."""
    tasks = [fleet.ask() for _ in range(count)]
    await settle()
    assert len(fleet.admission) == count
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Placement):
                result.release()


async def test_a_free_slot_is_taken_without_a_wait() -> None:
    fleet = Fleet()
    (await fleet.place()).release()
    fleet.assert_empty()


async def test_the_line_is_served_in_order_one_for_each_slot() -> None:
    fleet = Fleet()
    [lease] = fleet.fill()
    async with waiting(fleet, 3) as tasks:
        lease.end()
        for number, task in enumerate(tasks):
            await settle()
            assert [each.done() for each in tasks] == [place <= number for place in range(3)]
            task.result().release()
    fleet.assert_empty()


async def test_who_comes_later_does_not_overtake_the_line() -> None:
    fleet = Fleet()
    [lease] = fleet.fill()
    async with waiting(fleet, 1) as [first]:
        lease.end()
        late = fleet.ask()  # the slot is given away already, though nobody has run yet
        await settle()
        assert first.done()
        assert not late.done()
        first.result().release()
        (await late).release()
    fleet.assert_empty()


async def test_only_where_nobody_waits_for_the_model_is_there_no_line() -> None:
    fleet = Fleet()
    assert fleet.admission.idle("m")
    fleet.fill()
    async with waiting(fleet, 1):
        assert not fleet.admission.idle("m")
        assert fleet.admission.idle("other")
    assert fleet.admission.idle("m")


async def test_other_bounds_are_for_those_who_come() -> None:
    fleet = Fleet(per_worker=1)
    fleet.fill()
    async with waiting(fleet, 1):
        fleet.admission.reconfigure(0, 0.5)
        assert len(fleet.admission) == 1
        with pytest.raises(QueueFull) as refused:
            await fleet.place()
        assert refused.value.retry_after == 1
        fleet.admission.reconfigure(2, 0.01)
        async with asyncio.timeout(SECONDS):
            with pytest.raises(QueueFull, match="in time"):
                await fleet.place()


async def test_the_line_has_a_length_for_each_worker_of_the_model() -> None:
    fleet = Fleet(2, per_worker=2)
    fleet.fill()
    async with waiting(fleet, 4):
        with pytest.raises(QueueFull) as refused:
            await fleet.place()
        assert refused.value.status == 503
        assert refused.value.code == "queue_full"
        assert refused.value.retry_after == int(SECONDS)
        assert len(fleet.admission) == 4


async def test_no_line_at_all_where_its_length_is_zero() -> None:
    fleet = Fleet(per_worker=0)
    fleet.fill()
    with pytest.raises(QueueFull):
        await fleet.place()


async def test_a_wait_ends_in_time() -> None:
    fleet = Fleet(seconds=0.02)
    [lease] = fleet.fill()
    async with asyncio.timeout(SECONDS):
        with pytest.raises(QueueFull) as refused:
            await fleet.place()
    assert refused.value.retry_after
    assert len(fleet.admission) == 0
    lease.end()
    fleet.assert_empty()


async def test_a_waiter_that_leaves_makes_room_for_the_next() -> None:
    fleet = Fleet()
    [lease] = fleet.fill()
    async with waiting(fleet, 3) as tasks:
        tasks[0].cancel()
        await settle()
        assert len(fleet.admission) == 2
        lease.end()
        await settle()
        assert tasks[1].done()
        assert not tasks[2].done()
    fleet.assert_empty()


async def test_a_waiter_that_leaves_at_the_moment_of_its_turn_gives_the_slot_back() -> None:
    fleet = Fleet()
    [lease] = fleet.fill()
    async with waiting(fleet, 2) as [leaving, next_one]:
        lease.end()  # places the first, which has not run yet
        assert fleet.workers[0].load == 1
        leaving.cancel()
        await settle()
        assert leaving.cancelled()
        assert next_one.done()
        assert fleet.workers[0].load == 1
    fleet.assert_empty()


Change = Callable[[Fleet], object]
CHANGES: dict[str, Change] = {
    "remote-load-falls": lambda fleet: fleet.registry.set_remote(fleet.workers[0], "other", 0),
    "another-replica-is-gone": lambda fleet: fleet.registry.drop_replica("other"),
    "another-worker-is-ready": lambda fleet: fleet.add(9),
    "a-drain-ends": lambda fleet: fleet.registry.set_draining(fleet.workers[1], False),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_the_line_moves_whatever_makes_room(change: str) -> None:
    fleet = Fleet(2)
    fleet.registry.set_draining(fleet.workers[1], True)
    fleet.registry.set_remote(fleet.workers[0], "other", 1)
    async with waiting(fleet, 1) as [task]:
        CHANGES[change](fleet)
        await settle()
        assert task.done()
        task.result().release()


async def test_a_line_of_one_model_does_not_hold_up_another() -> None:
    fleet = Fleet()
    other = fleet.add(5, "other")
    [lease] = fleet.fill()
    async with waiting(fleet, 1) as [task]:
        (await fleet.place("other")).release()
        busy = Lease(fleet.registry, other)
        second = fleet.ask("other")
        await settle()
        assert len(fleet.admission) == 2
        busy.end()
        (await second).release()
        assert not task.done()
        lease.end()
        (await task).release()
    fleet.assert_empty()


async def test_who_can_be_served_by_nobody_any_more_is_told_so_in_its_turn() -> None:
    fleet = Fleet(2)
    leases = fleet.fill()
    tried = fleet.ask(tried=[fleet.workers[0].id])
    await settle()
    async with waiting_after(fleet, tried) as after:
        fleet.registry.set_draining(fleet.workers[1], True)
        leases[0].end()
        await settle()
        with pytest.raises(Unavailable):
            await tried
        assert after.done()
    leases[1].end()


@asynccontextmanager
async def waiting_after(fleet: Fleet, first: asyncio.Task[Placement]) -> AsyncIterator[asyncio.Task[Placement]]:
    """One more request behind the one that waits."""
    task = fleet.ask()
    await settle()
    assert len(fleet.admission) == 2
    yield task
    (await task).release()
    assert first.done()


async def test_a_crowd_that_comes_and_goes_leaves_no_slot_taken() -> None:
    fleet = Fleet(3, per_worker=64, seconds=0.05)
    outcomes = {"placed": 0, "full": 0, "left": 0}

    async def one(number: int) -> None:
        try:
            placement = await fleet.place()
        except QueueFull:
            outcomes["full"] += 1
            return
        try:
            await asyncio.sleep(0.0005 * (number % 7))
            outcomes["placed"] += 1
        finally:
            placement.release()

    tasks = [asyncio.create_task(one(number)) for number in range(300)]
    await settle()
    for task in tasks[::5]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    outcomes["left"] = sum(isinstance(result, asyncio.CancelledError) for result in results)
    assert sum(outcomes.values()) == 300
    assert outcomes["placed"] > 0
    assert outcomes["full"] >= 300 - 3 - 3 * 64
    fleet.assert_empty()
