"""The catalogue of faults: which tests provoke what, and the table that a run of them makes.

`python -m tests.catalogue` runs them all and writes the table into docs/reliability.md; a test compares ids with tests.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
import textwrap
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests import invariants

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- catalogue: made by `python -m tests.catalogue` -->", "<!-- end of catalogue -->"
TITLES = {"users": "From bug reports on other routers", "attacks": "Faults and attacks"}
_IDS = re.compile(r"test_((?:[a-z]{1,2}\d+_)+)")


@dataclass
class Case:
    """One row: `tests` are `file::function`, relative to the folder of the tests."""

    id: str
    section: str
    fault: str
    seen: str
    tests: set[str] = field(default_factory=set)
    pure: dict[str, Any] = field(default_factory=dict)


def is_case(path: Path, name: str) -> bool:
    """Whether a test function belongs to the catalogue."""
    if not path.is_relative_to(TESTS):
        return False
    return bool(ids_of(name)) or f"{path.relative_to(TESTS).as_posix()}::{name}" in _listed()


@cache
def _written() -> dict[str, dict[str, dict[str, Any]]]:
    written: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load((TESTS / "data" / "catalogue.yml").read_text())
    return written


@cache
def _listed() -> frozenset[str]:
    return frozenset(test for rows in _written().values() for row in rows.values() for test in row.get("tests", ()))


def functions() -> Iterator[tuple[str, str]]:
    """File and name of every test function."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield path.relative_to(TESTS).as_posix(), node.name


def ids_of(name: str) -> list[str]:
    """The ids that a test's name begins with: test_h1_h2_... is for H1 and H2."""
    found = _IDS.match(name)
    return found[1].rstrip("_").upper().split("_") if found else []


def load() -> tuple[dict[str, Case], list[str]]:
    """All cases with their tests, and what is wrong with the list."""
    cases = {
        name: Case(name, section, row["fault"], row["seen"], set(row.get("tests", ())), row.get("pure", {}))
        for section, rows in _written().items()
        for name, row in rows.items()
    }
    there = set()
    problems = []
    for file, name in functions():
        there.add(f"{file}::{name}")
        for each in ids_of(name):
            if each in cases:
                cases[each].tests.add(f"{file}::{name}")
            else:
                problems.append(f"{file}::{name} names {each}, which is not in the catalogue")
    for case in cases.values():
        problems += [f"{case.id}: there is no {test}" for test in sorted(case.tests - there)]
        if not case.tests:
            problems.append(f"{case.id} has no test")
        if any(test.startswith("core/") for test in case.tests) and not case.pure:
            problems.append(f"{case.id}: which invariants can its pure code break, and why no others?")
    return cases, problems


def run(cases: dict[str, Case]) -> str:
    """Run every test of the catalogue; what JUnit says of it."""
    wanted = sorted({f"tests/{test}" for case in cases.values() for test in case.tests})
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", f"--junitxml={report}", *wanted]
        subprocess.run(command, cwd=ROOT, check=False, timeout=1200)
        return report.read_text()


def outcomes(report: str) -> dict[str, list[str]]:
    """What a JUnit report says of each test function, one word for each set of parameters."""
    found: dict[str, list[str]] = {}
    for name, case in _reported(report):
        children = {child.tag for child in case}
        outcome = "failed" if children & {"failure", "error"} else "skipped" if "skipped" in children else "holds"
        found.setdefault(name, []).append(outcome)
    return found


def looked_at(report: str) -> dict[str, set[int]]:
    """Which invariants were looked at after each test function."""
    found: dict[str, set[int]] = {}
    for name, case in _reported(report):
        seen = found.setdefault(name, set())
        for each in case.iter("property"):
            if each.attrib["name"] == "invariants":
                seen.update(map(int, each.attrib["value"].split()))
    return found


def _reported(report: str) -> Iterator[tuple[str, ElementTree.Element]]:
    for case in ElementTree.fromstring(report).iter("testcase"):
        file = case.attrib["classname"].removeprefix("tests.").replace(".", "/") + ".py"
        yield f"{file}::{case.attrib['name'].partition('[')[0]}", case


def verdict(case: Case, found: dict[str, list[str]]) -> str:
    """Holds only if every test of the case ran and passed."""
    seen = [outcome for test in case.tests for outcome in found.get(test, ["not run"])]
    worst = next((each for each in ("failed", "not run", "skipped") if each in seen), None)
    return worst or f"holds ({len(seen)})"


def after(case: Case, looked: dict[str, set[int]]) -> str:
    """Which invariants were looked at after the case; those that its pure code asserts stand behind."""
    numbers = set().union(*(looked.get(test, set()) for test in case.tests))
    said = [ranges(numbers)] if numbers else []
    if case.pure:
        said.append(f"pure: {ranges(case.pure['holds'])}")
    return "; ".join(said) or "none"


def ranges(numbers: Iterable[int]) -> str:
    """1, 2, 3 and 5 as 1–3, 5."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][-1] == number - 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return ", ".join(str(span[0]) if len(span) == 1 else f"{span[0]}–{span[-1]}" for span in spans)


def table(cases: dict[str, Case], report: str) -> str:
    """The section of the page between its two marks."""
    found, looked = outcomes(report), looked_at(report)
    lines = []
    for section, title in TITLES.items():
        lines += [f"### {title}", "", "| id | fault | what is seen | verdict | invariants |"]
        lines.append("| --- | --- | --- | --- | --- |")
        for case in cases.values():
            if case.section == section:
                cells = [case.id, case.fault, case.seen, verdict(case, found), after(case, looked)]
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    lines += ["### Invariants", "", *(f"{number}. {_sentence(text)}" for number, text in invariants.TITLES.items()), ""]
    lines += ["What pure code asserts of them, and why it cannot break the others:", ""]
    for case in cases.values():
        if case.pure:
            asserted = f"- {case.id} asserts {ranges(case.pure['holds'])}. {_sentence(case.pure['others'])}"
            lines += textwrap.wrap(asserted, 120, subsequent_indent="  ")
    return "\n".join([BEGIN, "", *lines, "", END])


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def main() -> int:
    """Run the catalogue and write its table; 1 if anything does not hold."""
    cases, problems = load()
    if problems:
        sys.stderr.write("\n".join(problems) + "\n")
        return 1
    made = table(cases, run(cases))
    page = PAGE.read_text()
    start, end = page.index(BEGIN), page.index(END) + len(END)
    PAGE.write_text(page[:start] + made + page[end:])
    sys.stdout.write(made + "\n")
    return int(any(f"| {word} |" in made for word in ("failed", "not run", "none")))


if __name__ == "__main__":
    raise SystemExit(main())
