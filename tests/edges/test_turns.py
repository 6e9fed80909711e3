"""Each turn of the event loop has time for some bodies; they keep their order, and others have turns in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise

import pytest

from router.dataplane.turns import TURN_SECONDS, WOKEN, Turns


class Clock:
    """Time that passes when somebody works."""

    def __init__(self) -> None:
        self.now = 1.0

    def __call__(self) -> float:
        return self.now


async def turns_of(seconds: list[float]) -> list[tuple[int, int]]:
    """Number and turn of the event loop of each body, as they had their turns; all are whole in the first one."""
    clock = Clock()
    turns = Turns(clock)
    turn = 0
    had: list[tuple[int, int]] = []

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def read(number: int, takes: float) -> None:
        await turns.take()
        had.append((number, turn))
        clock.now += takes

    counting = asyncio.create_task(count())
    await asyncio.gather(*(read(number, takes) for number, takes in enumerate(seconds)))
    counting.cancel()
    assert len(turns) == 0
    assert [number for number, _ in had] == list(range(len(seconds)))
    return had


async def test_bodies_that_take_long_have_a_turn_for_others_between_any_two() -> None:
    had = await turns_of([TURN_SECONDS * 1.1] * (WOKEN + 5))
    assert all(later - earlier >= 2 for (_, earlier), (_, later) in pairwise(had))


async def test_short_ones_share_a_turn_as_long_as_it_has_time() -> None:
    had = await turns_of([TURN_SECONDS * 0.3] * 10)
    assert list(Counter(turn for _, turn in had).values()) == [4, 4, 2]


async def test_a_short_one_does_not_overtake_a_long_one() -> None:
    await turns_of([0.0, TURN_SECONDS * 2, 0.0, TURN_SECONDS * 2, 0.0])


async def test_whoever_comes_while_others_wait_is_behind_them() -> None:
    clock = Clock()
    turns = Turns(clock)
    had: list[str] = []

    async def read(name: str) -> None:
        await turns.take()
        had.append(name)
        clock.now += TURN_SECONDS * 2

    async def come_later() -> None:
        await read("early")
        for number in range(6):
            await asyncio.sleep(0)
            late.append(asyncio.create_task(read(f"late {number}")))

    late: list[asyncio.Task[None]] = []
    await asyncio.gather(come_later(), *(read(f"first {number}") for number in range(4)))
    await asyncio.gather(*late)
    assert had == ["early", *(f"first {number}" for number in range(4)), *(f"late {number}" for number in range(6))]


async def test_a_lone_body_does_not_wait() -> None:
    taking = Turns().take()
    with pytest.raises(StopIteration):
        taking.send(None)


@pytest.mark.parametrize("leavers", [[1], [2], [4], [1, 2], [1, 2, 3, 4]])
@pytest.mark.parametrize("after", [1, 2, 3, 4])
async def test_whoever_leaves_the_line_does_not_stop_it(leavers: list[int], after: int) -> None:
    clock = Clock()
    turns = Turns(clock)

    async def read() -> None:
        await turns.take()
        clock.now += TURN_SECONDS

    waiting = [asyncio.create_task(read()) for _ in range(WOKEN + 5)]
    for _ in range(after):
        await asyncio.sleep(0)
    left = [number for number in leavers if waiting[number].cancel()]
    results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
    assert [isinstance(result, asyncio.CancelledError) for result in results] == [
        number in left for number in range(len(waiting))
    ]
    assert len(turns) == 0
    await asyncio.wait_for(turns.take(), 5)


async def test_all_may_leave_as_they_are_woken() -> None:
    clock = Clock()
    turns = Turns(clock)
    await turns.take()
    clock.now += TURN_SECONDS
    waiting = [asyncio.create_task(turns.take()) for _ in range(WOKEN)]
    behind = asyncio.create_task(turns.take())
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.wait_for(behind, 5)
    assert len(turns) == 0
