"""What replicas say of load merges in any order, and what was missed of whom shows."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.sync_codec import KINDS, Kind, Row
from router.sync_peers import Peers

Said = tuple[str, int, Kind, dict[str, int]]
Part = tuple[int, int, int]


def view_after(said: Iterable[Said]) -> dict[tuple[str, str], Part]:
    """What a replica believes of the others after these messages: (sender, worker) -> its part, without empty ones."""
    peers = Peers(8, 3.0)
    view: dict[tuple[str, str], Part] = {}
    for sender, sequence, kind, counts in said:
        peers.hear(sender, sequence, 0.0)
        rows = [Row(worker, 1.0, *part(count)) for worker, count in counts.items()]
        for row in peers.merge(sender, sequence, rows, complete=KINDS[kind]):
            view[sender, row.worker] = (row.in_flight, row.waiting, row.queued_tokens)
    return {key: value for key, value in view.items() if any(value)}


def part(count: int) -> Part:
    return (count, count // 2, 100 * count)


@st.composite
def histories(draw: st.DrawFn) -> list[Said]:
    """What up to three replicas said, each with its own sequence."""
    counts = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3))
    said: list[Said] = []
    for sender in ("r1", "r2", "r3"):
        kinds: list[Kind] = draw(st.lists(st.sampled_from(["news", "news", "heartbeat"]), max_size=6))
        said += [(sender, sequence, kind, draw(counts)) for sequence, kind in enumerate(kinds, 1)]
    return said


@given(histories(), st.randoms(use_true_random=False))
def test_order_and_repetition_do_not_matter(said: list[Said], rnd: random.Random) -> None:
    in_order = view_after(said)
    jumbled = said + [rnd.choice(said) for _ in said]
    rnd.shuffle(jumbled)
    assert view_after(jumbled) == in_order


@given(histories())
def test_in_order_the_last_word_on_each_worker_counts(said: list[Said]) -> None:
    expected: dict[tuple[str, str], int] = {}
    for sender, _, kind, counts in said:
        if KINDS[kind]:
            expected = {key: count for key, count in expected.items() if key[0] != sender}
        expected |= {(sender, worker): count for worker, count in counts.items()}
    assert view_after(said) == {key: part(count) for key, count in expected.items() if count}


def test_a_lost_zero_is_healed_by_the_next_heartbeat() -> None:
    assert view_after([("r", 1, "news", {"a": 2}), ("r", 3, "heartbeat", {})]) == {}


def test_holes_in_a_sequence_are_seen_once_and_since_when() -> None:
    peers = Peers(8, 3.0)
    heard = [peers.hear("r", sequence, float(at)) for at, sequence in enumerate((1, 2, 5, 4, 5, 6))]
    assert [how for how, _ in heard] == ["joined", "in_order", "after_hole", "in_order", "in_order", "in_order"]
    assert heard[2].since == 1.0
    assert [peers.hear("late", sequence, 9.0) for sequence in (10, 11)] == [("found", 9.0), ("in_order", 9.0)]


@pytest.mark.parametrize(("sequence", "how"), [(7, "in_order"), (8, "in_order"), (9, "after_hole")])
def test_silence_does_not_hide_a_hole(sequence: int, how: str) -> None:
    peers = Peers(8, 3.0)
    peers.hear("r", 7, 1.0)
    assert peers.expire(4.0) == ["r"]
    assert "r" not in peers
    assert peers.hear("r", sequence, 60.0) == (how, 1.0)
    assert peers.merge("r", sequence, [Row("w", 1.0, 1)], complete=False) == [Row("w", 1.0, 1)]


def test_replicas_expire_leave_and_are_bounded() -> None:
    peers = Peers(2, 3.0)
    assert peers.hear("a", 1, 0.0).how == "joined"
    assert peers.hear("b", 1, 2.0).how == "joined"
    assert peers.hear("c", 1, 2.0).how == "too_many"
    peers.holds("b", 70)
    assert peers.blocks == {"a": 0, "b": 70}
    assert peers.expire(2.9) == []
    assert peers.expire(3.0) == ["a"]
    assert peers.leave("b")
    assert not peers.leave("b")
    assert peers.hear("b", 9, 9.0).how == "found"
    assert len(peers) == 1


def test_it_is_known_when_the_first_one_may_expire() -> None:
    peers = Peers(8, 3.0)
    assert peers.first_due(10.0) == 3.0
    peers.hear("r1", 1, 10.0)
    peers.hear("r2", 1, 11.0)
    assert peers.first_due(11.5) == 1.5
    peers.hear("r1", 2, 12.0)
    assert peers.first_due(12.0) == 2.0
    assert not peers.expire(12.0 + peers.first_due(12.0) - 0.01)
    assert peers.expire(12.0 + peers.first_due(12.0)) == ["r2"]


def test_the_silent_are_bounded_too() -> None:
    peers = Peers(2, 3.0)
    for number in range(5):
        peers.hear(f"r{number}", 5, float(number))
        peers.expire(number + 3.0)
    heard = [peers.hear(f"r{number}", 6, 9.0).how for number in (2, 4)]
    assert heard == ["found", "in_order"]


@pytest.mark.parametrize("count", [0, 1])
def test_memory_is_bounded_by_the_workers_since_the_last_statement(count: int) -> None:
    peers = Peers(2, 3.0)
    peers.hear("r", 1, 0.0)
    for sequence in range(1, 100):
        peers.merge("r", sequence, [Row(f"w{sequence}", 1.0, count)], complete=False)
    assert len(peers.merge("r", 100, [], complete=True)) == 99
    assert peers.merge("r", 101, [], complete=True) == []
