"""What caches of different kinds are worth to a conversation, as tables: with and without affinity, dense and hybrid.

Real router and worker processes; the workers compute nothing and answer at once, and the times are those of their
model: prefill and decode at the stated speeds, no transport.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import string
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.conversation import Player, Shape, user_turns
from loadtest.fleet import replicas
from loadtest.simworker import SimConfig, SimProcess
from loadtest.simworker.process import start_workers

MODEL = "sim-model"
ANSWER_TOKENS = 6
DECODE_SECONDS = 0.03
DENSE = SimConfig(
    models=(MODEL,),
    prefill_tokens_per_second=2_400.0,
    decode_seconds_per_token=DECODE_SECONDS,
    time_scale=0.0,
    enable_prompt_tokens_details=True,
)
# A hybrid whose state makes its blocks 1,600 tokens wide, of a release that leaves its caching off unless told, with
# an open last block and a drafter, each of which costs a hit one unit.
HYBRID_OFF = dataclasses.replace(
    DENSE,
    cache="hybrid",
    version="0.20.0",
    block_size=1_600,
    num_gpu_blocks=127,
    held_back_units=2,
    prefill_tokens_per_second=1_800.0,
)
HYBRID_ON = dataclasses.replace(HYBRID_OFF, mamba_cache_mode="align")
# Few states, and one more at the end of every scheduler step: what conversations that take turns evict of each other.
FEW_STATES = dataclasses.replace(HYBRID_ON, state_blocks=7, step_tokens=512)
FINER = dataclasses.replace(FEW_STATES, prefix_match_unit=32)
CHATS = (1_200, 1_550, 3_100)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: who asked for what, who answered, and what it cost; `seconds` are the worker's model."""

    name: str
    worker: str
    tokens: int
    cached: int
    seconds: float


@dataclass(slots=True)
class Table:
    """Turns under a title."""

    title: str
    turns: list[Turn] = field(default_factory=list)

    def of(self, name: str) -> list[Turn]:
        """The turns of one conversation or prompt, in order."""
        return [turn for turn in self.turns if turn.name == name]


class Desk:
    """Sends turns to `url` and reads their cost from the workers behind it."""

    def __init__(self, url: str, workers: Sequence[SimProcess], config: SimConfig) -> None:
        self._url = url
        self._workers = workers
        self._config = config

    @contextlib.contextmanager
    def player(self) -> Iterator[Player]:
        """A conversation of its own."""
        with Player([self._url], MODEL, max_tokens=ANSWER_TOKENS, stream=False) as player:
            yield player

    def say(self, player: Player, name: str, text: str) -> Turn:
        """One turn of a conversation."""
        for worker in self._workers:
            worker.reset()
        player.say(text)
        ((letter, record),) = [
            (letter, record)
            for letter, worker in zip(string.ascii_uppercase, self._workers, strict=False)
            for record in worker.requests(path="/v1/chat/completions")
        ]
        assert record.prompt_tokens is not None
        assert record.output_tokens is not None
        assert record.prefill_seconds is not None
        seconds = record.prefill_seconds + (record.output_tokens - 1) * self._config.decode_seconds_per_token
        return Turn(name, letter, record.prompt_tokens, record.cached_tokens or 0, seconds)


@contextlib.contextmanager
def desk(config: SimConfig, count: int = 1, policy: str | None = None) -> Iterator[Desk]:
    """Workers, behind a router if there is a policy for it."""
    with contextlib.ExitStack() as stack:
        workers = stack.enter_context(start_workers(count, config))
        url = workers[0].url
        if policy is not None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prefix-router-")))
            urls = [worker.url for worker in workers]
            url = stack.enter_context(replicas(directory, 1, urls, flags=["--policy", policy]))[0].url
        yield Desk(url, workers, config)


# -- the tables ------------------------------------------------------------------------------------------------


def conversation(title: str, config: SimConfig, tokens: int, policy: str) -> Table:
    """Five turns of one conversation over two workers."""
    table = Table(title)
    with desk(config, 2, policy) as at, at.player() as player:
        for text in user_turns(1, Shape(first_tokens=tokens, answer_tokens=ANSWER_TOKENS)):
            table.turns.append(at.say(player, "conversation", text))
    return table


def repeats(title: str, config: SimConfig, tokens: int, plan: Sequence[int]) -> Table:
    """Whole prompts on one worker, each by its number in `plan`."""
    table = Table(title)
    texts = [user_turns(seed, Shape(turns=1, first_tokens=tokens))[0] for seed in range(max(plan) + 1)]
    with desk(config) as at:
        for number in plan:
            with at.player() as player:
                table.turns.append(at.say(player, f"prompt {number + 1}", texts[number]))
    return table


def interleaved(title: str, config: SimConfig) -> Table:
    """Three conversations of four turns on one worker, a turn of each after a turn of the others."""
    table = Table(title)
    with desk(config) as at, contextlib.ExitStack() as stack:
        talks = [
            (f"~{tokens:,} tokens", stack.enter_context(at.player()), iter(user_turns(tokens, _chat(tokens))))
            for tokens in CHATS
        ]
        for _ in range(4):
            for name, player, texts in talks:
                table.turns.append(at.say(player, name, next(texts)))
    return table


def _chat(tokens: int) -> Shape:
    return Shape(turns=4, first_tokens=tokens, growth_tokens=40, answer_tokens=ANSWER_TOKENS)


TABLES: dict[str, Callable[[], Table]] = {
    "blind": lambda: conversation("A dense model, turns in rotation over two workers", DENSE, 5_600, "round_robin"),
    "affinity": lambda: conversation("The same with prefix affinity", DENSE, 5_600, "slack"),
    "hybrid_off": lambda: repeats("A hybrid model, caching as its release leaves it", HYBRID_OFF, 13_000, (0, 0, 0, 1)),
    "hybrid_on": lambda: repeats(
        "The same with --enable-prefix-caching --mamba-cache-mode align", HYBRID_ON, 13_000, (0, 0, 0, 1, 1, 0)
    ),
    "hybrid_conversation": lambda: conversation("A conversation with it", HYBRID_ON, 6_500, "slack"),
    "floor": lambda: interleaved("Three ordinary chats in turn, blocks of 1,600 tokens", FEW_STATES),
    "match_unit": lambda: interleaved("The same with --prefix-match-unit 32", FINER),
}


# -- the printed form ------------------------------------------------------------------------------------------


def as_text(table: Table) -> str:
    """A table in Markdown, with each turn's share of the first time its conversation or prompt was computed."""
    rows = ["| request | worker | prompt tokens | cached | time | of the first |", f"|{' --- |' * 6}"]
    for turn in table.turns:
        share = turn.seconds / table.of(turn.name)[0].seconds
        rows.append(
            f"| {turn.name} | {turn.worker} | {turn.tokens:,} | {turn.cached:,} | {turn.seconds:.2f} s | {share:.0%} |"
        )
    return "\n".join([f"{table.title}:", "", *rows, ""])


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; those named, or all."""
    parser = argparse.ArgumentParser(prog="scripts/run --tables", description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"{', '.join(TABLES)}; all by default")
    options = parser.parse_args(argv)
    unknown = [name for name in options.tables if name not in TABLES]
    if unknown:
        parser.error(f"no such table: {', '.join(unknown)}")
    for name in options.tables or TABLES:
        print(as_text(TABLES[name]()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
