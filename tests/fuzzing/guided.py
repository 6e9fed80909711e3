"""`scripts/fuzz --guided`: the same targets, led by coverage with atheris, which has an environment of its own.

Inputs that reach something new are kept in a working corpus, and those that cross lines of the router in an order that
no file of the repository's corpus does are offered as new files of it, the smallest first.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import random
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tests.fuzzing.__main__ import MOST_FINDINGS, SLOW, fault, is_slow
from tests.fuzzing.mutate import mutated
from tests.fuzzing.targets import CORPUS, TARGETS, Target, corpus

ROUTER: Final = str(Path(__file__).resolve().parents[2] / "router")
LONGEST: Final = 8192  # bytes of an input; longer ones find nothing that these do not
LARGEST: Final = 2048  # bytes of a file that is offered
WORK: Final = Path(".run/fuzz")
Arc = tuple[str, int, int]


def seed_of(data: bytes) -> int:
    """The draws of an input are its own, so that it always does the same."""
    return zlib.crc32(data)


class Watcher:
    """Tries inputs at one target; each kind of finding is said once, and its inputs are kept."""

    def __init__(self, name: str, seconds: float, keep: Path) -> None:
        self.name = name
        self.end = time.monotonic() + seconds
        self.target = TARGETS[name]
        self.keep = keep
        self.tried = 0
        self.longest = 0.0
        self.findings: dict[str, int] = {}

    def __call__(self, data: bytes) -> None:
        began = time.process_time()
        found = fault(self.target, seed_of(data), data)
        spent = time.process_time() - began
        self.tried, self.longest = self.tried + 1, max(self.longest, spent)
        if found is None and spent > SLOW and is_slow(self.target, seed_of(data), data):
            found = "too slow"
        if found is not None:
            self._note(found, data)
        if time.monotonic() > self.end:
            self.sum_up()
            os._exit(0)  # libFuzzer's own end would leave out the interpreter's

    def sum_up(self) -> None:
        """What came of all inputs."""
        line = f"{self.name}: {self.tried:,} inputs, the longest {self.longest * 1e3:.0f} ms"
        _say(f"{line}, {len(self.findings)} kinds of findings")

    def _note(self, found: str, data: bytes) -> None:
        kind = found.split(": ")[0]
        self.findings[kind] = count = self.findings.get(kind, 0) + 1
        if count <= MOST_FINDINGS:
            path = self.keep / f"{self.name}-{hashlib.sha256(data).hexdigest()[:12]}"
            path.write_bytes(data)
        if count == 1:
            _say(f"{self.name}: {found} ({path})")


def run_one(atheris: Any, name: str, seconds: int, keep: Path, place: Path) -> None:
    """Fuzz one target in this process, which ends with it."""
    watcher = Watcher(name, seconds, keep)
    seeds = list(corpus(name).values())

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            return bytes(atheris.Mutate(data, most))
        return mutated(rng, [data, rng.choice(seeds)])[:most]

    # Inputs of findings are kept by name here, so nothing is a crash to libFuzzer.
    # It also measures by the wall's clock, which says more about the machine than about an input.
    flags = [f"-max_len={LONGEST}", "-rss_limit_mb=2048", "-timeout=600", "-report_slow_units=3600", "-verbosity=0"]
    words = [sys.argv[0], *flags, f"-artifact_prefix={keep}/", str(place), str(CORPUS / name)]
    atheris.Setup(words, watcher, custom_mutator=mutate)
    atheris.Fuzz()


# -- what the repository's corpus lacks ----------------------------------------------------------------------------


def arcs_of(target: Target, data: bytes) -> frozenset[Arc]:
    """Pairs of lines of the router that follow one another while it reads an input."""
    seen: set[Arc] = set()

    def follow(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(ROUTER):
            return None
        file, before = frame.f_code.co_filename, [0]

        def line(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
            if event == "line":
                seen.add((file, before[0], frame.f_lineno))
                before[0] = frame.f_lineno
            return line

        return line

    sys.settrace(follow)
    try:
        fault(target, seed_of(data), data)
    finally:
        sys.settrace(None)
    return frozenset(seen)


def lacking(target: Target, known: Iterable[bytes], found: Iterable[bytes]) -> list[bytes]:
    """Of what was found, the inputs that do what none that is known does, the smallest first."""
    seen = set(itertools.chain.from_iterable(arcs_of(target, data) for data in known))
    new = []
    for data in sorted(found, key=len):
        more = arcs_of(target, data) - seen
        if more:
            seen |= more
            new.append(data)
    return new


def offer(name: str, place: Path) -> int:
    """Add to the repository's corpus what it lacks of a working corpus; how many files these are."""
    found = [path.read_bytes() for path in place.iterdir() if 0 < path.stat().st_size <= LARGEST]
    new = lacking(TARGETS[name], corpus(name).values(), found)
    for data in new:
        (CORPUS / name / f"found-{hashlib.sha256(data).hexdigest()[:8]}").write_bytes(data)
    return len(new)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(argv: Sequence[str]) -> int:
    """Command line; each target has a process of its own, since libFuzzer ends the one that it runs in."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz --guided", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--minutes", type=float, default=5.0, help="in all")
    parser.add_argument("--keep", type=Path, default=WORK, help="where inputs of findings and working corpora go")
    parser.add_argument("--grow", action="store_true", help="add to the corpus what it lacks")
    options = parser.parse_args(argv)
    names = options.targets or list(TARGETS)
    if unknown := set(names) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    before = set(options.keep.glob("*-*")) if options.keep.is_dir() else set()
    for name in names:
        place = options.keep / "corpus" / name
        place.mkdir(parents=True, exist_ok=True)
        seconds = str(int(options.minutes * 60 / len(names)))
        command = [sys.executable, "-m", "tests.fuzzing.instrumented", name, seconds, str(options.keep), str(place)]
        done = subprocess.run(command, check=False)
        if done.returncode != 0:
            _say(f"{name}: the fuzzer ended with {done.returncode}")
        if options.grow:
            _say(f"{name}: {offer(name, place)} files more in the corpus")
    return 1 if set(options.keep.glob("*-*")) - before else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
