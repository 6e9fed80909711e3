"""The catalogue of faults: which tests provoke what, and the table that a run of them makes.

`python -m tests.catalogue` runs them all and writes the table into docs/reliability.md; a test compares ids with tests.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

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
    written = yaml.safe_load((TESTS / "data" / "catalogue.yml").read_text())
    cases = {
        name: Case(name, section, row["fault"], row["seen"], set(row.get("tests", ())))
        for section, rows in written.items()
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
    return cases, problems


def run(cases: dict[str, Case]) -> dict[str, list[str]]:
    """Run every test of the catalogue; the outcomes of each, one for each set of parameters."""
    wanted = sorted({f"tests/{test}" for case in cases.values() for test in case.tests})
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", f"--junitxml={report}", *wanted]
        subprocess.run(command, cwd=ROOT, check=False, timeout=1200)
        return outcomes(report.read_text())


def outcomes(report: str) -> dict[str, list[str]]:
    """What a JUnit report says of each test function."""
    found: dict[str, list[str]] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        file = case.attrib["classname"].removeprefix("tests.").replace(".", "/") + ".py"
        name = case.attrib["name"].partition("[")[0]
        children = {child.tag for child in case}
        outcome = "failed" if children & {"failure", "error"} else "skipped" if "skipped" in children else "holds"
        found.setdefault(f"{file}::{name}", []).append(outcome)
    return found


def verdict(case: Case, found: dict[str, list[str]]) -> str:
    """Holds only if every test of the case ran and passed."""
    seen = [outcome for test in case.tests for outcome in found.get(test, ["not run"])]
    worst = next((each for each in ("failed", "not run", "skipped") if each in seen), None)
    return worst or f"holds ({len(seen)})"


def table(cases: dict[str, Case], found: dict[str, list[str]]) -> str:
    """The section of the page between its two marks."""
    lines = []
    for section, title in TITLES.items():
        lines += [f"### {title}", "", "| id | fault | what is seen | verdict |", "| --- | --- | --- | --- |"]
        for case in cases.values():
            if case.section == section:
                lines.append(f"| {case.id} | {case.fault} | {case.seen} | {verdict(case, found)} |")
        lines.append("")
    return "\n".join([BEGIN, "", *lines, END])


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
    return int("| failed |" in made or "| not run |" in made)


if __name__ == "__main__":
    raise SystemExit(main())
