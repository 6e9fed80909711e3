"""`python -m tests.fuzzing --minutes N`: mutations of the corpus against every target; exit code 1 with findings.

Each finding is written to a file, from which a test of the corpus can be made. An input is too slow when it takes more
than `SLOW` seconds of this process's CPU, three times in a row.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.fuzzing.mutate import mutated
from tests.fuzzing.targets import TARGETS, Target, corpus

SLOW = 1.0
MOST_FINDINGS = 20  # of one kind at one target


def fault(target: Target, seed: int, data: bytes) -> str | None:
    """What went wrong with an input, and where; None if nothing did."""
    try:
        target(random.Random(seed), data)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {str(error)[:120]}"
    return None


def is_slow(target: Target, seed: int, data: bytes) -> bool:
    """Whether it takes too long again and again."""
    return min(_seconds(target, seed, data) for _ in range(3)) > SLOW


def _seconds(target: Target, seed: int, data: bytes) -> float:
    began = time.process_time()
    fault(target, seed, data)
    return time.process_time() - began


def fuzz(name: str, seconds: float, seed: int, keep: Path) -> tuple[int, float, Counter[str]]:
    """Inputs tried at one target, the longest time of one, and the findings by kind."""
    target, rng = TARGETS[name], random.Random(seed)
    seeds = list(corpus(name).values())
    findings: Counter[str] = Counter()
    tried, longest = 0, 0.0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        data, own = mutated(rng, seeds), rng.getrandbits(32)
        began = time.process_time()
        found = fault(target, own, data)
        spent = time.process_time() - began
        tried, longest = tried + 1, max(longest, spent)
        if found is None and spent > SLOW and is_slow(target, own, data):
            found = "too slow"
        if found is not None:
            kind = found.split(": ")[0]
            findings[kind] += 1
            if findings[kind] <= MOST_FINDINGS:
                path = keep / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
                path.write_bytes(data)
            if findings[kind] == 1:
                _say(f"{name}: {found} (seed {own}, {path})")
    return tried, longest, findings


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(argv: Sequence[str]) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--minutes", type=float, default=5.0, help="in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=Path(".run/fuzz"), help="where inputs of findings go")
    options = parser.parse_args(argv)
    names = options.targets or list(TARGETS)
    if unknown := set(names) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    options.keep.mkdir(parents=True, exist_ok=True)
    wrong = 0
    for name in names:
        tried, longest, findings = fuzz(name, options.minutes * 60 / len(names), options.seed, options.keep)
        wrong += findings.total()
        _say(f"{name}: {tried:,} inputs, the longest {longest * 1e3:.0f} ms, {len(findings)} kinds of findings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
