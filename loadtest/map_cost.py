"""What the ownership map costs by workers and by blocks held: microseconds of each step of a request, and memory.

`python -m loadtest.map_cost` prints two tables. Every prompt is another one, so that nothing is in the processor's
cache that would not be there when serving; times are medians. Memory is what a process gains in resident size, when the
map has just become full and at most once it has been filled several times over.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from router.affinity import AffinityMap
from router.allocator import give_back
from router.hashing import hashes_at

MAX_BLOCKS = 200_000
EPOCH = 1.0
# A first turn of 32 KB, what a follow-up adds to it, and what agents have in common (tools and system text, 80 KB).
FIRST_BLOCKS = 64
MORE_BLOCKS = 6
COMMON_BLOCKS = 75
PROMPTS = 400
# How often a map is filled to see what it takes at most.
ROUNDS = 6
# Requests in a second while it is filled.
RATE = 100


def prompt(number: int, count: int) -> list[int]:
    """So many block hashes, each 512 bytes, that only the prompt of this number has; objects made anew."""
    return hashes_at(bytes(count), number, range(1, count + 1))


class Blocks:
    """Makes block hashes, never the same twice."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(self, count: int) -> list[int]:
        self._number += 1
        return prompt(self._number, count)


def fleet_map(workers: int) -> AffinityMap:
    """An empty map of so many workers, each with a cache of a known size."""
    index = AffinityMap(MAX_BLOCKS, 5400.0, 10.0)
    for number in range(workers):
        index.set_epoch(str(number), EPOCH)
        index.set_capacity(str(number), 1 << 40)
    return index


def timed(work: Callable[[list[int]], object], prompts: Sequence[list[int]]) -> float:
    """The median over the prompts, in microseconds."""
    times = []
    for prompt in prompts:
        began = time.perf_counter()
        work(prompt)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def row(workers: int, filled: bool, kind: str) -> list[str]:
    """One line: follow-ups of one kind of prompt, among so many workers, in an empty or a full map."""
    blocks = Blocks()
    index, other = fleet_map(workers), fleet_map(workers)
    common = blocks(COMMON_BLOCKS) if kind == "agents" else []
    for number in range(min(workers, 8)):
        if common:
            index.record(str(number), EPOCH, common, 0.0)
    if filled:
        for number in range(MAX_BLOCKS // FIRST_BLOCKS):
            index.record(str(number % workers), EPOCH, blocks(FIRST_BLOCKS), 1.0)
    said = [[*common, *blocks(FIRST_BLOCKS if not common else 20)] for _ in range(PROMPTS)]
    owners = {id(prompt): str(number % min(workers, 8)) for number, prompt in enumerate(said)}
    for prompt in said:
        index.record(owners[id(prompt)], EPOCH, prompt, 2.0)
        other.record(owners[id(prompt)], EPOCH, prompt, 2.0)
    for prompt in said:
        prompt += blocks(MORE_BLOCKS)
    strangers = [blocks(len(said[0])) for _ in range(PROMPTS)]
    deltas = []

    def record(prompt: list[int]) -> None:
        deltas.append((id(prompt), index.record(owners[id(prompt)], EPOCH, prompt, 3.0)))

    times = [
        timed(lambda prompt: index.match(prompt, 3.0), strangers),
        timed(lambda prompt: index.match(prompt, 3.0), said),
        timed(lambda prompt: index.claim(owners[id(prompt)], prompt, 3.0), said),
        timed(record, said),
    ]
    told = dict(deltas)

    def apply(prompt: list[int]) -> None:
        delta = told[id(prompt)]
        assert delta is not None
        other.apply(delta, 3.0)

    times.append(timed(apply, said))
    return [kind, str(workers), f"{len(index):,}", *(f"{time:.1f}" for time in times)]


# -- memory ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Filling:
    """A way to fill a map: prompts of so many blocks, on so many workers each, with so many common ones before."""

    name: str
    blocks: int
    workers_each: int = 1
    common: int = 0
    turns: int = 1


FILLINGS = (
    Filling("prompts of 64 blocks", 64),
    Filling("conversations of 12 turns, 75 blocks in common", 6, common=COMMON_BLOCKS, turns=12),
    Filling("prompts of 64 blocks, each on two workers", 64, workers_each=2),
    Filling("prompts of one block", 1),
)


def fill(filling: Filling, index: AffinityMap, round_: int) -> None:
    """Requests for a little more than the map holds, conversations turn by turn; nothing of them is kept."""
    prompts = 1 + MAX_BLOCKS * 11 // (10 * filling.blocks * filling.turns * filling.workers_each)
    now = round_ * prompts * filling.turns / RATE
    for turn in range(1, filling.turns + 1):
        for number in range(prompts):
            hashes = [*prompt(0, filling.common), *prompt(1 + number + round_ * prompts, turn * filling.blocks)]
            now += 1 / RATE
            if number % RATE == 0 and index.tick(now):
                give_back()
            for copy in range(filling.workers_each):
                worker = str((number + copy) % 8)
                index.claim(worker, hashes, now)
                index.record(worker, EPOCH, hashes, now)


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def child(number: int) -> None:
    """Fill a map and print what it takes then, and at most while it is filled again with other prompts."""
    gc.collect()
    before = resident()
    index = fleet_map(8)
    sizes = []
    for round_ in range(ROUNDS):
        fill(FILLINGS[number], index, round_)
        gc.collect()
        sizes.append(resident() - before)
    print(f"{len(index)} {sizes[0]} {max(sizes)}")


def memory(number: int) -> str:
    """One line: a filled map in a process of its own."""
    words = [sys.executable, "-m", "loadtest.map_cost", "--child", str(number)]
    blocks, first, most = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    return f"| {FILLINGS[number].name} | {int(blocks):,} | {int(first) / 1e6:.1f} MB | {int(most) / 1e6:.1f} MB |"


def main(argv: Sequence[str]) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child is not None:
        child(options.child)
        return 0
    gc.disable()
    print("| prompts | workers | blocks held | match: unknown | match: follow-up | claim | record | apply elsewhere |")
    print("|" + "---|" * 8)
    for kind in ("chats", "agents"):
        for workers in (8, 64, 500):
            for filled in (False, True):
                print("| " + " | ".join(row(workers, filled, kind)) + " |", flush=True)
    print("\n| a full map of | blocks | just filled | at most, when filled over and over |\n|---|---|---|---|")
    for number in range(len(FILLINGS)):
        print(memory(number), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
