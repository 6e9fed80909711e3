"""Compare policies of the router and other routers under the replay's traffic, live.

`python -m loadtest.live --minutes 5 --html live.html` starts each system in turn, and ends all of them.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import httpx

from loadtest.fleet import ROOT
from loadtest.live.plan import Plan
from loadtest.live.report import as_html, as_json, as_table, said
from loadtest.live.run import compare
from loadtest.live.systems import NAMES, missing
from router.replay.generate import KINDS
from router.replay.trace import Trace, TraceError, read_trace

DEFAULTS = Plan()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="python -m loadtest.live", description=__doc__)
    source = found.add_mutually_exclusive_group()
    source.add_argument("--kind", choices=sorted(KINDS), default=DEFAULTS.kind, help="traffic that is made up")
    source.add_argument("--trace", type=Path, metavar="FILE", help="recorded traffic, of the replay's forms")
    found.add_argument("--minutes", type=float, default=DEFAULTS.minutes, help="for everything together")
    found.add_argument("--rounds", type=int, default=DEFAULTS.rounds)
    found.add_argument("--rate", type=float, default=DEFAULTS.rate, help="requests a second, modelled")
    found.add_argument("--speed", type=float, default=DEFAULTS.speed, help="modelled seconds in one second")
    found.add_argument("--turns", type=int, default=DEFAULTS.turns, help="of a session at most")
    found.add_argument("--seed", type=int, default=DEFAULTS.seed)
    found.add_argument("--systems", default=",".join(NAMES), help="names, separated by commas")
    found.add_argument("--peers", type=Path, default=ROOT / ".run" / "peers", help="where other routers are installed")
    found.add_argument("--json", type=Path, metavar="FILE")
    found.add_argument("--html", type=Path, metavar="FILE")
    return found


def plan_of(options: argparse.Namespace) -> Plan:
    """The plan asked for; raises ValueError."""
    for name in ("minutes", "rounds", "rate", "speed", "turns"):
        if not 0 < getattr(options, name) < 1e6:
            raise ValueError(f"--{name} must be above 0")
    return Plan(
        kind=options.kind if options.trace is None else options.trace.stem,
        rate=options.rate,
        speed=options.speed,
        turns=options.turns,
        rounds=options.rounds,
        minutes=options.minutes,
        seed=options.seed,
    )


def main(argv: Sequence[str]) -> int:
    """Command line."""
    options = parser().parse_args(argv)
    names = options.systems.split(",")
    try:
        plan = plan_of(options).fitted(len(names))
        if unknown := set(names) - set(NAMES):
            raise ValueError(f"unknown systems: {', '.join(sorted(unknown))}")
        if lacking := missing(names):
            raise ValueError(f"not installed: {', '.join(lacking)}")
        trace: Trace | None = None if options.trace is None else read_trace(options.trace)
        signal.signal(signal.SIGTERM, _end)
        outcomes = compare(plan, names, options.peers, _say, trace)
    except (ValueError, TraceError, RuntimeError, TimeoutError, OSError, httpx.HTTPError) as error:
        _say(str(error))
        return 2
    if options.json is not None:
        options.json.write_text(as_json(plan, outcomes))
    if options.html is not None:
        options.html.write_text(as_html(plan, outcomes))
    print("\n".join(f"{name}: {value}" for name, value in said(plan, outcomes)), as_table(outcomes), sep="\n\n")
    return 0


def _end(number: int, _: object) -> NoReturn:
    """Leave through all contexts, so that every process that was started ends too."""
    sys.exit(128 + number)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
