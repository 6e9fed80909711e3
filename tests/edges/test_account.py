"""The account of a decision afterwards: who else was there, and why the winner won by how much."""

from __future__ import annotations

from typing import Any

import pytest

from router.affinity import AffinityMap
from router.calibration import TokenRatios
from router.control.account import account
from router.decisions import EVIDENCE_KEPT, DecisionRecord, DecisionRing
from router.policy import Match
from router.prompt import Form, read_prompt
from router.settings import Settings
from router.workers.evidence import CHEAP_POOL, Evidence, every
from router.workers.health import Event, State
from router.workers.registry import Facts, Model, Registry, Worker
from router.workers.selection import Placement, Selector

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "%s"}]}' % (b"a beginning " * 800)


class Fleet:
    """Workers of one model, and a selector over them."""

    def __init__(self, count: int, policy: str = "slack") -> None:
        self.registry = Registry()
        self.index = AffinityMap(10_000, 3600.0, 10.0)
        settings = Settings.model_validate({"policy": {"name": policy}})
        self.selector = Selector(settings, self.registry, self.index, TokenRatios(), lambda: 0.5)
        self.workers = [self.add(f"http://w{number}:8000") for number in range(count)]

    def add(self, url: str) -> Worker:
        worker = self.registry.add(url, slots=4)
        self.registry.learn(worker, Facts(models={"m": Model("m", b"{}", 32_000)}))
        self.index.set_epoch(worker.id, 1.0)
        self.registry.set_epoch(worker, 1.0)
        self.registry.feed(worker, Event.UP)
        return worker

    def place(self, body: bytes = BODY) -> Placement:
        placement = self.selector.place(self.selector.inquire(read_prompt(Form.CHAT, body, b"")), 10.0)
        assert placement is not None
        return placement


def recorded(placement: Placement, **fields: Any) -> DecisionRecord:
    """The record of a placement, as the dispatcher makes it."""
    decision = placement.decision
    record = DecisionRecord(
        request_id="r",
        at=10.0,
        endpoint="/v1/chat/completions",
        model="m",
        worker=decision.worker.id,
        reason=decision.reason.value,
        matched_blocks=decision.match.blocks,
        blocks=decision.blocks,
        resumable_tokens=decision.match.resumable,
        prompt_tokens=placement.inquiry.tokens,
        load=decision.load,
        min_load=decision.min_load,
        slack=decision.slack,
        runner_up=decision.runner_up.id if decision.runner_up else None,
        attempt=1,
    )
    for name, value in fields.items():
        setattr(record, name, value)
    return record


def told(placement: Placement, policy: str = "slack", **fields: Any) -> dict[str, Any]:
    assert placement.evidence is not None
    return account(recorded(placement, **fields), Evidence(*placement.evidence), policy)


def test_a_hit_names_what_it_could_resume_and_the_next() -> None:
    fleet = Fleet(3)
    first = fleet.place()
    first.own(10.0)
    said = told(fleet.place())
    assert said["complete"] is True
    (winner, *others) = said["candidates"]
    assert (winner["worker"], winner["chosen"]) == (first.worker.id, True)
    assert [row["chosen"] for row in others] == [False, False]
    assert said["margin"]["in"] == "resumable_tokens"
    assert said["margin"]["by"] == winner["resumable_tokens"] > 0
    assert "nobody else within reach" in said["because"][0]


def test_loads_are_those_of_the_decision_not_of_today() -> None:
    fleet = Fleet(2)
    placement = fleet.place()
    for _ in range(3):
        fleet.place()
    assert [row["load"] for row in told(placement)["candidates"]] == [0, 0]


def test_a_spill_names_who_held_more_and_what_it_carried() -> None:
    fleet = Fleet(2)
    owner = fleet.place()
    owner.own(10.0)
    worker = owner.worker
    worker.local += 2
    worker.load += 2
    said = told(fleet.place())
    assert said["candidates"][1]["worker"] == worker.id
    assert said["candidates"][1]["within_slack"] is False
    assert said["because"][0].startswith(f"{worker.id} could have resumed")
    assert "with 3 in flight" in said["because"][0]


