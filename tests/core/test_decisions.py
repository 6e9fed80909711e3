"""The last decisions: how many are kept, who finds which, and how one is shown."""

from __future__ import annotations

from dataclasses import fields

from router.decisions import EVIDENCE_KEPT, DecisionRecord, DecisionRing


def record(request_id: str = "r", at: float = 0.0) -> DecisionRecord:
    return DecisionRecord(
        request_id, at, "chat", "m", "905487f1", "hit", 60, 64, 12_000, 12_952, 2, 1, 3, runner_up=None, attempt=1
    )


def test_a_decision_in_the_answer_and_in_the_log() -> None:
    assert record().header_lines() == (
        b"x-router-worker: 905487f1\r\nx-router-decision: hit; match=60/64; resumable=12000; load=2/1; slack=3\r\n"
    )
    assert record().line() == "[PREFIX] hit: 905487f1 keeps 60/64 blocks (slots=2 min=1 slack=3, ~12952 tokens)"


def test_a_decision_as_a_table_has_every_field() -> None:
    shown = record(at=5.0).as_dict()
    assert set(shown) == {field.name for field in fields(DecisionRecord)}
    assert (shown["at"], shown["worker"], shown["status"]) == (5.0, "905487f1", None)


def test_the_last_decisions_are_kept_and_the_newest_comes_first() -> None:
    ring = DecisionRing(3)
    for number in range(10):
        ring.add(record(f"r{number % 2}", float(number)))
    assert len(ring) == 3
    assert [found.at for found in ring.find()] == [9.0, 8.0, 7.0]
    assert [found.at for found in ring.find("r1")] == [9.0, 7.0]
    assert [found.at for found in ring.find(limit=1)] == [9.0]
    assert ring.find("nobody") == []


def test_evidence_is_that_of_the_very_decision_and_of_the_latest_alone() -> None:
    ring = DecisionRing(2 * EVIDENCE_KEPT)
    records = [record() for _ in range(EVIDENCE_KEPT + 2)]
    for number, one in enumerate(records):
        ring.add(one, number + 1)
    assert [ring.evidence_of(one) for one in records] == [None, None, *range(3, EVIDENCE_KEPT + 3)]
    ring.add(plain := record())
    assert ring.evidence_of(plain) is None
    assert ring.evidence_of(records[2]) == 3


def test_no_more_evidence_is_kept_than_decisions() -> None:
    ring = DecisionRing(1)
    first, second = record(), record()
    ring.add(first, "a")
    ring.add(second, "b")
    assert (ring.evidence_of(first), ring.evidence_of(second)) == (None, "b")
