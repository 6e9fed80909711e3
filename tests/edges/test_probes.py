from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from router.cachemodel import CacheProfile
from router.settings import HealthSettings
from router.workers import passive
from router.workers.health import State
from router.workers.probes import MODELS_EVERY, Prober
from router.workers.registry import Lease, Registry, Worker
from router.workers.watch import CONFIRM_SECONDS

PAGE = """process_start_time_seconds {started}
vllm:num_requests_running{{engine="0"}} 3
vllm:num_requests_waiting{{engine="0"}} 2
vllm:prefix_cache_queries_total{{engine="0"}} 100
vllm:prefix_cache_hits_total{{engine="0"}} 60
vllm:cache_config_info{{block_size="32",num_gpu_blocks="100",enable_prefix_caching="True"}} 1
vllm:engine_sleep_state{{sleep_state="awake"}} {awake}
"""
OK = "200 OK"
HANG = "hang"
SECONDS = 10.0  # more than any wait here takes


class ScriptedWorker:
    """A server with the three routes of a probe, each of them a knob; its port is its own from the beginning."""

    def __init__(self) -> None:
        self.port = 0
        self.health: str | bytes = OK
        self.metrics: str | None = PAGE.format(started=1000, awake=1)
        self.models = ["m"]
        self.models_status = OK
        self.key: str | None = None
        self.asked: list[tuple[str, str | None]] = []
        self._heard = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._talks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._bound: socket.socket | None = socket.socket()
        self._bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._bound.bind(("127.0.0.1", 0))
        self.port = self._bound.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def count(self, path: str) -> int:
        return sum(asked == path for asked, _ in self.asked)

    async def probed(self, times: int = 1, path: str = "/health") -> None:
        """Wait for so many more requests of a path."""
        target = self.count(path) + times
        async with asyncio.timeout(SECONDS), self._heard:
            await self._heard.wait_for(lambda: self.count(path) >= target)

    async def start(self) -> None:
        bound, self._bound = self._bound, None
        if bound is None:
            self._server = await asyncio.start_server(self._talk, "127.0.0.1", self.port)
        else:
            self._server = await asyncio.start_server(self._talk, sock=bound)

    async def stop(self) -> None:
        if self._bound is not None:
            self._bound.close()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        for writer in self._talks.values():
            writer.transport.abort()
        await asyncio.gather(*self._talks)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks[task] = writer
        task.add_done_callback(self._talks.pop)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            keys = [line[15:] for line in head.split("\r\n") if line.startswith("authorization: ")]
            path = head.split(" ")[1]
            self.asked.append((path, keys[0] if keys else None))
            async with self._heard:
                self._heard.notify_all()
            await self._answer(path, keys, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(
        self, path: str, keys: list[str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        status, body = self._what(path)
        if status == HANG:
            await reader.read()
            return
        if self.key is not None and path.startswith("/v1") and keys != [f"Bearer {self.key}"]:
            status, body = "401 Unauthorized", b'{"error":"Unauthorized"}'
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    def _what(self, path: str) -> tuple[str, bytes]:
        if path == "/health":
            return (self.health, b"") if isinstance(self.health, str) else (OK, self.health)
        if path == "/metrics":
            return ("404 Not Found", b"") if self.metrics is None else (OK, self.metrics.encode())
        if path == "/v1/models":
            cards = [{"id": name, "max_model_len": 4096, "parent": None} for name in self.models]
            return self.models_status, json.dumps({"object": "list", "data": cards}).encode()
        return "404 Not Found", b""


@contextlib.asynccontextmanager
async def scripted(*, up: bool = True) -> AsyncIterator[ScriptedWorker]:
    worker = ScriptedWorker()
    if up:
        await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


class Fleet:
    """A registry under a prober with short intervals, and ways to wait for what becomes of it."""

    def __init__(self, **health: Any) -> None:
        self.registry = Registry()
        self.health = HealthSettings(**{"interval": 0.02, "timeout": 0.5, "fall": 3, "rise": 2, **health})
        self.now = 100.0
        self.wall = 5000.0
        self.epochs: list[float] = []
        self.states: list[tuple[str, State]] = []
        self._news = asyncio.Condition()
        self._told: set[asyncio.Task[None]] = set()
        hooks = self.registry.hooks
        hooks.epoch.append(lambda worker: self.tell(self.epochs, worker.epoch))
        hooks.state.append(lambda worker, _, after: self.tell(self.states, (worker.id, after)))
        self.prober = Prober(
            self.registry, self.health, worker_key=None, clock=lambda: self.now, wall=lambda: self.wall
        )

    def tell(self, into: list[Any], what: object) -> None:
        into.append(what)
        task = asyncio.get_running_loop().create_task(self._notify())
        self._told.add(task)
        task.add_done_callback(self._told.discard)

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a change of state or epoch has made the condition true."""
        async with asyncio.timeout(SECONDS), self._news:
            await self._news.wait_for(condition)

    async def poll(self, condition: Callable[[], bool]) -> None:
        """The same for what nobody tells."""
        async with asyncio.timeout(SECONDS):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    async def reach(self, worker: Worker, state: State) -> None:
        await self.until(lambda: worker.state is state)

    def add(self, scripted: ScriptedWorker, key: str | None = None) -> Worker:
        return self.registry.add(scripted.url, slots=8, api_key=key)

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.prober.aclose()
        await asyncio.gather(*self._told)


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


# -- restarts --------------------------------------------------------------------------------------------------


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
