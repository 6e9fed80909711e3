"""The command line of `prefix-router replay`."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from router.cachemodel import CacheProfile, Rule
from router.flags import Parser
from router.replay.catalogue import GROUPS, UnknownRule, names_of
from router.replay.fleet import Scenario
from router.replay.generate import KINDS
from router.replay.holding import Hold
from router.replay.page import as_html
from router.replay.study import DEFAULT_REQUESTS, Plan, Workload, carry_out
from router.replay.tables import as_json, as_text
from router.replay.trace import TraceError
from router.replay.worker import Engine

HYBRID_BLOCK = 1_600
BROKEN = "a process of the replay died, most likely for want of memory (try fewer --jobs)"
PROFILES: dict[str, CacheProfile] = {
    "plain": CacheProfile(enabled=True),
    "open_block": CacheProfile(enabled=True, block_size=HYBRID_BLOCK, rule=Rule.OPEN_BLOCK),
    "checkpoints": CacheProfile(enabled=True, block_size=HYBRID_BLOCK, rule=Rule.CHECKPOINTS, retention=0),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `prefix-router replay`; 0 if it was played, 1 if a part was, 2 with one line on stderr if it could not be."""
    arguments = _parser().parse_args(argv)
    try:
        plan = _plan(arguments)
        study = carry_out(plan, arguments.jobs, _quiet if arguments.quiet else _note)
        if not study.cells:
            raise ValueError(BROKEN)
        sys.stdout.write(as_text(study))
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(as_json(study), indent=1) + "\n")
        if arguments.html is not None:
            arguments.html.write_text(as_html(study))
    except (TraceError, UnknownRule, OSError, ValueError) as error:
        sys.stderr.write(f"prefix-router replay: {error}\n")
        return 2
    if study.broken:
        sys.stderr.write(f"prefix-router replay: {BROKEN}; what was played until then is shown\n")
    return 1 if study.broken else 0


