"""`python -m loadtest.soak --minutes N`: exit code 1 when something leaks."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadtest.soak.report import picture, tables, verdict
from loadtest.soak.run import Findings, Plan, deployed


async def soak(plan: Plan) -> Findings:
    """One run in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        os.chmod(name, 0o711)  # nginx, started as root, works as another user
        async with deployed(Path(name), plan) as run:
            return await run.run()


def main(argv: Sequence[str]) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--lanes", type=int, default=8, help="clients at a time")
    parser.add_argument(
        "--replica-every", type=float, default=120.0, metavar="SECONDS", help="between ends of a replica"
    )
    parser.add_argument("--plot", type=Path, help="where the SVG goes")
    parser.add_argument("--data", type=Path, help="where everything that was found goes, as JSON")
    options = parser.parse_args(argv)
    plan = Plan(seconds=options.minutes * 60, lanes=options.lanes, replica_every=options.replica_every)
    found = asyncio.run(soak(plan))
    if options.data:
        options.data.write_bytes(msgspec.json.encode(found))
    if options.plot:
        options.plot.write_text(picture(found))
    print(tables(found))
    wrong = verdict(found)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
