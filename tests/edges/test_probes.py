"""Workers that fail their probes, pokes, and what a prober leaves behind."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from router.workers import passive
from router.workers.health import State
from router.workers.registry import Worker
from router.workers.watch import CONFIRM_SECONDS
from tests.edges.probes_rig import HANG, OK, PAGE, Fleet, scripted

# -- bad health ------------------------------------------------------------------------------------------------


async def test_a_redirect_is_a_failure_and_not_followed() -> None:
    async with scripted() as there, scripted() as elsewhere, Fleet() as fleet, fleet.prober:
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        there.health = f"302 Found\r\nlocation: {elsewhere.url}/health"
        await fleet.reach(worker, State.UNREADY)
        assert elsewhere.asked == []


async def test_a_health_body_of_10_mb_is_a_failure_and_is_not_read() -> None:
    async with scripted() as there, Fleet() as fleet, fleet.prober:
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        there.health = b"x" * 10_000_000
        await fleet.reach(worker, State.UNREADY)
        there.health = OK
        await fleet.reach(worker, State.READY)


async def test_a_worker_that_was_away_passes_as_many_probes_as_the_settings_say() -> None:
    async with scripted() as there, Fleet(fall=1, rise=4) as fleet:
        worker = fleet.add(there)
        async with fleet.prober:
            await fleet.reach(worker, State.READY)
            there.health = "500 Oops"
            await fleet.reach(worker, State.UNREADY)
            fleet.now += 1_000.0  # whatever its return was put off by
            asked = there.asked.count(("/health", None))
            there.health = OK
            await fleet.reach(worker, State.READY)
            assert there.asked.count(("/health", None)) - asked >= 4


async def test_a_hanging_health_route_counts_after_its_deadline() -> None:
    async with scripted() as there, Fleet(timeout=0.05) as fleet, fleet.prober:
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        there.health = HANG
        before = there.count("/health")
        await fleet.reach(worker, State.UNREADY)
        assert there.count("/health") - before in (fleet.health.fall, fleet.health.fall + 1)


async def test_a_busy_worker_that_misses_its_probes_stays() -> None:
    """P74: a worker that computes may answer its probes late; bytes of an answer say that it lives."""
    async with scripted() as there, Fleet(timeout=0.05) as fleet, fleet.prober:
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        there.health = HANG
        passive.served(fleet.registry, worker, fleet.now)
        await there.probed(fleet.health.fall + 3)
        assert worker.state is State.READY
        fleet.now += 60  # silent for long
        await fleet.reach(worker, State.UNREADY)
        assert passive.candidates(fleet.registry, "m", fleet.now) == [worker]


async def test_probes_that_our_own_delay_has_spoilt_do_not_count() -> None:
    async with scripted() as there, Fleet(timeout=0.02) as fleet:
        ticks = itertools.count(0, 10)  # ten seconds pass between any two looks at the clock
        fleet.prober.clock = lambda: float(next(ticks))
        worker = fleet.add(there)
        async with fleet.prober:
            await fleet.reach(worker, State.READY)
            there.health = HANG
            await there.probed(fleet.health.fall + 3)
            assert worker.state is State.READY


async def test_a_worker_that_falls_often_returns_later() -> None:
    async with scripted() as there, Fleet() as fleet, fleet.prober:
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        for _ in range(2):
            there.health = "503 Unavailable"
            await fleet.reach(worker, State.UNREADY)
            there.health = OK
            if worker.until <= fleet.now:
                await fleet.reach(worker, State.READY)
        await there.probed(6)
        assert worker.state is State.UNREADY
        fleet.now = worker.until
        await fleet.reach(worker, State.READY)


async def test_a_draining_worker_is_probed_but_not_chosen() -> None:
    async with scripted() as there, Fleet() as fleet, fleet.prober:
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        fleet.registry.set_draining(worker, True)
        await there.probed(2)
        assert worker.state is State.READY
        assert passive.candidates(fleet.registry, "m", fleet.now) == []
        fleet.registry.set_draining(worker, False)
        assert passive.candidates(fleet.registry, "m", fleet.now) == [worker]


async def test_passing_probes_do_not_end_an_ejection_but_its_time_does() -> None:
    """W16: healthy by its probes, broken for every request."""
    async with scripted() as there, Fleet() as fleet, fleet.prober:
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        for _ in range(fleet.health.eject_after):
            passive.failed(fleet.registry, worker, fleet.now, fleet.health, 0.0)
        await there.probed(4)
        assert worker.state is State.EJECTED
        fleet.now += fleet.health.eject_seconds
        await fleet.reach(worker, State.PROBATION)


# -- poke ------------------------------------------------------------------------------------------------------


async def test_a_poke_finds_a_dead_worker_at_once() -> None:
    async with scripted() as there, Fleet(interval=600) as fleet, fleet.prober:
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        await there.stop()
        fleet.prober.poke(worker)
        began = asyncio.get_running_loop().time()
        await fleet.reach(worker, State.UNREADY)
        assert asyncio.get_running_loop().time() - began < 3


async def test_a_poke_finds_a_restart_at_once() -> None:
    async with scripted() as there, Fleet(interval=600) as fleet, fleet.prober:
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        there.metrics = PAGE.format(started=2000, awake=1)
        fleet.prober.poke(worker)
        await fleet.until(lambda: fleet.epochs == [1000, 2000])
        assert worker.state is State.READY


async def test_one_poke_is_one_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.workers.probes.CONFIRM_SECONDS", 0.02)
    async with scripted() as there, Fleet(interval=600) as fleet, fleet.prober:
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        fleet.prober.poke(worker)
        await there.probed()
        await asyncio.sleep(0.2)
        assert there.count("/health") == 2


async def test_many_pokes_are_few_probes() -> None:
    async with scripted() as there, Fleet(interval=600) as fleet, fleet.prober:
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        before, began = there.count("/health"), asyncio.get_running_loop().time()
        for _ in range(100):
            fleet.prober.poke(worker)
            await asyncio.sleep(0.003)
        await there.probed()
        elapsed = asyncio.get_running_loop().time() - began
        assert there.count("/health") - before <= elapsed / CONFIRM_SECONDS + 2


# -- housekeeping ----------------------------------------------------------------------------------------------


async def test_closing_leaves_no_task_and_no_hook() -> None:
    async with scripted() as there, scripted(up=False) as gone, scripted() as slow, Fleet() as fleet:
        slow.health = HANG
        before = asyncio.all_tasks()
        hooks = fleet.registry.hooks
        counts = [len(hooks.added), len(hooks.removed), len(hooks.state)]
        for scripted_worker in (there, gone, slow):
            fleet.add(scripted_worker)
        fleet.prober.start()
        fleet.prober.start()
        await asyncio.gather(there.probed(), slow.probed())
        await fleet.prober.aclose()
        await fleet.prober.aclose()
        assert not [task for task in asyncio.all_tasks() - before if task.get_name().startswith("probe-")]
        assert [len(hooks.added), len(hooks.removed), len(hooks.state)] == counts


async def test_the_log_tells_changes_once_and_names_no_url_or_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with scripted(up=False) as there, Fleet() as fleet, fleet.prober:
        worker = fleet.add(there, key="k-secret")
        await fleet.poll(lambda: worker.refused)
        await there.start()
        await fleet.reach(worker, State.READY)
        there.health = "503 Unavailable"
        await fleet.reach(worker, State.UNREADY)
        await there.probed(5)
    lines = [record.getMessage() for record in caplog.records if record.name == "router.workers"]
    assert lines == [
        f"worker {worker.id}: not ready yet: refused",
        f"worker {worker.id} is ready, was starting",
        f"worker {worker.id} is unready, was ready (/health: status 503)",
    ]
    assert not any("k-secret" in line or str(there.port) in line for line in lines)


async def test_a_fault_in_a_hook_does_not_end_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted() as there, Fleet() as fleet, fleet.prober:

        def broken(worker: Worker) -> None:
            raise ValueError(worker.url)

        fleet.registry.hooks.epoch.append(broken)
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
    assert "ValueError" in caplog.text
    assert worker.url not in caplog.text


async def test_first_probes_are_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.workers.probes._START_SPACING", 0.1)
    draws = iter([0.0, 0.9])
    async with scripted() as first, scripted() as second, Fleet(interval=5.0) as fleet:
        fleet.prober.draw = lambda: next(draws, 0.5)
        fleet.add(first)
        fleet.add(second)
        began = asyncio.get_running_loop().time()
        fleet.prober.start()
        await second.probed()
        assert asyncio.get_running_loop().time() - began >= 0.17
        assert first.count("/health") == 1
