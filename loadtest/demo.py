"""The main job, shown: one conversation over two replicas and two workers, and the same with a blind rule beside it."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from loadtest.conversation import Shape, TurnResult, format_table, play, user_turns
from loadtest.fleet import NginxProcess, RedisProcess, RouterProcess, find_nginx, find_redis, replicas
from loadtest.simworker import SimConfig
from loadtest.simworker.process import start_workers
from router.flags import Parser
from router.settings import normalise_worker_url

# How long workers of one's own may take to answer.
PATIENCE_SECONDS = 10.0
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
    if importlib.util.find_spec("openai") is None:
        sys.exit("The conversation needs the openai client: pip install 'prefix-router[demo]'.")
    from openai import OpenAIError

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="prefix-router-") as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        try:
            fleet = stack.enter_context(_workers(options, directory))
            return _show(options, directory, fleet)
        except KeyboardInterrupt:
            return 0
        except OpenAIError as error:
            sys.exit(f"The conversation broke off: {error}")
        except (RuntimeError, TimeoutError) as error:
            sys.exit(f"The demo can't go on: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="scripts/run", description=__doc__)
    parser.add_argument("--once", action="store_true", help="end after the tables")
    parser.add_argument(
        "--worker", type=_worker_url, action="append", metavar="URL", help="a real vLLM server instead; may be repeated"
    )
    parser.add_argument("--engine", choices=("simulated", "llama-cpp"), default="simulated", help="kind of workers")
    parser.add_argument("--model", metavar="NAME", help="model to talk to (default: the first that the workers list)")
    parser.add_argument("--turns", type=_turns, default=5, metavar="N", help="turns of the conversation")
    return parser


def _worker_url(text: str) -> str:
    try:
        return normalise_worker_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _turns(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < len(text) <= 4 and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to 9999")
    return int(text)


@contextlib.contextmanager
def _workers(options: argparse.Namespace, directory: Path) -> Iterator[Fleet]:
    if options.worker:
        _wait_for(options.worker)
        yield Fleet(options.worker, SIMULATED, f"{_counted(len(options.worker), 'worker')} of your own")
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


def _wait_for(urls: Sequence[str]) -> None:
    """Until every one of the workers answers; ends the demo with the name of one that does not."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    for url in urls:
        while trouble := _trouble(url):
            if time.monotonic() > deadline:
                sys.exit(f"{url} {trouble}. Gave up after {PATIENCE_SECONDS:.0f} s.")
            time.sleep(0.2)


def _trouble(url: str) -> str | None:
    try:
        status = httpx.get(f"{url}/v1/models", trust_env=False, timeout=2).status_code
    except httpx.HTTPError as error:
        return f"does not answer ({error})"
    return None if status == 200 else f"answers /v1/models with {status}"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


def _show(options: argparse.Namespace, directory: Path, fleet: Fleet) -> int:
    with contextlib.ExitStack() as stack:
        redis_url = None
        if find_redis():
            redis_url = stack.enter_context(RedisProcess(directory)).url
        else:
            print("No redis-server on this machine: one replica, which keeps its memory to itself.")
        count = 2 if redis_url else 1
        print(f"{fleet.what}, {_counted(count, 'replica')} of the router{' over Redis' * bool(redis_url)}.\n")
        routers = stack.enter_context(replicas(directory, count, fleet.urls, redis_url=redis_url))
        model = _model(routers[0], options.model)
        urls = [router.url for router in routers]
        shape = Shape(**{**_fields(fleet.shape), "turns": options.turns})
        title = f"With prefix-router{' (each turn through the other replica)' * (count > 1)}:"
        results = _conversation(fleet, urls, model, 1, shape, title)
        others = _blind(directory, fleet, model, shape)
        _compare(results, others)
        if options.once:
            return 0 if len({result.worker for result in results}) == 1 else 1
        _stay(stack, directory, routers, model)
    return 0


def _fields(shape: Shape) -> dict[str, int | float]:
    return {name: getattr(shape, name) for name in shape.__slots__}


def _model(router: RouterProcess, wanted: str | None) -> str:
    models = [str(card["id"]) for card in router.get("/v1/models")["data"]]
    if not models:
        sys.exit("The workers list no models.")
    if wanted is not None and wanted not in models:
        sys.exit(f"No worker serves {wanted}; there is {', '.join(models)}.")
    return wanted or models[0]


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

Each replica shows its own part:
Dashboard: {_on_each(routers, "/router/dashboard")}
Metrics:   {_on_each(routers, "/metrics")}
Decisions: {_on_each(routers, "/router/decisions")}

Ctrl-C ends everything.""",
        flush=True,
    )
    threading.Event().wait()


def _on_each(routers: Sequence[RouterProcess], path: str) -> str:
    return " ".join(router.url + path for router in routers)