def test_under_policy_work_each_candidate_has_the_parts_of_its_score() -> None:
    fleet = Fleet(2, "work")
    first = fleet.place()
    first.own(10.0)
    first.lease.first_byte()
    placement = fleet.place()
    said = told(placement, "work")
    winner, other = said["candidates"]
    assert winner["worker"] == first.worker.id
    tokens = placement.inquiry.tokens
    computed = round(1.25 * tokens, 1)
    assert other["terms"] == {"queued": 0.0, "uncached": computed, "decoding": 0.0, "score": computed}
    assert winner["terms"]["decoding"] == 1_000.0
    assert sum(winner["terms"].values()) == pytest.approx(2 * winner["terms"]["score"], abs=0.3)
    assert said["margin"]["in"] == "score"
    assert said["margin"]["by"] == pytest.approx(other["terms"]["score"] - winner["terms"]["score"], abs=0.2)
    assert said["because"][0].startswith("It had the least to compute")


def test_who_had_no_slot_or_was_not_well_is_told_apart() -> None:
    fleet = Fleet(4)
    full, gone, draining, _ = fleet.workers
    full.load = full.local = full.slots
    fleet.registry.feed(gone, Event.DOWN)
    fleet.registry.set_draining(draining, True)
    placement = fleet.place()
    fleet.registry.set_draining(draining, False)
    removed = {row["worker"]: row["removed_by"] for row in told(placement)["candidates"]}
    assert gone.state is not State.READY
    assert removed[full.id] == "slots"
    assert removed[gone.id] == "not_ready"
    assert removed[draining.id] == "draining"
    assert "only candidate with a free slot" in told(placement)["because"][0]


def test_what_the_engine_said_ends_the_account() -> None:
    said = told(
        Fleet(1).place(),
        outcome="ok",
        reported_prompt_tokens=900,
        reported_cached_tokens=64,
        predicted_cached_tokens=640,
        verdict="fell_short",
    )
    assert said["because"][-1] == (
        "The engine reported 64 of 900 prompt tokens from its cache, where 640 were predicted: less than predicted."
    )


def test_equals_are_told_by_the_order_that_replicas_share() -> None:
    said = told(Fleet(3).place())
    assert "as few as 2 others and comes first in the order" in said["because"][0]
    assert said["margin"] == {"over": said["margin"]["over"], "in": "load", "by": 0}


def test_without_evidence_the_account_says_that_it_is_not_complete() -> None:
    record = recorded(Fleet(2).place(), runner_up="0badcafe")
    said = account(record, None, "slack")
    assert said["complete"] is False
    assert [row["worker"] for row in said["candidates"]] == [record.worker, "0badcafe"]


@pytest.mark.parametrize("pool", [CHEAP_POOL + 1, 200])
def test_large_fleets_keep_the_evidence_of_some_decisions_only(pool: int) -> None:
    fleet = Fleet(pool)
    kept = []
    for number in range(3 * every(pool)):
        placement = fleet.place(BODY.replace(b"a beginning", b"beginning %d" % number))
        kept.append(placement.evidence is not None)
        placement.release()
    assert sum(kept) == 3


def test_the_ring_keeps_the_evidence_of_the_last_decisions() -> None:
    ring = DecisionRing(1000)
    placement = Fleet(1).place()
    records = [recorded(placement) for _ in range(EVIDENCE_KEPT + 1)]
    for number, record in enumerate(records):
        ring.add(record, (number,))
    assert ring.evidence_of(records[0]) is None
    assert ring.evidence_of(records[1]) == (1,)
    assert ring.evidence_of(records[-1]) == (EVIDENCE_KEPT,)


def test_a_match_that_the_engine_can_not_use_is_told() -> None:
    fleet = Fleet(2)
    placement = fleet.place()
    seen = Evidence(*placement.evidence or ())
    other = next(worker for worker in fleet.workers if worker is not placement.worker)
    seen = seen._replace(matches={other.id: Match(3, 0, None)})
    said = account(recorded(placement), seen, "slack")
    assert said["candidates"][1]["matched_blocks"] == 3
    assert said["candidates"][1]["resumable_tokens"] == 0
