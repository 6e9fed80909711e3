"""The map without its ticks, what a copy of it goes on with, and prompts of which only parts were heard."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby

import pytest

from router.affinity import AffinityMap, Delta
from router.holdings import Holder
from router.shadows import PACK_SECONDS
from tests.core.affinity_model import check_books

TTL = 100.0


def fresh(max_blocks: int = 10_000) -> AffinityMap:
    index = AffinityMap(max_blocks, TTL, 5.0)
    index.set_epoch("w0", 1.0)
    return index


def prompt(number: int, blocks: int = 3) -> list[int]:
    """Blocks that no other prompt has."""
    return [(number * 1_000 + block + 1) << 8 for block in range(blocks)]


def test_uses_alone_forget_what_is_too_old() -> None:
    index = fresh()
    for number in range(4):
        index.record("w0", 1.0, prompt(number), float(number))
    index.record("w0", 1.0, prompt(9), TTL + 1.5)
    assert index.evictions["expired"] == 2 * 3
    assert len(index) == 3 * 3


def test_uses_alone_clear_away_a_life_that_is_over() -> None:
    index = fresh()
    for number in range(400):
        index.record("w0", 1.0, prompt(number), 0.0)
    index.set_epoch("w0", 2.0)
    for number in range(1_000, 1_010):
        index.record("w0", 2.0, prompt(number), 1.0)
    assert set(index._holdings.held) == {block for number in range(1_000, 1_010) for block in prompt(number)}


def tables(prompts_a_second: int) -> Iterator[dict[int, Holder]]:
    """The table of all blocks after each tick of a map that is full and goes on."""
    index = fresh(max_blocks=200)
    for second in range(600):
        for number in range(prompts_a_second):
            index.record("w0", 1.0, prompt(second * prompts_a_second + number), float(second))
        index.tick(float(second))
        if second >= 150:
            yield index._holdings.held
    assert len(index) == 200
    check_books(index)


def test_the_table_of_blocks_keeps_no_room_for_what_is_gone() -> None:
    """A dictionary has a place for each key that ever was, and doubles once they have become too many."""
    assert all(sys.getsizeof(table) == sys.getsizeof(dict(table)) for table in tables(1))


def test_the_table_of_blocks_is_not_made_anew_all_the_time() -> None:
    kept = [len(list(group)) for _, group in groupby(tables(100), key=id)]
    assert min(kept[1:-1]) == PACK_SECONDS


def take(index: AffinityMap, slices: int, change: str) -> list[list[int]]:
    """The prompts' numbers in slices of one touch each; after so many, the next prompt is used again or forgotten."""
    export = index.export("w0")
    assert export is not None
    got = [[use.blocks[0] >> 8 for use in export.take(1, 20.0)] for _ in range(slices)]
    if change == "used again":
        index.record("w0", 1.0, prompt(slices), 20.0)
    elif change == "forgotten":
        use = index.use_of("w0", prompt(slices)[-1])
        assert use is not None
        index.disprove(use)
    while uses := export.take(1, 20.0):
        got.append([use.blocks[0] >> 8 for use in uses])
    return [[block // 1_000 for block in blocks] for blocks in got]


@pytest.mark.parametrize("slices", [1, 3, 7])
@pytest.mark.parametrize("change", ["nothing", "used again", "forgotten"])
def test_a_copy_goes_on_where_it_was_whatever_happens_to_the_next_prompt(slices: int, change: str) -> None:
    """Everything once, the earlier ones not from the beginning again; what was used meanwhile comes at the end."""
    index = fresh()
    for number in range(8):
        index.record("w0", 1.0, prompt(number), float(number))
    numbers = [number for got in take(index, slices, change) for number in got]
    later = [number for number in range(slices, 8) if change == "nothing" or number != slices]
    # The one before may come twice: another may have been used in the same moment.
    again = [] if change == "nothing" else [slices - 1]
    assert numbers == [*range(slices), *again, *later, *([slices] if change == "used again" else [])]


@pytest.mark.parametrize("base", [None, 3, 4])
def test_a_prompt_of_which_only_the_end_was_heard_is_whole_after_a_use_here(base: int | None) -> None:
    index, hashes = fresh(), prompt(1, 6)
    index.apply(Delta("w0", 1.0, None if base is None else hashes[base - 1], tuple(hashes[base or 4 :])), 0.0)
    delta = index.record("w0", 1.0, hashes, 1.0)
    assert delta == Delta("w0", 1.0, hashes[-1], ())
    assert index.blocks_of("w0") == 6
    assert [index.age("w0", block, 1.0) for block in hashes] == [0.0] * 6
    assert [index.match(hashes[:depth], 1.0) for depth in range(1, 7)] == [{"w0": depth} for depth in range(1, 7)]
