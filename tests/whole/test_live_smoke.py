"""The live comparison runs from its start to its end: two policies, two workers, nothing left over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loadtest.bench import proc
from loadtest.fleet import find_nginx, find_redis
from loadtest.live.plan import Plan
from loadtest.live.run import compare
from tests.whole.conftest import require

pytestmark = [pytest.mark.redis, pytest.mark.nginx]

# Short questions: what is checked is the shape of the outcome, and the machine may be as slow as it likes.
PLAN = Plan(kind="mix", rate=8.0, speed=4.0, turns=2, wall_seconds=2.0, rounds=1, workers=2)


def test_a_short_run_measures_every_policy(tmp_path: Path) -> None:
    require(find_redis(), "redis-server")
    require(find_nginx(), "nginx")
    said: list[str] = []
    outcomes = compare(PLAN, ["work", "power_of_two"], tmp_path, said.append)
    assert [outcome.name for outcome in outcomes] == ["work", "power_of_two"]
    assert len(said) == 2
    for outcome in outcomes:
        (figures,) = outcome.rounds
        assert figures.requests == len(outcome.seen) > 0
        assert figures.errors < figures.requests
        assert 0 < figures.ttft_mean <= figures.end_mean
        assert figures.ttft_p90 <= figures.ttft_p99
        assert 0 <= figures.hit < 1
        assert 1 <= figures.spread <= PLAN.workers
    assert proc.tree_of([os.getpid()]) == [os.getpid()]
