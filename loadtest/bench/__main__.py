"""Command line: `python -m loadtest.bench [--quick]`."""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from loadtest.bench import machine, publish, table
from loadtest.bench.page import as_html
from loadtest.bench.plan import FULL, QUICK, Plan
from loadtest.bench.plot import draw
from loadtest.bench.session import Outcome, run
from loadtest.bench.systems import NAMES, OURS, Places
from loadtest.bench.targets import judge
from loadtest.fleet import ROOT


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Cost and latency of this router and its peers.")
    parser.add_argument("--quick", action="store_true", help="within three minutes instead of fifteen")
    parser.add_argument("--systems", default=",".join(NAMES), help="which, between commas (default: %(default)s)")
    parser.add_argument("--rounds", type=int, help="other than the plan's")
    parser.add_argument("--workers", type=int, default=2, help="fast workers (default: 2)")
    parser.add_argument("--no-pin", action="store_true", help="do not keep proxies and load on cores of their own")
    parser.add_argument("--cache", type=Path, default=ROOT / ".run" / "peers", help="environments of the peers")
    parser.add_argument("--compiled", type=Path, help="the router as scripts/compile made it (default: the source)")
    parser.add_argument("--out", type=Path, default=ROOT / ".run" / "bench", help="directory for results and logs")
    parser.add_argument("--publish", action="store_true", help="show the results in docs/performance.md")
    options = parser.parse_args(argv)
    options.names = [name for name in options.systems.split(",") if name]
    if unknown := [name for name in options.names if name not in NAMES]:
        parser.error(f"no such system: {', '.join(unknown)}")
    if not options.names or options.workers < 1 or (options.rounds is not None and options.rounds < 1):
        parser.error("at least one system, one worker and one round are needed")
    return options


def main(argv: Sequence[str]) -> int:
    """Run, write, and say where."""
    options = _arguments(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    began = time.monotonic()
    directory: Path = options.out / time.strftime("%Y-%m-%d-%H%M%S")
    directory.mkdir(parents=True)

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:4.0f} s] {text}", file=sys.stderr, flush=True)

    plan: Plan = QUICK if options.quick else FULL
    if options.rounds:
        plan = dataclasses.replace(plan, rounds=options.rounds)
    facts = {"date": time.strftime("%Y-%m-%d"), **machine.describe(), "load before": machine.load_average()}
    places = Places(directory, options.cache, options.compiled)
    outcome = run(plan, options.names, places, options.workers, say, pin=not options.no_pin)
    facts |= {"load after": machine.load_average(), "rounds": str(outcome.rounds), "workers": str(options.workers)}
    text = _write(directory, outcome, facts)
    print(text)
    if options.publish:
        publish.to_documentation(ROOT, directory, text)
    say(f"results are in {directory}")
    return 1 if outcome.missing else 0


def _write(directory: Path, outcome: Outcome, facts: dict[str, str]) -> str:
    verdicts = judge(outcome.samples, OURS)
    text = table.report(outcome.samples, outcome.titles, verdicts, facts)
    content = {
        "facts": facts,
        "systems": outcome.titles,
        "missing": outcome.missing,
        "targets": [dataclasses.asdict(verdict) for verdict in verdicts],
        "rounds": outcome.samples.as_dict(),
    }
    publish.write_json(directory / "result.json", content)
    (directory / "result.md").write_text(text + "\n")
    (directory / "result.html").write_text(as_html(outcome.samples, outcome.titles, text))
    if not draw(outcome.samples, outcome.titles, directory / publish.PICTURE):
        print("no plot: matplotlib is missing (extra: bench)", file=sys.stderr)
    return text


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
