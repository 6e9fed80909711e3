"""The benchmark runs from its start to its end: the router and nginx, a few hundred requests, nothing left over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loadtest.bench import proc
from loadtest.bench.plan import HalfLoad, Load, Paced, Plan
from loadtest.bench.session import run
from loadtest.bench.systems import DIRECT, OURS, Places
from loadtest.fleet import find_nginx, find_redis
from tests.whole.conftest import require

pytestmark = [pytest.mark.redis, pytest.mark.nginx]

PLAN = Plan(
    (
        Load(8192, 100, connections=4),
        HalfLoad(8192, 0.1),
        Load(1024, 50, connections=1),
        Paced(10, ramp_seconds=0.1, window_seconds=0.3, probe_seconds=0.1, probes=4),
    ),
    rounds=1,
    minutes=1.0,
    idle_seconds=0.2,
)


def test_a_short_run_measures_every_system(tmp_path: Path) -> None:
    require(find_redis(), "redis-server")
    require(find_nginx(), "nginx")
    said: list[str] = []
    outcome = run(PLAN, [DIRECT, "nginx", OURS], Places(tmp_path, tmp_path), 2, said.append, pin=False)
    assert outcome.missing == {}
    assert outcome.rounds == 1
    assert not [line for line in said if "failed" in line]
    figures = ("cpu_us 8 KB", "half_p99 8 KB", "added_p50 1 KB", "chunk_us 10", "ttfb_p50 10", "memory_mb_after")
    for system in ("nginx", OURS):
        for figure in figures:
            found = outcome.samples.spread(system, figure)
            assert found is not None, (system, figure)
            assert found.median > 0 or figure.startswith("added"), (system, figure)
    # 10 streams with a chunk every 50 ms.
    chunks = outcome.samples.spread(DIRECT, "chunks_per_second 10")
    assert chunks is not None
    assert 100 < chunks.median < 300
    assert proc.tree_of([os.getpid()]) == [os.getpid()]
    assert "[PREFIX] " in (tmp_path / "ours.decisions").read_text()


def test_a_system_that_does_not_start_is_named_and_left_out(tmp_path: Path) -> None:
    require(find_redis(), "redis-server")
    (tmp_path / "nginx").write_text("in the way of the directory")
    outcome = run(
        Plan((), 0, 0.0, idle_seconds=0.01), [DIRECT, "nginx"], Places(tmp_path, tmp_path), 1, lambda _: None, pin=False
    )
    assert set(outcome.missing) == {"nginx"}
    assert set(outcome.titles) == {DIRECT}
