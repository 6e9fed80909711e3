"""Compare policies of the router and other routers under the replay's traffic, live.

`python -m loadtest.live --minutes 5 --html live.html` starts each system in turn, and ends all of them. With
`--seconds` there are as many rounds as the minutes allow, and `--publish` shows the table in docs/replay.md.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import httpx

from loadtest.bench import machine, publish
from loadtest.fleet import ROOT
from loadtest.live.plan import Plan
from loadtest.live.report import BEGIN, END, as_html, as_json, as_table, as_text, said
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
    length = found.add_mutually_exclusive_group()
    length.add_argument("--rounds", type=int, default=DEFAULTS.rounds, help="with loads as long as the minutes allow")
    length.add_argument(
        "--seconds", type=float, metavar="S", help="of a load, with as many rounds as the minutes allow"
    )
    found.add_argument("--rate", type=float, default=DEFAULTS.rate, help="requests a second, modelled")
    found.add_argument("--speed", type=float, default=DEFAULTS.speed, help="modelled seconds in one second")
    found.add_argument("--turns", type=int, default=DEFAULTS.turns, help="of a session at most")
    found.add_argument("--seed", type=int, default=DEFAULTS.seed)
    found.add_argument("--systems", default=",".join(NAMES), help="names, separated by commas")
    found.add_argument("--peers", type=Path, default=ROOT / ".run" / "peers", help="where other routers are installed")
    found.add_argument("--json", type=Path, metavar="FILE")
    found.add_argument("--html", type=Path, metavar="FILE")
    found.add_argument("--publish", action="store_true", help="show the results in docs/replay.md")
    return found


def plan_of(options: argparse.Namespace, systems: int) -> Plan:
    """The plan asked for, for so many systems; raises ValueError."""
    for name in ("minutes", "rounds", "rate", "speed", "turns"):
        if not 0 < getattr(options, name) < 1e6:
            raise ValueError(f"--{name} must be above 0")
    plan = Plan(
        kind=options.kind if options.trace is None else options.trace.stem,
        rate=options.rate,
        speed=options.speed,
        turns=options.turns,
        rounds=options.rounds,
        minutes=options.minutes,
        seed=options.seed,
    )
    return plan.fitted(systems) if options.seconds is None else plan.repeated(options.seconds)


def main(argv: Sequence[str]) -> int:
    """Command line."""
    options = parser().parse_args(argv)
    names = options.systems.split(",")
    try:
        plan = plan_of(options, len(names))
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
    facts = {"date": time.strftime("%Y-%m-%d"), **machine.describe(), **dict(said(plan, outcomes))}
    print("\n".join(f"{name}: {value}" for name, value in facts.items()), as_table(outcomes), sep="\n\n")
    if options.publish:
        page = ROOT / "docs" / "replay.md"
        page.write_text(publish.replaced(page.read_text(), as_text(facts, outcomes), BEGIN, END))
    return 0


def _end(number: int, _: object) -> NoReturn:
    """Leave through all contexts, so that every process that was started ends too."""
    sys.exit(128 + number)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
