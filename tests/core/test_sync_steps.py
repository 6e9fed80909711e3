"""What replicas tell of their requests: the same on both sides, and never larger than was reckoned."""

from __future__ import annotations

from collections import deque

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.sync_codec import MAX_MESSAGE, Row, encode, take
from router.sync_pack import encoded
from router.sync_steps import ENDED, MAX_ANSWERED, MAX_WAITING, STARTED, Open, Step, open_at, open_bytes, step_bytes
from router.sync_work import ROOM, OwnWork
from router.work import Waiting
from router.workers.registry import Lease, Registry

NUMBERS = st.integers(0, 1 << 53) | st.just(1 << 53)
TOKENS = st.integers(0, 1_000_000_000_000) | st.just(1_000_000_000_000)
HASHES = st.integers(0, (1 << 64) - 1) | st.just((1 << 64) - 1)
PERMILLES = st.integers(0, 1_000)
NAMES = st.text(max_size=64) | st.just("\U0010ffff" * 64) | st.just("905487f1")
STEPS = st.builds(
    Step, NAMES, NUMBERS, st.integers(STARTED, ENDED), TOKENS, PERMILLES, HASHES, st.none() | HASHES, st.binary()
)
OPENS = st.builds(
    Open, NAMES, st.lists(st.tuples(NUMBERS, TOKENS, PERMILLES, st.booleans(), HASHES)), st.lists(NUMBERS)
)


@given(st.dictionaries(NUMBERS, st.none() | st.builds(Waiting, TOKENS, st.booleans(), HASHES, PERMILLES), max_size=40))
def test_an_account_is_heard_as_it_was(found: dict[int, Waiting | None]) -> None:
    """To the thousandth, of how much lighter a request is."""
    mine = {
        ("", number): one and Waiting(one.uncached, one.silent, one.whole, one.lighter / 1_000)
        for number, one in found.items()
    }
    theirs = open_at("w", mine).as_of("other")
    assert theirs == {("other", number): one for (_, number), one in mine.items()}


@pytest.mark.parametrize(("lighter", "told"), [(-0.1, 0), (0.0, 0), (0.0126, 13), (0.9999, 1_000), (1.7, 1_000)])
def test_how_much_lighter_is_told_within_bounds(lighter: float, told: int) -> None:
    assert open_at("w", {("", 1): Waiting(10, lighter=lighter)}).waiting == [(1, 10, told, False, 0)]


def test_an_account_is_bounded() -> None:
    waiting = {("", number): Waiting(1) for number in range(MAX_WAITING + 1)}
    answered = {("", MAX_WAITING + 1 + number): None for number in range(MAX_ANSWERED + 1)}
    told = open_at("w", {**waiting, **answered})
    assert (len(told.waiting), len(told.answered)) == (MAX_WAITING, MAX_ANSWERED)


@given(STEPS)
def test_a_step_is_no_larger_than_reckoned(step: Step) -> None:
    assert len(msgspec.msgpack.encode(step)) <= step_bytes(step) <= len(msgspec.msgpack.encode(step)) + 4 * 64 + 52


@given(OPENS)
def test_an_account_is_no_larger_than_reckoned(one: Open) -> None:
    assert len(msgspec.msgpack.encode(one)) <= open_bytes(one)


def test_many_steps_are_few_messages() -> None:
    registry = Registry()
    worker = registry.add("http://10.0.0.1:8000", slots=9_999)
    own = OwnWork(registry, 10_000)
    registry.hooks.step.append(own.add)
    for number in range(700):
        Lease(registry, worker, 10 + number)
    assert len(own.messages()) == 2  # of 512 steps at most
    assert len(own.account()) == 1
    assert ROOM < MAX_MESSAGE


@pytest.mark.parametrize("size", [1, 55, 60, 65, 400])
@pytest.mark.parametrize("name", ["905487f1", "\U0010ffff" * 64])
def test_ownership_that_nearly_fills_a_message_fits_into_it(size: int, name: str) -> None:
    base = (1 << 64) - 1
    deltas = deque(encoded(name, 1e9 + 0.5, base, tuple(range(base - size, base))) for _ in range(300))
    rows = deque(Row(f"{number:064x}", 1e9 + 0.5, 1_000_000, 1_000_000, 1_000_000_000_000) for number in range(60))
    while deltas or rows:
        assert len(encode("f" * 16, "s" * 16, 1 << 53, take(deltas, rows))) <= MAX_MESSAGE
