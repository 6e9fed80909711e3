"""The main job, shown: one conversation over two replicas and two workers, and the same with a blind rule beside it."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from loadtest.conversation import Shape, TurnResult, format_table, play, user_turns
from loadtest.fleet import NginxProcess, RedisProcess, RouterProcess, find_nginx, find_redis, replicas
from loadtest.simworker import SimConfig
from loadtest.simworker.process import start_workers

# What the measured workers of the five-turn table did: about 2,400 prompt tokens a second, one short answer.
PREFILL_TOKENS_PER_SECOND = 2_400.0
SIMULATED = Shape(turns=5, first_tokens=5_600, growth_tokens=190, answer_tokens=16, bytes_per_token=6.0)
# A byte is a token to the tiny model of the real engine.
LLAMA_CPP = Shape(turns=5, first_tokens=12_300, growth_tokens=190, answer_tokens=8, bytes_per_token=1.0)


@dataclass(frozen=True)
class Fleet:
    """Workers to put the router in front of, and the conversation that suits them."""

    urls: list[str]
    shape: Shape
    what: str
    # The streams of llama.cpp say nothing of usage, its whole answers do.
    stream: bool = True


def main(argv: Sequence[str]) -> int:
    """`prefix-router demo`; the exit code says whether affinity worked."""
    options = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="prefix-router-") as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        try:
            fleet = stack.enter_context(_workers(options, directory))
            return _show(options, directory, fleet)
        except KeyboardInterrupt:
            return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/run", description=__doc__)
    parser.add_argument("--once", action="store_true", help="end after the tables")
    parser.add_argument("--worker", action="append", metavar="URL", help="a real vLLM server instead; may be repeated")
    parser.add_argument("--engine", choices=("simulated", "llama-cpp"), default="simulated", help="kind of workers")
    parser.add_argument("--model", metavar="NAME", help="model to talk to (default: the first that the workers list)")
    parser.add_argument("--turns", type=int, default=5, metavar="N", help="turns of the conversation")
    return parser


@contextlib.contextmanager
def _workers(options: argparse.Namespace, directory: Path) -> Iterator[Fleet]:
    if options.worker:
        yield Fleet(options.worker, SIMULATED, f"{len(options.worker)} workers of your own")
    elif options.engine == "llama-cpp":
        from loadtest.engines.llama_cpp import installed, start_llama_workers

        if not installed():
            sys.exit("The real engine needs an extra: pip install 'prefix-router[llama-cpp]' (compiles for minutes).")
        print("Starting two llama.cpp servers with a tiny random model ...", flush=True)
        with start_llama_workers(2, directory, threads=2) as servers:
            yield Fleet([server.url for server in servers], LLAMA_CPP, "2 llama.cpp servers", stream=False)
    else:
        config = SimConfig(
            models=("sim-model",),
            prefill_tokens_per_second=PREFILL_TOKENS_PER_SECOND,
            decode_seconds_per_token=0.005,
            enable_prompt_tokens_details=True,
        )
        with start_workers(2, config) as workers:
            yield Fleet([worker.url for worker in workers], SIMULATED, "2 simulated vLLM workers")


def _show(options: argparse.Namespace, directory: Path, fleet: Fleet) -> int:
    with contextlib.ExitStack() as stack:
        redis_url = None
        if find_redis():
            redis_url = stack.enter_context(RedisProcess(directory)).url
        else:
            print("No redis-server on this machine: one replica, which keeps its memory to itself.")
        count = 2 if redis_url else 1
        print(f"{fleet.what}, {count} replica{'s' * (count > 1)} of the router{' over Redis' * bool(redis_url)}.\n")
        routers = stack.enter_context(replicas(directory, count, fleet.urls, redis_url=redis_url))
        model = options.model or _first_model(routers[0])
        urls = [router.url for router in routers]
        shape = Shape(**{**_fields(fleet.shape), "turns": options.turns})
        results = _conversation(
            fleet, urls, model, 1, shape, "With prefix-router (each turn through the other replica):"
        )
        others = _blind(directory, fleet, model, shape)
        _compare(results, others)
        if options.once:
            return 0 if len({result.worker for result in results}) == 1 else 1
        _stay(stack, directory, routers, model)
    return 0


def _fields(shape: Shape) -> dict[str, int | float]:
    return {name: getattr(shape, name) for name in shape.__slots__}


def _first_model(router: RouterProcess) -> str:
    models = router.get("/v1/models")["data"]
    if not models:
        sys.exit("The workers list no models.")
    return str(models[0]["id"])


def _conversation(
    fleet: Fleet, urls: Sequence[str], model: str, seed: int, shape: Shape, title: str
) -> list[TurnResult]:
    print(title, flush=True)
    results = play(urls, user_turns(seed, shape), model, max_tokens=shape.answer_tokens, stream=fleet.stream)
    print(format_table(results) + "\n", flush=True)
    return results


def _blind(directory: Path, fleet: Fleet, model: str, shape: Shape) -> list[TurnResult]:
    """The same by chance; where chance kept one worker for all turns there is nothing to see, so it is tried again."""
    title = "The same by power of two choices, blind to caches:"
    with replicas(directory, 1, fleet.urls, flags=["--policy", "power_of_two"]) as blind:
        for seed in range(2, 5):
            results = _conversation(fleet, [blind[0].url], model, seed, shape, title)
            if len({result.worker for result in results}) > 1 or len(fleet.urls) == 1:
                break
            title = "By luck every turn met the same worker. Once more:"
    return results


def _compare(results: Sequence[TurnResult], others: Sequence[TurnResult]) -> None:
    mine = sum(result.seconds for result in results[1:])
    blind = sum(result.seconds for result in others[1:])
    if results[1:]:
        share = max(result.seconds for result in results[1:]) / results[0].seconds
        print(f"Follow-up turns took at most {share:.0%} of the first turn.")
        print(f"All follow-ups together: {mine:.2f} s with affinity, {blind:.2f} s without.\n", flush=True)


def _stay(stack: contextlib.ExitStack, directory: Path, routers: Sequence[RouterProcess], model: str) -> None:
    front = routers[0].url
    if find_nginx():
        nginx = stack.enter_context(NginxProcess(directory, [router.port for router in routers]))
        front = nginx.url
        httpx.get(f"{front}/health", trust_env=False, timeout=10).raise_for_status()
        print(f"nginx stands in front of the replicas at {front}")
    else:
        print("No nginx on this machine: talk to a replica directly.")
    print(
        f"""
Try it:
  curl {front}/v1/chat/completions -H 'content-type: application/json' -i \\
    -d '{{"model": "{model}", "max_tokens": 8, "messages": [{{"role": "user", "content": "Hello"}}]}}'
or with the openai client: OpenAI(base_url="{front}/v1", api_key="unused")

Dashboard: {routers[0].url}/router/dashboard
Metrics:   {" ".join(router.url + "/metrics" for router in routers)}
Decisions: {routers[0].url}/router/decisions

Ctrl-C ends everything.""",
        flush=True,
    )
    threading.Event().wait()