def _note(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _quiet(text: str) -> None:
    """Says nothing."""


def _plan(arguments: argparse.Namespace) -> Plan:
    traces = [*arguments.files, *(arguments.trace or ())]
    workloads = [Workload(path.stem, path, arguments.requests) for path in traces]
    workloads += [Workload(kind, None, arguments.requests) for kind in arguments.generate or ()]
    if not workloads:
        raise ValueError("nothing to replay: name a file of requests, or a kind of traffic with --generate")
    engine = Engine(
        prefill_rate=arguments.prefill_rate,
        running=arguments.running,
        cache_tokens=arguments.cache_tokens,
        profile=PROFILES[arguments.cache],
    )
    scenario = Scenario(
        workers=arguments.workers,
        engine=engine,
        replicas=arguments.replicas,
        delay=arguments.delay_ms / 1000,
        loss=arguments.loss,
        estimate_error=arguments.estimate_error,
        capacity_factor=arguments.capacity_factor,
        silent=arguments.silent,
        hold=Hold(arguments.hold, arguments.hold_seconds),
    )
    return Plan(
        tuple(workloads),
        tuple(names_of(arguments.policy)),
        arguments.load,
        arguments.seeds,
        scenario,
        arguments.warmup,
        arguments.capacity,
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="prefix-router replay",
        description="Replay a trace through the router's decision code and other routers' rules, "
        "against modelled workers.",
    )
    _add_traffic(parser)
    _add_fleet(parser)
    _add_faults(parser)
    add = parser.add_argument
    add("--json", type=Path, metavar="FILE", help="write all figures, of every seed, as JSON")
    add("--html", type=Path, metavar="FILE", help="write tables and plots as one page")
    add(
        "--jobs",
        metavar="N",
        type=_whole(1),
        default=os.cpu_count() or 1,
        help="processes (default: one for each core)",
    )
    add("--quiet", action="store_true", help="no progress on standard error")
    return parser


def _add_traffic(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", type=Path, nargs="*", metavar="FILE", help="as --trace FILE")
    add("--trace", type=Path, action="append", metavar="FILE", help="JSON lines: Mooncake's, or a decision file")
    add("--generate", choices=sorted(KINDS), action="append", help="made-up traffic; may be repeated, as --trace may")
    add(
        "--requests",
        type=_whole(10),
        metavar="N",
        help=f"at most so many of a trace; of made-up traffic about so many (default {DEFAULT_REQUESTS:,})",
    )
    add(
        "--policy",
        default="all",
        metavar="NAMES",
        help=f"rules, separated by commas; {', '.join(GROUPS)} name groups; @dense, @ladder or @whole behind one of "
        "the product's sets how deep it looks (default all)",
    )
    add("--load", type=_loads, default=(0.5, 0.7, 0.85), metavar="SHARES", help="of capacity (default 0.5,0.7,0.85)")
    add("--capacity", type=_number(0.0), metavar="RATE", help="requests/s that are full load (default: found out)")
    add("--seeds", type=_whole(1), default=3, metavar="N", help="replays of every cell (default 3)")
    add(
        "--warmup",
        type=_share,
        default=0.2,
        metavar="SHARE",
        help="first part of the trace's time that is not measured (default 0.2)",
    )


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    add, engine = parser.add_argument, Engine()
    add("--workers", type=_whole(1), default=8, metavar="N", help="modelled workers (default 8)")
    add(
        "--prefill-rate",
        type=_number(0.0),
        default=engine.prefill_rate,
        metavar="RATE",
        help="tokens/s that a worker computes of a prompt (default 8000)",
    )
    add("--running", type=_whole(1), default=engine.running, metavar="N", help="running at once on one (default 64)")
    add(
        "--cache-tokens",
        type=_whole(1024),
        default=engine.cache_tokens,
        metavar="N",
        help=f"tokens that a worker's cache holds (default {engine.cache_tokens:,})",
    )
    add(
        "--cache",
        choices=sorted(PROFILES),
        default="plain",
        help=f"kind of cache: plain attention, or a hybrid's blocks of {HYBRID_BLOCK:,} tokens that lose the last one "
        "or keep one checkpoint (default plain)",
    )


def _add_faults(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--replicas", type=_whole(1), default=1, metavar="N", help="routers; requests come to any (default 1)")
    add("--delay-ms", type=_number(-1.0), default=0.0, metavar="MS", help="of news between replicas (default 0)")
    add("--loss", type=_share, default=0.0, metavar="SHARE", help="of news that is lost (default 0)")
    add(
        "--estimate-error",
        type=_number(-1.0),
        default=0.0,
        metavar="SIGMA",
        help="log-normal error of estimated prompt tokens (default 0)",
    )
    add(
        "--capacity-factor",
        type=_number(0.0),
        default=1.0,
        metavar="FACTOR",
        help="what work believes a cache to hold, over what it holds (default 1)",
    )
    add(
        "--hold",
        type=_number(0.0),
        default=math.inf,
        metavar="TOKENS",
        help="the product's policies hold requests while all workers have more than so many tokens queued "
        "(default: never)",
    )
    add(
        "--hold-seconds",
        type=_number(0.0),
        default=Hold().seconds,
        metavar="S",
        help=f"for so long at most (default {Hold().seconds:g})",
    )
    add("--silent", type=_share, default=0.0, metavar="SHARE", help="of requests that are not streamed (default 0)")


def _whole(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be {least} or more")
        return value

    return read


def _number(above: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text)
        if not above < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be a finite number above {above:g}")
        return value

    return read


def _share(text: str) -> float:
    value = float(text)
    if not 0.0 <= value < 1.0:
        raise argparse.ArgumentTypeError("must be from 0 to below 1")
    return value


def _loads(text: str) -> tuple[float, ...]:
    loads = tuple(float(part) for part in text.split(","))
    if not all(0.0 < load <= 2.0 for load in loads):
        raise argparse.ArgumentTypeError("loads must be above 0 and at most 2")
    return tuple(sorted(set(loads)))
