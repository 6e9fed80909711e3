"""How probes notice that a worker began a new life."""

from __future__ import annotations

from router.cachemodel import CacheProfile
from router.workers import passive
from router.workers.health import State
from tests.edges.probes_rig import OK, PAGE, Fleet, scripted


async def test_a_restart_shows_in_the_start_time() -> None:
    async with scripted() as there, Fleet() as fleet, fleet.prober:
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        there.models = ["other"]
        there.metrics = PAGE.format(started=2000.5, awake=1)
        await fleet.until(lambda: fleet.epochs == [1000, 2000.5])
        await there.probed(2)
        assert list(worker.facts.models) == ["other"]
        assert worker.state is State.READY


async def test_a_restart_without_metrics_is_seen_by_its_gap() -> None:
    async with scripted() as there, Fleet() as fleet, fleet.prober:
        there.metrics = None
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        await there.probed()
        assert fleet.epochs == []
        await there.stop()
        await fleet.reach(worker, State.UNREADY)
        assert worker.refused
        fleet.wall = 6000.0
        await there.start()
        await fleet.reach(worker, State.READY)
        assert fleet.epochs == [6000]


async def test_a_new_life_without_metrics_has_no_known_cache() -> None:
    async with scripted() as there, Fleet() as fleet, fleet.prober:
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        assert worker.facts.profile.block_size == 32
        await there.stop()
        await fleet.reach(worker, State.UNREADY)
        there.metrics = None
        await there.start()
        await fleet.reach(worker, State.READY)
        assert fleet.epochs == [1000, 5000]
        assert worker.facts.profile == CacheProfile()


async def test_an_outage_with_the_same_start_time_is_no_restart() -> None:
    async with scripted() as there, Fleet() as fleet, fleet.prober:
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        there.health = "503 Unavailable"
        await fleet.reach(worker, State.UNREADY)
        there.health = OK
        await fleet.reach(worker, State.READY)
        assert fleet.epochs == [1000]


async def test_falling_counters_are_a_restart() -> None:
    async with scripted() as there, Fleet() as fleet, fleet.prober:
        there.metrics = "vllm:prompt_tokens_total 500\n"
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        await there.probed()
        assert fleet.epochs == []
        there.metrics = "vllm:prompt_tokens_total 20\n"
        fleet.wall = 7000.0
        await fleet.until(lambda: fleet.epochs == [7000])


async def test_a_sleeping_engine_is_not_ready_and_wakes_with_an_empty_cache() -> None:
    async with scripted() as there, Fleet() as fleet, fleet.prober:
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        there.metrics = PAGE.format(started=1000, awake=0)
        await fleet.reach(worker, State.UNREADY)
        assert worker.asleep
        assert passive.candidates(fleet.registry, "m", fleet.now) == []
        there.metrics = PAGE.format(started=1000, awake=1)
        fleet.wall = 8000.0
        await fleet.reach(worker, State.READY)
        assert fleet.epochs == [1000, 8000]
