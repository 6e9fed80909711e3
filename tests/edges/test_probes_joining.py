"""How workers join, and what probes learn of them and of servers that are no vLLM."""

from __future__ import annotations

import asyncio
import logging

import pytest

from router.workers import passive
from router.workers.health import State
from router.workers.probes import MODELS_EVERY
from router.workers.registry import Lease
from tests.edges.probes_rig import HANG, OK, Fleet, scripted

# -- joining and what is learned -------------------------------------------------------------------------------


async def test_a_worker_that_is_there_is_ready_with_its_facts() -> None:
    async with scripted() as there, Fleet() as fleet:
        worker = fleet.add(there)
        fleet.prober.start()
        await fleet.reach(worker, State.READY)
        facts = worker.facts
        assert facts.models["m"].window == 4096
        assert (facts.running, facts.waiting, facts.cache_queries, facts.cache_hits) == (3, 2, 100, 60)
        assert (facts.profile.block_size, facts.profile.capacity_tokens) == (32, 3200)
        assert worker.epoch == 1000
        assert worker.slots == 8
        assert there.asked[:3] == [("/health", None), ("/metrics", None), ("/v1/models", None)]


async def test_a_worker_that_is_not_there_at_the_start_joins_when_it_is() -> None:
    async with scripted(up=False) as late, Fleet() as fleet:
        worker = fleet.add(late)
        async with fleet.prober:
            await fleet.poll(lambda: worker.refused)
            assert worker.state is State.STARTING
            assert passive.candidates(fleet.registry, "m", fleet.now) == []
            await late.start()
            await fleet.reach(worker, State.READY)
            assert not worker.refused
            assert fleet.states == [(worker.id, State.READY)]


async def test_a_worker_that_is_added_later_is_probed_and_one_that_is_removed_no_longer() -> None:
    async with scripted() as there, Fleet() as fleet, fleet.prober:
        before = len(asyncio.all_tasks())
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        fleet.registry.remove(worker)
        await fleet.poll(lambda: len(asyncio.all_tasks()) <= before)
        asked = len(there.asked)
        fleet.prober.poke(worker)
        await asyncio.sleep(0.1)
        assert len(there.asked) == asked


async def test_a_worker_that_is_removed_and_added_again_begins_anew() -> None:
    async with scripted() as there, Fleet() as fleet, fleet.prober:
        first = fleet.add(there)
        fleet.registry.remove(first)
        second = fleet.add(there)
        await fleet.reach(second, State.READY)
        assert second is not first
        assert first.state is State.STARTING


async def test_the_first_listed_worker_may_be_down() -> None:
    async with scripted(up=False) as down, scripted() as there, Fleet() as fleet:
        fleet.add(down)
        worker = fleet.add(there)
        async with fleet.prober:
            await fleet.reach(worker, State.READY)
            assert set(fleet.registry.models()) == {"m"}
            assert fleet.registry.only_base_model() == "m"
            assert passive.candidates(fleet.registry, "m", fleet.now) == [worker]


async def test_a_ready_worker_is_asked_for_its_models_now_and_then() -> None:
    async with scripted() as there, Fleet() as fleet, fleet.prober:
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        there.models = ["m", "adapter"]
        before = there.count("/health")
        await there.probed(path="/v1/models")
        assert there.count("/health") - before <= MODELS_EVERY + 1
        await there.probed()
        assert list(worker.facts.models) == ["m", "adapter"]
        there.models_status = "500 Oops"
        await there.probed(path="/v1/models")
        await there.probed()
        assert worker.state is State.READY
        assert list(worker.facts.models) == ["m", "adapter"]


@pytest.mark.parametrize("status", ["401 Unauthorized", "500 Oops", OK])
async def test_without_models_a_worker_is_not_ready(status: str) -> None:
    async with scripted() as there, Fleet() as fleet, fleet.prober:
        there.models = []
        there.models_status = status
        worker = fleet.add(there)
        await there.probed(4, path="/v1/models")
        assert worker.state is State.STARTING
        there.models, there.models_status = ["m"], OK
        await fleet.reach(worker, State.READY)


@pytest.mark.parametrize("own", [True, False])
async def test_the_key_goes_with_every_probe(own: bool) -> None:
    async with scripted() as there, Fleet() as fleet:
        there.key = "k-9"
        fleet.prober.worker_key = "common" if own else "k-9"
        worker = fleet.add(there, key="k-9" if own else None)
        async with fleet.prober:
            await fleet.reach(worker, State.READY)
        assert set(there.asked) == {(path, "Bearer k-9") for path in ("/health", "/metrics", "/v1/models")}


async def test_with_a_wrong_key_a_worker_is_not_ready() -> None:
    async with scripted() as there, Fleet() as fleet, fleet.prober:
        there.key = "right"
        worker = fleet.add(there, key="wrong")
        await there.probed(3, path="/v1/models")
        assert worker.state is State.STARTING


# -- workers other than vLLM -----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["404 Not Found", "405 Method Not Allowed", "501 Not Implemented"])
async def test_without_a_health_route_the_model_list_stands_for_it(status: str) -> None:
    async with scripted() as there, Fleet() as fleet, fleet.prober:
        there.health, there.metrics = status, None
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        assert worker.epoch == 0.0
        assert worker.facts.running is None
        there.models_status = "503 Busy"
        await fleet.reach(worker, State.UNREADY)


async def test_a_worker_without_a_health_route_is_not_asked_for_models_while_requests_run() -> None:
    async with scripted() as there, Fleet() as fleet, fleet.prober:
        there.health, there.metrics = "404 Not Found", None
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        lease = Lease(fleet.registry, worker)
        await there.probed(2)
        asked = there.count("/v1/models")
        await there.probed(MODELS_EVERY + 2)
        assert there.count("/v1/models") == asked
        assert worker.state is State.READY
        lease.end()
        await there.probed(path="/v1/models")


@pytest.mark.parametrize("page", [None, "", "<html>no</html>", "\0" * 1000, "vllm:num_requests_running NaN\n"])
async def test_without_usable_metrics_a_worker_is_ready_and_one_line_says_so(
    page: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "router.workers")
    async with scripted() as there, Fleet() as fleet, fleet.prober:
        there.metrics = page
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        await there.probed(5)
        assert worker.state is State.READY
    assert sum("/metrics" in line for line in caplog.messages) == 1


async def test_hanging_metrics_do_not_make_a_worker_unready() -> None:
    async with scripted() as there, Fleet(timeout=0.05) as fleet, fleet.prober:
        worker = fleet.add(there)
        await fleet.reach(worker, State.READY)
        what = there._what
        there._what = lambda path: (HANG, b"") if path == "/metrics" else what(path)  # type: ignore[method-assign]
        await there.probed(6)
        assert worker.state is State.READY
        assert worker.facts.running is None
        assert worker.facts.profile.block_size == 32
