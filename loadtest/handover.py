"""`python -m loadtest.handover`: the second turn of a conversation through another copy of the router than the first.

Two copies of each router stand before the same simulated workers. A turn counts as kept if its answer reports tokens
from the cache: it met the worker of the turn before. Several conversations go on at a time, so that there are loads to
choose by, and none meets a worker because every prompt goes to the first; by chance it is one in as many as there are.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from loadtest.bench.peers import SGLANG, VLLM, Package, command, environment
from loadtest.conversation import Shape, user_turns
from loadtest.fleet import ROOT, RedisProcess, free_port, replicas, until
from loadtest.simworker import SimConfig
from loadtest.simworker.process import start_workers

MODEL = "sim-model"
CONFIG = SimConfig(models=(MODEL,), enable_prompt_tokens_details=True, time_scale=0.2)
SHAPE = Shape(turns=2, first_tokens=1_000)
AT_ONCE = 8
PAUSE_SECONDS = 0.05  # what a person takes at least, and five times what news takes
START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Kept:
    """Second turns that met the worker of the first, through the same copy and through the other one."""

    name: str
    same: int
    other: int


def ask(client: httpx.Client, url: str, messages: Sequence[dict[str, str]]) -> dict[str, Any]:
    """One answer; raises httpx.HTTPError."""
    body = {"model": MODEL, "max_tokens": 4, "messages": list(messages)}
    answer = client.post(f"{url}/v1/chat/completions", json=body)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def is_kept(client: httpx.Client, first: str, second: str, seed: int) -> bool:
    """Hold a conversation of two turns through these copies."""
    opening, question = user_turns(seed, SHAPE)
    messages = [{"role": "user", "content": opening}]
    answer = ask(client, first, messages)
    messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    messages.append({"role": "user", "content": question})
    time.sleep(PAUSE_SECONDS)
    details = ask(client, second, messages)["usage"]["prompt_tokens_details"]
    return bool(details["cached_tokens"])


def play(name: str, copies: tuple[str, str], conversations: int) -> Kept:
    """So many conversations each way, all of them new, begun through either copy."""
    rng = random.Random(conversations)
    with httpx.Client(trust_env=False, timeout=60) as client, ThreadPoolExecutor(AT_ONCE) as pool:
        jobs: dict[bool, list[Future[bool]]] = {True: [], False: []}
        for seed in range(2 * conversations):
            first, second = rng.sample(copies, 2)
            same = seed % 2 == 0
            jobs[same].append(pool.submit(is_kept, client, first, first if same else second, seed))
        return Kept(name, *(sum(job.result() for job in jobs[same]) for same in (True, False)))


@contextmanager
def ours(folder: Path, workers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Two replicas over Redis."""
    with RedisProcess(folder) as redis, replicas(folder, 2, workers, redis_url=redis.url) as (one, two):
        yield one.url, two.url


def peers(package: Package) -> Callable[[Path, Sequence[str]], Any]:
    """Two processes of another router, `cache_aware`; each has all that it can be told of the workers."""

    @contextmanager
    def started(folder: Path, workers: Sequence[str]) -> Iterator[tuple[str, str]]:
        python = environment(ROOT / ".run" / "peers", package)
        with ExitStack() as stack:
            urls = [stack.enter_context(_peer(folder, python, package, workers)) for _ in range(2)]
            yield urls[0], urls[1]

    return started


@contextmanager
def _peer(folder: Path, python: Path, package: Package, workers: Sequence[str]) -> Iterator[str]:
    port = free_port()
    words = command(python, package, "cache_aware", port, free_port(), workers)
    with (folder / f"{package.name}-{port}.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            with httpx.Client(trust_env=False, timeout=5) as client:
                for _ in until(START_SECONDS, f"{package.title} to answer"):
                    if _answers(client, f"http://127.0.0.1:{port}"):
                        break
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(10)


def _answers(client: httpx.Client, url: str) -> bool:
    try:
        ask(client, url, [{"role": "user", "content": "Are you there?"}])
    except httpx.HTTPError:
        return False
    return True


SYSTEMS = {
    "ours": ("prefix-router", ours),
    "sglang": (f"{SGLANG.title}, cache_aware", peers(SGLANG)),
    "vllm": (f"{VLLM.title}, cache_aware", peers(VLLM)),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Play the chosen systems and print a table."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.handover", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--systems", default=",".join(SYSTEMS), help=f"of {', '.join(SYSTEMS)} (all)")
    parser.add_argument("--conversations", type=int, default=40, metavar="N", help="each way (40)")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="simulated workers (4)")
    arguments = parser.parse_args(argv)
    rows = ["| router | second turn through the same copy | through the other |", "| --- | --- | --- |"]
    for key in arguments.systems.split(","):
        title, start = SYSTEMS[key]
        with (
            tempfile.TemporaryDirectory() as folder,
            start_workers(arguments.workers, CONFIG) as workers,
            start(Path(folder), [worker.url for worker in workers]) as copies,
        ):
            kept = play(title, copies, arguments.conversations)
        rows.append(f"| {kept.name} | {kept.same} of {arguments.conversations} | {kept.other} |")
    print("\n".join(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
