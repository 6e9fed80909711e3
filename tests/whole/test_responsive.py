"""A process that is busy with streams or large bodies loses none of them, and answers `/health` all the while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest import responsive
from loadtest.fleet import RouterProcess
from loadtest.responsive import Crowd, bench_workers, lateness, probe


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    with bench_workers() as urls, RouterProcess(tmp_path_factory.mktemp("busy"), urls) as router:
        router.wait_ready(len(urls))
        yield router


def busy(router: RouterProcess, load: str, count: int, seconds: float) -> tuple[Crowd, int]:
    """The crowd after its load, and how many times the router said meanwhile that it lives."""
    crowd = Crowd(router.port, load)

    async def both() -> int:
        work = crowd.stream(count, seconds) if load == "streams" else crowd.repeat(count, seconds)
        probing = asyncio.create_task(asyncio.to_thread(probe, router.port, time.monotonic() + seconds))
        await work
        return len(await probing)

    return crowd, asyncio.run(both())


def test_every_stream_is_whole_and_health_answers(router: RouterProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responsive, "SETTLE_SECONDS", 0.5)
    crowd, answers = busy(router, "streams", 150, 1.0)
    assert (crowd.answered, crowd.failed) == (150, 0)
    assert answers > 0


@pytest.mark.parametrize("load", ["bodies", "messages", "parts", "odd", "small"])
def test_large_bodies_are_served_and_health_answers(router: RouterProcess, load: str) -> None:
    crowd, answers = busy(router, load, 4, 0.5)
    assert crowd.answered >= 4
    assert crowd.failed == 0
    assert answers > 0


def test_the_loops_own_timer_is_read_between_two_scrapes(tmp_path: Path) -> None:
    name = "router_event_loop_lag_seconds_bucket"
    before = f'{name}{{le="0.01"}} 5.0\n{name}{{le="0.05"}} 5.0\n{name}{{le="+Inf"}} 5.0\n'
    after = f'{name}{{le="0.01"}} 15.0\n{name}{{le="0.05"}} 105.0\n{name}{{le="+Inf"}} 105.0\n'
    assert lateness(before, after) == "at most 50 ms"
    assert lateness(before, after.replace('le="0.05"} 105', 'le="0.05"} 100')) == "more"
