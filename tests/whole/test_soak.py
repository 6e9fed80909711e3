"""The soak in small: it ends by itself, breaks what it says, and its figures tell a leak from none."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from loadtest.fleet import find_nginx, find_redis
from loadtest.soak.__main__ import soak
from loadtest.soak.account import Life, Sent, last_word, life, settle
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


EVENTS = ("worker killed", "Redis killed", "replica restarted")
WORDS = "2026-11-30 09:00:00,000 INFO router.decisions: "


def written(*ids: str, last: str = "") -> str:
    """A log that names these requests, each in one of the ways."""
    ways = ("[PREFIX] hit: a keeps 1/1 blocks (slots=0)", "left: stage=body", "failed: 502 upstream_reset")
    lines = [f"{WORDS}{way} request={name}" for name, way in zip(ids, itertools.cycle(ways), strict=False)]
    return "\n".join([*lines, last and f"2026-11-30 09:00:00,000 INFO router: {last}", ""])


def sent(*outcomes: str) -> dict[str, Sent]:
    return {f"r{number}": Sent(outcome, float(number), number + 0.5) for number, outcome in enumerate(outcomes)}


def test_every_request_is_found_in_one_place() -> None:
    lives = [
        life("one", written("r0", "r1", last="ended after 2 requests: ok 1, client_abort 1")),
        life("two", written("r2"), killed=(2.2, 2.3)),
        life("three", written("r5"), {"ok": 1}),
    ]
    found = settle(sent("ok", "left", "broken", "balancer", "left", "ok"), lives)
    assert (found.counted, found.by_killed, found.wrong) == (3, 1, [])
    assert sorted(found.nowhere.values()) == [1, 1]
    # The one that was under way when the second was killed.
    found = settle(
        sent("ok", "left", "broken", "balancer", "left", "ok"), [lives[0], life("two", "", killed=(2.2, 2.3))]
    )
    assert found.nowhere["under way when a replica was killed"] == 1
    assert found.wrong == ["r5 was ok for its client, and no replica knows of it"]


@pytest.mark.parametrize(
    ("lives", "wrong"),
    [
        ([life("one", written("r0", last="ended after 2 requests: ok 2"))], "one counted 2 requests and named 1"),
        ([life("one", written("r0"))], "one said nothing at its end"),
        ([life("one", written("r0"), {"ok": 1}), life("two", written("r0"), {"ok": 1})], "r0 is with one, two"),
        ([life("one", written("r0", "r9"), {"ok": 2})], "nobody sent r9"),
        ([life("one", "", {})], "r0 was ok for its client, and no replica knows of it"),
    ],
)
def test_what_does_not_add_up_is_said(lives: list[Life], wrong: str) -> None:
    assert wrong in settle(sent("ok"), lives).wrong


def test_a_last_word_is_read_and_one_of_no_requests_too() -> None:
    assert last_word(written(last="ended after 3 requests: ok 2, midstream_abort 1")) == {"ok": 2, "midstream_abort": 1}
    assert last_word(written(last="ended after 0 requests")) == {}
    assert last_word(written("r0")) is None


def test_requests_that_no_router_knows_of_are_said() -> None:
    found = Findings(samples={"lives on": steady(), "restarted": []}, at_rest=True, sent=10)
    found.seen.update(ok=10)
    found.account.counted = 9
    assert verdict(found) == ["9 requests have a place, 10 were sent"]
    found.account.by_killed = 1
    assert verdict(found) == []


def test_outcomes_are_read_by_name() -> None:
    text = 'router_outcomes_total{outcome="ok"} 12.0\nrouter_outcomes_total{outcome="client_abort"} 1.0\n'
    assert outcomes(text) == {"ok": 12, "client_abort": 1}


@pytest.mark.redis
@pytest.mark.nginx
@pytest.mark.timeout(180)  # it starts a dozen processes, one after the other
async def test_a_small_one() -> None:
    require(find_nginx(), "nginx")
    require(find_redis(), "redis-server")
    plan = Plan(
        seconds=10,
        lanes=4,
        workers=2,
        sample_every=0.5,
        worker_every=3,
        redis_every=4,
        replica_every=1,
        away=0.5,
        kill_each=2,
    )
    found = await soak(plan)
    assert found.at_rest
    assert found.sent == sum(found.seen.values()) > 20
    assert found.seen["ok"] > found.sent / 2
    assert not found.seen["silent"]
    assert verdict(replace(found, samples={"lives on": steady(), "restarted": []})) == []
    befell = Counter(what for _, what in found.events)
    # A second end of the replica, which is a kill, has its turn where the machine is quick enough.
    assert min(befell[what] for what in EVENTS) >= 1
    lived = found.samples["lives on"]
    assert len(lived) >= 6
    assert all(sample.memory > 1 and sample.descriptors > sample.sockets > 0 < sample.tasks for sample in lived)
    root = ElementTree.fromstring(picture(found))
    assert len(root.findall(".//{*}polyline")) == 8
    assert "resident memory" in tables(found)
