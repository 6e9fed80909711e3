"""Large bodies are read one in a turn of the event loop, in their order, and others have their turn in between."""

from __future__ import annotations

import asyncio

import pytest

from router.dataplane.turns import Turns


async def test_no_two_have_the_same_turn_and_all_keep_their_order() -> None:
    turns = Turns()
    turn = 0
    had: list[tuple[int, int]] = []

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def read(number: int) -> None:
        await turns.take()
        had.append((number, turn))

    counting = asyncio.create_task(count())
    await asyncio.gather(*(read(number) for number in range(10)))
    counting.cancel()
    assert [number for number, _ in had] == list(range(10))
    assert len({at for _, at in had}) == 10
    assert len(turns) == 0


@pytest.mark.parametrize("leaver", [0, 1, 4])
async def test_whoever_leaves_the_line_does_not_stop_it(leaver: int) -> None:
    turns = Turns()
    waiting = [asyncio.create_task(turns.take()) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[leaver].cancel()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [isinstance(result, asyncio.CancelledError) for result in results] == [n == leaver for n in range(5)]
    await asyncio.wait_for(turns.take(), 5)
    await asyncio.sleep(0.001)
    assert len(turns) == 0


async def test_all_may_leave() -> None:
    turns = Turns()
    waiting = [asyncio.create_task(turns.take()) for _ in range(3)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await asyncio.wait_for(turns.take(), 5)
