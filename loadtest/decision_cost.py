"""Microseconds of a decision: prompt reading, hashing, lookup and choice, claim and record, by size of the body.

`python -m loadtest.decision_cost [--workers N] [--text code]` prints a table; each figure is the best of several
rounds. What reading costs depends on the text: each character that JSON escapes stops the scan for the end of a string.
With `--fleets` the size is 8 KB, and the fleet and the blocks that it holds vary. The router is compiled, unless
`--source` is given.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
import timeit
from collections.abc import Callable, Sequence

from loadtest import compiled
from router.affinity import AffinityMap
from router.cachemodel import CacheProfile
from router.calibration import TokenRatios
from router.hashing import WIDTH_MASK, block_hashes, chain_start
from router.prompt import Form, read_prompt
from router.settings import Settings
from router.workers.health import State
from router.workers.registry import Facts, Model, Registry
from router.workers.selection import Selector

MODEL = "m"
SIZES = (1, 8, 32, 64, 512)
PLAIN = ["river", "stone", "mountain", "evening", "through", "a"]
# What is escaped: a line break every 80 bytes or so, as in prose, or something every 17 bytes, more often than in code.
TEXTS = {"prose": [*PLAIN, *PLAIN, "stone\n"], "code": [*PLAIN, '"quoted"', "stone\n", "é"]}


def body_of(kilobytes: int, messages: int, text_kind: str = "prose", seed: int = 0) -> bytes:
    """A chat request of about this many KiB in this many messages."""
    rng = random.Random(seed)
    words = TEXTS[text_kind]
    piece = kilobytes * 1024 // messages
    said = []
    for number in range(messages):
        text = f"{seed} {number} "
        while len(text) < piece:
            text += rng.choice(words) + " "
        said.append({"role": "user" if number % 2 == 0 else "assistant", "content": text[:piece]})
    return json.dumps({"model": MODEL, "messages": said, "stream": True}, ensure_ascii=False).encode()


def fleet(workers: int) -> Selector:
    """A selector over ready workers of one model."""
    registry = Registry()
    index = AffinityMap(200_000, 5400.0, 10.0)
    for number in range(workers):
        worker = registry.add(f"http://10.0.{number // 250}.{number % 250 + 1}:8000", slots=1024)
        worker.state = State.READY
        registry.learn(worker, Facts(models={MODEL: Model(MODEL, b"{}", 131_072)}, profile=CacheProfile(enabled=True)))
        index.set_epoch(worker.id, 1.0)
    return Selector(Settings(), registry, index, TokenRatios(), random.random)


def microseconds(work: Callable[[], object], number: int) -> float:
    """The best of nine rounds, in CPU time, which neighbours on the machine disturb least."""
    return min(timeit.repeat(work, number=number, repeat=9, timer=time.process_time)) / number * 1e6


def row(kilobytes: int, messages: int, workers: int, text_kind: str) -> list[str]:
    """One line of the table: the follow-up of a prompt that one worker owns, among `workers`."""
    selector = fleet(workers)
    body = body_of(kilobytes, messages, text_kind)
    start = chain_start(b"", "", MODEL, "")
    prompt = read_prompt(Form.CHAT, body)
    inquiry = selector.inquire(prompt)
    placement = selector.place(inquiry, 1.0)
    assert placement is not None
    placement.own(1.0)
    placement.release()

    def whole() -> None:
        asked = selector.inquire(read_prompt(Form.CHAT, body))
        placed = selector.place(asked, 2.0)
        assert placed is not None
        placed.own(2.0)
        placed.release()

    number = 100 if kilobytes > 100 else 500
    times = (
        microseconds(lambda: read_prompt(Form.CHAT, body), number),
        microseconds(lambda: block_hashes(prompt.prefix, start), number),
        microseconds(lambda: selector.index.match(inquiry.hashes, 2.0), number),
        microseconds(lambda: selector.preview(inquiry, 2.0), number),
        microseconds(whole, number),
    )
    return [f"{kilobytes} KB", str(messages), str(len(inquiry.hashes)), *(f"{time:.1f}" for time in times)]


# -- by fleet --------------------------------------------------------------------------------------------------------

MOST_BLOCKS = 200_000
FILL_BLOCKS = 64


def fill(selector: Selector, workers: int) -> None:
    """Prompts of 64 blocks until the index is full, dealt out to the workers."""
    rng = random.Random(1)
    ids = [worker.id for worker in selector.registry]
    for number in range(MOST_BLOCKS // FILL_BLOCKS):
        blocks = [rng.getrandbits(64) & ~WIDTH_MASK for _ in range(FILL_BLOCKS)]
        selector.index.record(ids[number % workers], 1.0, blocks, 1.0)


def decision(workers: int, filled: bool, seed: int, prompts: int = 256) -> float:
    """Microseconds of everything for follow-ups of 8 KB, each of another conversation, in turns: the best of rounds."""
    selector = fleet(workers)
    if filled:
        fill(selector, workers)
    bodies = [body_of(8, 4, seed=seed * prompts + number) for number in range(prompts)]

    def whole() -> None:
        for body in bodies:
            placed = selector.place(selector.inquire(read_prompt(Form.CHAT, body)), 2.0)
            assert placed is not None
            placed.own(2.0)
            placed.release()

    whole()
    return microseconds(whole, 2) / prompts


def fleets(rounds: int = 3) -> list[str]:
    """Lines of the table by workers; the median of fleets made anew."""
    lines = ["| workers | index empty | index full |", "|---|---|---|"]
    for workers in (8, 64, 500):
        times = [statistics.median(decision(workers, full, seed) for seed in range(rounds)) for full in (False, True)]
        lines.append(f"| {workers} | " + " | ".join(f"{time:.1f}" for time in times) + " |")
    return lines


def main(argv: Sequence[str]) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--text", choices=TEXTS, default="prose")
    parser.add_argument("--fleets", action="store_true", help="8, 64 and 500 workers, and how much they hold")
    compiled.add_options(parser)
    options = parser.parse_args(argv)
    compiled.import_chosen(options, "loadtest.decision_cost", argv)
    print(f"The router as {compiled.description()}, in microseconds:\n")
    if options.fleets:
        print("\n".join(fleets()))
        return 0
    print("| body | messages | blocks | read | hash | lookup | match and choose | everything, with claim and record |")
    print("|---|---|---|---|---|---|---|---|")
    for kilobytes in SIZES:
        for messages in (1, 20):
            print("| " + " | ".join(row(kilobytes, messages, options.workers, options.text)) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
