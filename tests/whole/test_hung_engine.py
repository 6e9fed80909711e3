"""An engine that is well by its probes and never answers: what was sent there ends in time, and no more is sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.fleet import until
from router.workers.registry import worker_id
from tests.whole.invariants import check_invariants
from tests.whole.rig import CHAT, Rig, building, chat_body, group, text_of, together

# Answers to nothing but its probes.
HUNG = {"path": CHAT, "action": {"kind": "stall", "seconds": 60}, "times": None}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    settings = {"ROUTER_TIMEOUTS__FIRST_BYTE": "0.5", "ROUTER_HEALTH__EJECT_SECONDS": "1"}
    with building(tmp_path) as build:
        rig = build(group("pair", 2, apart=True), settings=settings)
        yield rig
        check_invariants(rig)


def test_it_is_ejected_although_its_probes_are_fine_and_comes_back_by_one_real_request(rig: Rig) -> None:
    text = text_of("a conversation that it holds", 20_000)
    holder = rig.worker(rig.chat(text, model="pair").headers["x-router-worker"])
    short_id = worker_id(holder.url)
    holder.add_faults(HUNG)
    statuses = [
        status for _ in range(3) for status in together(4, lambda lane: rig.chat(text, model="pair").status_code)
    ]
    assert statuses.count(504) >= 5
    assert rig.metric("router_ejections_total", worker=short_id, cause="timeout") >= 1
    assert {rig.chat(f"{number} {text}", model="pair").status_code for number in range(5)} == {200}
    # Each probation is decided by one request, which nobody else waits for; the worker stays out.
    before = len(rig.records(holder))
    for _ in until(20, "a probation that it fails"):
        answers = together(3, lambda lane: rig.chat(f"{lane}", model="pair").status_code)
        assert answers.count(504) <= 1
        if 504 in answers:
            break
    assert len(rig.records(holder)) - before == 1
    holder.clear_faults()
    for _ in until(30, "its return"):
        if rig.chat(text, model="pair").headers.get("x-router-worker") == short_id:
            break
    for _ in until(10, "its state"):
        if {row["state"] for row in rig.rows("pair")} == {"ready"}:
            break
    assert rig.post(CHAT, chat_body("well again", model="pair")).status_code == 200
