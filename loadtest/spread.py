"""Many conversations at once: how often a follow-up finds its worker, and how evenly conversations spread.

`python -m loadtest.spread` starts simulated workers, replicas over Redis behind nginx, plays the conversations with
each policy, and prints one table; `--html FILE` writes a page with plots too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from loadtest.conversation import Shape, user_turns
from loadtest.fleet import NginxProcess, RedisProcess, RouterProcess, replicas
from loadtest.report.progress import Progress
from loadtest.simworker import SimConfig
from loadtest.simworker.process import start_workers

MODEL = "sim-model"
SHAPE = Shape(turns=4, first_tokens=1_200, growth_tokens=150, answer_tokens=16, bytes_per_token=6.0)


@dataclass(frozen=True)
class Load:
    """Conversations that begin at random over `arrival_seconds`; think times are exponential."""

    conversations: int = 1_000
    arrival_seconds: float = 30.0
    think_seconds: float = 1.0
    seed: int = 1
    shape: Shape = SHAPE


@dataclass(frozen=True)
class Result:
    """What came of one run. `spread` is conversations on the fullest worker over the mean."""

    policy: str
    conversations: int
    failed: int
    follow_ups: int
    kept: float
    spread: float
    ttft_first_ms: float
    ttft_follow_ms: float
    cached_share: float


@dataclass(slots=True)
class Turn:
    """One turn as its client saw it: `at` seconds after the load began, `seconds` to the first byte of the answer."""

    worker: str
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    at: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class Played:
    """One run: the sums, and each conversation's turns."""

    result: Result
    conversations: Sequence[Sequence[Turn]]


async def converse(
    client: httpx.AsyncClient, url: str, number: int, load: Load, rng: random.Random, began: float
) -> list[Turn]:
    """Play one conversation; stops at the first failed turn."""
    turns: list[Turn] = []
    messages: list[dict[str, str]] = []
    for text in user_turns(load.seed * 1_000_003 + number, load.shape):
        messages.append({"role": "user", "content": text})
        turn, said = await _ask(client, url, messages, load.shape.answer_tokens, began)
        if turn is None:
            break
        turns.append(turn)
        messages.append({"role": "assistant", "content": said})
        await asyncio.sleep(rng.expovariate(1 / load.think_seconds))
    return turns


async def _ask(
    client: httpx.AsyncClient, url: str, messages: list[dict[str, str]], tokens: int, began: float
) -> tuple[Turn | None, str]:
    """One streamed turn and what was said; None if it failed."""
    asked = {"model": MODEL, "messages": messages, "max_tokens": tokens, "stream": True}
    body = {**asked, "stream_options": {"include_usage": True}}
    begun = time.perf_counter()
    first: float | None = None
    pieces: list[bytes] = []
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
        async for piece in answer.aiter_raw():
            first = first or time.perf_counter()
            pieces.append(piece)
    if answer.status_code != 200 or first is None:
        return None, ""
    events = [line[6:] for line in b"".join(pieces).split(b"\n") if line.startswith(b"data: {")]
    chunks = [json.loads(event) for event in events]
    said = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    usage = next(chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage"))
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    reason = answer.headers.get("x-router-decision", "").partition(";")[0]
    worker = answer.headers["x-router-worker"]
    return Turn(worker, first - begun, usage["prompt_tokens"], cached, begun - began, reason), said


async def play_all(url: str, load: Load, progress: Progress | None = None) -> list[list[Turn]]:
    """All conversations, begun at random moments."""
    began = time.perf_counter()
    rng = random.Random(load.seed)
    limits = httpx.Limits(max_connections=500, max_keepalive_connections=500)
    async with httpx.AsyncClient(timeout=120, trust_env=False, limits=limits) as client:

        async def one(number: int, start: float) -> list[Turn]:
            await asyncio.sleep(start)
            turns = await converse(client, url, number, load, random.Random(f"{load.seed}:{number}"), began)
            if progress is not None:
                progress.step()
            return turns

        starts = [rng.random() * load.arrival_seconds for _ in range(load.conversations)]
        return list(await asyncio.gather(*(one(number, start) for number, start in enumerate(starts))))


def judge(policy: str, played: Sequence[Sequence[Turn]], load: Load, workers: int) -> Result:
    """Shares and spread of a run."""
    pairs = [(before, after) for turns in played for before, after in itertools.pairwise(turns)]
    homes = Counter(turns[0].worker for turns in played if turns)
    firsts = [turns[0].seconds for turns in played if turns]
    follows = [after.seconds for _, after in pairs]
    prompt = sum(after.prompt_tokens for _, after in pairs)
    return Result(
        policy=policy,
        conversations=load.conversations,
        failed=sum(len(turns) < load.shape.turns for turns in played),
        follow_ups=len(pairs),
        kept=sum(before.worker == after.worker for before, after in pairs) / max(1, len(pairs)),
        spread=max(homes.values(), default=0) * workers / max(1, sum(homes.values())),
        ttft_first_ms=statistics.median(firsts) * 1e3 if firsts else 0.0,
        ttft_follow_ms=statistics.median(follows) * 1e3 if follows else 0.0,
        cached_share=sum(after.cached_tokens for _, after in pairs) / max(1, prompt),
    )


def run(policy: str, load: Load, *, workers: int = 4, replica_count: int = 2) -> Played:
    """One policy on a fleet of its own."""
    config = SimConfig(
        models=(MODEL,),
        prefill_tokens_per_second=40_000.0,
        decode_seconds_per_token=0.0005,
        enable_prompt_tokens_details=True,
        num_gpu_blocks=65_536,
    )
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        fleet = stack.enter_context(start_workers(workers, config))
        redis = stack.enter_context(RedisProcess(directory))
        flags = ["--policy", policy]
        urls = [worker.url for worker in fleet]
        routers: list[RouterProcess] = stack.enter_context(
            replicas(directory, replica_count, urls, redis_url=redis.url, flags=flags)
        )
        nginx = stack.enter_context(NginxProcess(directory, [router.port for router in routers]))
        with Progress(policy, load.conversations, "conversations") as progress:
            played = asyncio.run(play_all(nginx.url, load, progress))
    return Played(judge(policy, played, load, workers), played)


def main(argv: Sequence[str]) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=30.0, help="over which conversations begin")
    parser.add_argument("--policy", action="append", help="may be repeated (default: work, slack and power_of_two)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots and the table")
    options = parser.parse_args(argv)
    load = Load(conversations=options.conversations, arrival_seconds=options.seconds)
    runs = [run(policy, load) for policy in options.policy or ("work", "slack", "power_of_two")]
    results = [one.result for one in runs]
    if options.html is not None:
        from loadtest.spread_page import as_html

        options.html.write_text(as_html(runs, load))
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=1))
        return 0
    print(as_table(results))
    return 0


def as_table(results: Sequence[Result]) -> str:
    """The table in Markdown."""
    rows = ["| policy | follow-ups kept | conversations max/mean | first turn p50 | follow-up p50 | cached | failed |"]
    rows.append("|---|---|---|---|---|---|---|")
    rows += [
        f"| {result.policy} | {result.kept:.1%} | {result.spread:.2f} | {result.ttft_first_ms:.0f} ms "
        f"| {result.ttft_follow_ms:.0f} ms | {result.cached_share:.1%} | {result.failed} |"
        for result in results
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
