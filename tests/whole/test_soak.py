"""The soak in small: it ends by itself, breaks what it says, and its figures tell a leak from none."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from loadtest.fleet import find_nginx, find_redis
from loadtest.soak.__main__ import soak
from loadtest.soak.report import picture, tables, verdict
from loadtest.soak.run import Findings, Plan
from loadtest.soak.sample import BOUNDS, Sample, is_flat, outcomes
from tests.whole.conftest import require


def steady(count: int = 30) -> list[Sample]:
    return [Sample(float(at), memory=80.0, descriptors=30, sockets=20, tasks=15, blocks=9, active=3)
            for at in range(count)]  # fmt: skip


@pytest.mark.parametrize("what", BOUNDS)
def test_what_grows_by_a_little_each_time_is_a_leak(what: str) -> None:
    assert is_flat(steady(), what)
    growing = [replace(sample, **{what: getattr(sample, what) + 2 * sample.at}) for sample in steady()]
    assert not is_flat(growing, what)


@pytest.mark.parametrize("what", BOUNDS)
def test_filling_up_in_the_first_third_is_none(what: str) -> None:
    filling = [replace(sample, **{what: getattr(sample, what) / 4}) if sample.at < 9 else sample for sample in steady()]
    assert is_flat(filling, what)


def test_requests_that_no_router_knows_of_are_said() -> None:
    found = Findings(samples={"lives on": steady(), "restarted": []}, at_rest=True, sent=10)
    found.seen.update(ok=10)
    found.counted.update(ok=8, client_abort=1)
    assert "1 requests are accounted for by no router" in verdict(found)[0]
    found.unheard = 1
    assert verdict(found) == []
    found.counted.update(ok=2)
    assert verdict(found), "one was counted twice"


def test_outcomes_are_read_by_name() -> None:
    text = 'router_outcomes_total{outcome="ok"} 12.0\nrouter_outcomes_total{outcome="client_abort"} 1.0\n'
    assert outcomes(text) == {"ok": 12, "client_abort": 1}


@pytest.mark.redis
@pytest.mark.nginx
async def test_a_small_one() -> None:
    require(find_nginx(), "nginx")
    require(find_redis(), "redis-server")
    plan = Plan(
        seconds=9, lanes=4, workers=2, sample_every=0.5, worker_every=3, redis_every=4, replica_every=3, away=0.5
    )
    found = await soak(plan)
    assert found.at_rest
    assert found.sent == sum(found.seen.values()) > 20
    assert found.seen["ok"] > found.sent / 2
    assert not found.seen["silent"]
    assert 0 <= found.unaccounted <= found.unheard
    befell = Counter(what for _, what in found.events)
    assert min(befell[what] for what in ("worker killed", "Redis killed", "replica restarted")) >= 1
    lived = found.samples["lives on"]
    assert len(lived) >= 6
    assert all(sample.memory > 1 and sample.descriptors > sample.sockets > 0 < sample.tasks for sample in lived)
    root = ElementTree.fromstring(picture(found))
    assert len(root.findall(".//{*}polyline")) == 8
    assert "resident memory" in tables(found)
