"""`python -m tests.mutate MODULE... --with MAP`: small faults in modules, one at a time; those that no test notices.

First, once: `python -m tests.mutate --map MAP tests/core tests/edges`, which writes down which test runs which line.
A mutant meets the tests that run its line, as many as there is time for. Tests with processes of the router, in
tests/whole, do not see it, nor do objects that are made at import see faults in how they are made. A survivor is a
missing test, dead code, or a change that means the same.
"""

from __future__ import annotations

import argparse
import ast
import gc
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType

import pytest

from tests.mutate.covering import PYTEST, Covering, record
from tests.mutate.sites import Mutant, compiled, mutants
from tests.mutate.trial import Program, Trial, changed, file_of, prepare, run_anew


def sample(found: list[Mutant], most: int, seed: int) -> list[Mutant]:
    """So many of a module's mutants, the same ones for the same seed."""
    chosen = random.Random(seed).sample(found, min(most, len(found)))
    return sorted(chosen, key=lambda mutant: mutant.line)


@dataclass(slots=True)
class Case:
    """One mutant, and what it takes to try it."""

    module: str
    mutant: Mutant
    code: CodeType
    function: CodeType | None


def cases_of(module: str, options: argparse.Namespace) -> list[Case]:
    """The chosen mutants of a module."""
    file = file_of(module)
    tree = ast.parse(Path(file).read_text())
    cases = []
    for mutant in sample(mutants(tree), options.most, options.seed):
        code = compiled(tree, mutant, file)
        cases.append(Case(module, mutant, code, changed(tree, code, file)))
    return cases


class Run:
    """Mutants at work, some at a time: first against few tests, and the survivors against all."""

    def __init__(self, covering: Covering, options: argparse.Namespace) -> None:
        self.outcomes: dict[str, Counter[str]] = {module: Counter() for module in options.what}
        self._covering, self._options = covering, options
        self._program: Program | None = None
        self._waiting: list[tuple[Case, float]] = []
        self._running: list[tuple[Trial, Case, float]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In place of running all tests once."""
        self._program = Program(session.items)
        gc.collect()
        gc.freeze()
        self.go([case for module in self._options.what for case in cases_of(module, self._options) if case.function])
        return True

    def go(self, cases: list[Case]) -> None:
        """Try them all; those that are not killed are printed as they appear."""
        self._waiting = [(case, self._options.seconds / 8) for case in reversed(cases)]
        while self._waiting or self._running:
            while self._waiting and len(self._running) < self._options.jobs:
                self._begin(*self._waiting.pop())
            for trial, case, most in [entry for entry in self._running if entry[0].result()]:
                self._running.remove((trial, case, most))
                if trial.result() == "survived" and most < self._options.seconds:
                    self._waiting.append((case, self._options.seconds))
                else:
                    self._count(trial.result() or "", case)
            time.sleep(0.005)

    def _begin(self, case: Case, most: float) -> None:
        tests, seconds = self._covering.of(case.module, case.mutant.line, most)
        if not tests:
            self._count("uncovered", case)
            return
        function = case.function
        if function is not None and self._program is not None:
            work = partial(self._program.run, tests, function)
        else:
            work = partial(run_anew, file_of(case.module), case.code, tests)
        self._running.append((Trial(work, 5 * seconds + 60), case, most))

    def _count(self, outcome: str, case: Case) -> None:
        self.outcomes[case.module][outcome] += 1
        if outcome != "killed":
            say(f"{outcome} {case.module}:{case.mutant}")


def say(line: str) -> None:
    """Onto the terminal, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def rate(outcomes: Counter[str]) -> str:
    """How many of the mutants were noticed: a test that never ends is noticed too."""
    total = outcomes.total()
    noticed = outcomes["killed"] + outcomes["timeout"]
    return f"{noticed}/{total} ({100 * noticed / max(total, 1):.0f} %)"


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 if a mutant survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", nargs="+", help="modules (router/policy.py); with --map, tests")
    parser.add_argument("--map", type=Path, help="run these tests under coverage and write the map to this file")
    parser.add_argument("--with", dest="maps", type=Path, action="append", default=[], help="the map to go by")
    parser.add_argument("--most", type=int, default=60, help="mutants of one module (default 60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4, help="of tests for one mutant (default 4)")
    parser.add_argument("--collect", nargs="+", default=["tests/core", "tests/edges"], help="where the tests are")
    parser.add_argument("--imports", action="store_true", help="faults in what runs at import, in place of the others")
    options = parser.parse_args(argv)
    if options.map:
        record(options.what, options.map)
        return 0
    prepare()
    run = Run(Covering.read(*options.maps), options)
    if options.imports:
        run.go([case for module in options.what for case in cases_of(module, options) if not case.function])
    else:
        pytest.main([*PYTEST, "-s", *options.collect], plugins=[run])
    for module, outcomes in run.outcomes.items():
        say(f"noticed {rate(outcomes)} {module}")
    total = sum(run.outcomes.values(), Counter())
    say(f"noticed {rate(total)} of all: {dict(total)}")
    return int(total["survived"] + total["uncovered"] > 0)


if __name__ == "__main__":
    sys.exit(main())
