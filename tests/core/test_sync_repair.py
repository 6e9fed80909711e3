"""What is missing is asked for, from one replica at a time, and nobody is flooded, whatever is lost."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router import sync_repair
from router.sync_codec import Chunk, Want
from router.sync_repair import (
    ASK_SECONDS,
    EVER,
    FIRST_SECONDS,
    MAX_ANSWERS,
    MAX_NEEDS,
    SAME_PEER_SECONDS,
    SHY_SECONDS,
    Answers,
    Need,
    Repair,
    choose,
)

START = Need("start", EVER)


def chunk(want: Want, number: int = 0, *, last: bool = True) -> Chunk:
    return Chunk("me", want.request, number, last, b"")


def asked(repair: Repair, now: float, *peers: str) -> Want:
    want = repair.next(now, dict.fromkeys(peers, 1))
    assert want is not None
    return want


# -- asking --------------------------------------------------------------------------------------------------


def test_the_replica_concerned_is_asked_for_what_is_missing_since() -> None:
    repair = Repair("me")
    repair.miss(Need("gap", 90.0), "b")
    assert asked(repair, 100.0, "a", "b", "c") == Want("b", 1, 10.0, [])
    assert repair.next(100.0, {"b": 1}) is None


def test_everything_ever_is_a_number_too() -> None:
    repair = Repair("me")
    repair.miss(START)
    assert asked(repair, 100.0, "a").seconds == 4e10


def test_needs_of_one_replica_become_one() -> None:
    repair = Repair("me")
    repair.miss(Need("digest", EVER, frozenset("x")), "b")
    repair.miss(Need("digest", EVER, frozenset("y")), "b")
    assert asked(repair, 0.0, "b").workers == ["x", "y"]
    repair.miss(Need("digest", 5.0, frozenset("x")), "c")
    repair.miss(Need("gap", 7.0), "c")
    repair.finish(100, 10.0)
    want = asked(repair, 25.0, "c")
    assert (want.workers, want.seconds) == ([], 20.0)


def test_an_answer_is_taken_in_order_and_once() -> None:
    repair = Repair("me")
    repair.miss(START)
    want = asked(repair, 0.0, "a")
    assert not repair.expects("b", chunk(want), 0.1)
    assert not repair.expects("a", Chunk("me", want.request + 1, 0, True, b""), 0.1)
    assert repair.expects("a", chunk(want, last=False), 0.1)
    assert not repair.expects("a", chunk(want, last=False), 0.1)
    assert repair.expects("a", chunk(want, 1), 0.2)
    assert not repair.expects("a", chunk(want, 2), 0.2)
    assert repair.pending == {"start"}
    assert not repair.expire(1e9, ())
    repair.finish(5, 0.3)
    assert repair.pending == frozenset()


@pytest.mark.parametrize("how", ["silence", "death", "hole", "garbage", "stall", "endless"])
def test_an_ask_that_fails_goes_to_the_next(how: str) -> None:
    repair = Repair("me")
    repair.miss(Need("gap", 0.0), "a")
    want = asked(repair, 0.0, "a", "b")
    now = FIRST_SECONDS + 0.01
    if how == "silence":
        assert not repair.expire(FIRST_SECONDS - 0.01, "ab")
        assert repair.expire(now, "ab")
    elif how == "death":
        assert repair.expire(0.1, "b")
    elif how == "hole":
        assert not repair.expects("a", chunk(want, 1), 0.1)
    elif how == "garbage":
        assert repair.expects("a", chunk(want), 0.1)
        repair.fail(0.2)
    elif how == "stall":
        assert repair.expects("a", chunk(want, last=False), 0.9)
        assert not repair.expire(2.8, "ab")
        assert repair.expire(3.0, "ab")
    else:
        for number in range(int(ASK_SECONDS) + 2):
            repair.expects("a", chunk(want, number, last=False), float(number))
        now = ASK_SECONDS + 1
        assert repair.expire(now, "ab")
    assert repair.ask is None
    again = asked(repair, 3 * now + 10, "a", "b")
    assert (again.to, again.request) == ("b", 2)


def test_when_nobody_answers_the_need_is_given_up() -> None:
    repair = Repair("me")
    repair.miss(START)
    now = 0.0
    for _ in range(3):
        asked(repair, now, "a", "b", "c")
        now += 5.0
        assert repair.expire(now, "abc")
        now += 5.0
    assert repair.next(now, dict.fromkeys("abc", 1)) is None
    assert repair.pending == frozenset()


def test_without_anybody_the_need_stays() -> None:
    repair = Repair("me")
    repair.miss(START)
    assert repair.next(0.0, {}) is None
    assert asked(repair, 1.0, "a").to == "a"


def test_a_broken_link_keeps_the_need() -> None:
    repair = Repair("me")
    repair.abandon(0.0)
    repair.miss(START)
    asked(repair, 0.0, "a")
    repair.abandon(0.1)
    assert repair.pending == {"start"}
    assert asked(repair, 9.0, "a").request == 2


def test_asks_are_spaced_and_take_at_most_half_of_the_time() -> None:
    repair = Repair("me")
    repair.miss(START)
    want = asked(repair, 0.0, "a")
    repair.expects("a", chunk(want), 3.0)
    repair.finish(5, 3.0)
    repair.miss(Need("gap", 0.0), "b")
    assert repair.next(5.9, {"b": 1}) is None
    assert asked(repair, 6.0, "b").to == "b"
    repair.fail(6.0)
    repair.miss(Need("gap", 0.0), "c")
    assert repair.next(6.19, {"c": 1}) is None
    assert asked(repair, 6.21, "c").to == "c"


def test_the_same_replica_is_left_alone_for_a_while() -> None:
    repair = Repair("me")
    repair.miss(Need("gap", 0.0), "a")
    want = asked(repair, 0.0, "a")
    repair.expects("a", chunk(want), 0.0)
    repair.finish(5, 0.0)
    repair.miss(Need("gap", 0.0), "a")
    assert repair.next(SAME_PEER_SECONDS - 0.01, {"a": 1}) is None
    assert asked(repair, SAME_PEER_SECONDS, "a").to == "a"


def test_a_new_replica_waits_for_better_ones_to_be_heard() -> None:
    repair = Repair("me")
    repair.miss(START)
    repair.hold_off(0.05)
    assert repair.next(0.04, {"a": 1}) is None
    assert repair.next(0.05, {"a": 1, "b": 900}) == Want("b", 1, 4e10, [])


def test_needs_are_bounded() -> None:
    repair = Repair("me")
    for number in range(3 * MAX_NEEDS):
        repair.miss(Need("gap", float(number)), f"r{number}")
    assert len(repair._needs) == MAX_NEEDS + 1
    assert asked(repair, 1_000.0, "a").seconds == 1_000.0 - MAX_NEEDS


def test_more_workers_than_fit_are_all() -> None:
    repair = Repair("me")
    repair.differ("a", [f"w{number}" for number in range(1_000)], 0.0)
    assert asked(repair, 0.0, "a").workers == []


# -- digests -------------------------------------------------------------------------------------------------


def digest_round(repair: Repair, now: float, gained: int) -> bool:
    if not repair.differ("a", ["x"], now):
        return False
    want = asked(repair, now, "a")
    assert repair.expects("a", chunk(want), now)
    repair.finish(gained, now)
    return True


def test_a_difference_that_nothing_explains_is_asked_for_ever_less_often() -> None:
    repair = Repair("me")
    times = [now for now in range(0, 10_000, 10) if digest_round(repair, float(now), gained=0)]
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses[:4] == [SHY_SECONDS, 2 * SHY_SECONDS, 4 * SHY_SECONDS, 8 * SHY_SECONDS]
    assert max(pauses) == 640


@pytest.mark.parametrize("comfort", ["answer", "agreement"])
def test_shyness_ends_with_success(comfort: str) -> None:
    repair = Repair("me")
    assert digest_round(repair, 0.0, gained=0)
    assert not digest_round(repair, SHY_SECONDS - 1, gained=0)
    if comfort == "answer":
        assert digest_round(repair, SHY_SECONDS, gained=500)
    else:
        repair.agree("a")
    assert digest_round(repair, SHY_SECONDS + 2, gained=0)
    assert digest_round(repair, 2 * SHY_SECONDS + 2, gained=0)


def test_shyness_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_repair, "MAX_NEEDS", 3)
    repair = Repair("me")
    for number in range(10):
        repair.differ(f"r{number}", ["x"], 10.0 * number)
        want = asked(repair, 10.0 * number, f"r{number}")
        repair.expects(want.to, chunk(want), 10.0 * number)
        repair.finish(0, 10.0 * number)
    assert len(repair._shy) == 3


# -- choosing ------------------------------------------------------------------------------------------------


def test_the_full_ones_are_asked_and_not_all_ask_the_same() -> None:
    peers = {"a": 1_000, "b": 900, "c": 800, "d": 10, "e": 0}
    chosen = Counter(choose(f"{number:016x}", peers) for number in range(300))
    assert set(chosen) == {"a", "b", "c"}
    assert min(chosen.values()) > 60
    assert choose("x", {"a": 0}) == "a"


# -- answering -----------------------------------------------------------------------------------------------


class Tale:
    """An answer of some parts."""

    def __init__(self, parts: int) -> None:
        self.left = parts

    def part(self) -> tuple[bytes, bool]:
        self.left -= 1
        return b"x", self.left == 0


def tell(answers: Answers[Tale]) -> Chunk | None:
    return answers.next(Tale.part)


def want_of(sender: str, request: int = 1) -> Want:
    return Want("me", request, 1.0, [])


def test_askers_are_answered_in_turns() -> None:
    answers: Answers[Tale] = Answers()
    assert tell(answers) is None
    for sender in "ab":
        assert answers.accept(sender, want_of(sender), lambda: Tale(2), 0.0)
    told = [tell(answers) for _ in range(5)]
    assert told == [
        Chunk("a", 1, 0, False, b"x"),
        Chunk("b", 1, 0, False, b"x"),
        Chunk("a", 1, 1, True, b"x"),
        Chunk("b", 1, 1, True, b"x"),
        None,
    ]


def test_an_asker_has_one_answer_and_not_too_often() -> None:
    answers: Answers[Tale] = Answers()
    assert answers.accept("a", want_of("a"), lambda: Tale(5), 0.0)
    assert not answers.accept("a", want_of("a", 2), lambda: Tale(5), 0.9)
    assert tell(answers) == Chunk("a", 1, 0, False, b"x")
    assert answers.accept("a", want_of("a", 3), lambda: Tale(1), 1.0)
    assert tell(answers) == Chunk("a", 3, 0, True, b"x")
    assert len(answers) == 0


def test_answers_are_bounded_and_end_with_the_link() -> None:
    answers: Answers[Tale] = Answers()
    accepted = [answers.accept(f"r{number}", want_of("r"), lambda: Tale(5), 0.0) for number in range(12)]
    assert sum(accepted) == len(answers) == MAX_ANSWERS
    answers.clear()
    assert tell(answers) is None


# -- both, over a channel that loses things ------------------------------------------------------------------


class Side:
    def __init__(self, name: str) -> None:
        self.name = name
        self.repair = Repair(name)
        self.answers: Answers[Tale] = Answers()
        self.got = 0


Lose = Callable[[], bool]


def exchange(one: Side, two: Side, now: float, lose: Lose) -> tuple[int, int]:
    """One turn of both sides; the numbers of wants and chunks that were sent."""
    wants = chunks = 0
    for me, other in ((one, two), (two, one)):
        me.repair.expire(now, {other.name})
        want = me.repair.next(now, {other.name: 1})
        if want is not None:
            wants += 1
            if not lose():
                other.answers.accept(me.name, want, lambda: Tale(20), now)
        assert len(me.answers) <= 1
        part = tell(me.answers)
        if part is not None:
            chunks += 1
            if not lose() and other.repair.expects(me.name, part, now) and part.last:
                other.repair.finish(100, now)
                other.got += 1
    return wants, chunks


@given(st.sampled_from([0.0, 0.05, 0.3, 0.9]), st.integers(0, 2**32))
@settings(max_examples=20)
def test_two_replicas_never_flood_each_other(loss: float, seed: int) -> None:
    rnd = random.Random(seed)
    one, two = Side("one"), Side("two")
    wants = chunks = 0
    for turn in range(3_000):  # a minute, in turns of 20 ms
        now = turn / 50
        for side, other in ((one, two), (two, one)):
            if rnd.random() < 0.1:
                side.repair.miss(Need("gap", now), other.name)
        more_wants, more_chunks = exchange(one, two, now, lambda: rnd.random() < loss)
        wants += more_wants
        chunks += more_chunks
    assert wants <= 2 * (60 / SAME_PEER_SECONDS + 1)
    assert chunks <= 20 * wants
    if loss == 0.0:
        assert one.got + two.got >= wants - 2 > 20


@given(st.sampled_from([0.0, 0.05, 0.1]), st.integers(0, 2**32))
@settings(max_examples=20)
def test_what_is_missing_comes_in_the_end(loss: float, seed: int) -> None:
    rnd = random.Random(seed)
    one, two = Side("one"), Side("two")
    turn = 0
    for _ in range(4):  # as often as a digest would notice
        one.repair.miss(START)
        while one.repair.pending and not one.got:
            exchange(one, two, turn / 100, lambda: rnd.random() < loss)
            turn += 1
            assert turn < 12_000
    if loss == 0.0:
        assert one.got == 1
