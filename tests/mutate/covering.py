"""Which tests run which line: one run of them all under coverage, kept in a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# No workers of xdist's, and no complaint about what was imported before pytest was.
PYTEST = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore::pytest.PytestAssertRewriteWarning")

PER_TEST = 0.005  # what each costs beside its own seconds


class _Recorder:
    """A pytest plugin: names the test that is running to coverage, and times it."""

    def __init__(self, coverage: object) -> None:
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self._coverage = coverage

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)  # type: ignore[attr-defined]
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.outcome != "passed":
            self.failed.add(report.nodeid)


def record(paths: list[str], file: Path) -> None:
    """Run these tests once and write the map. Tests that fail or are skipped are not in it."""
    import coverage  # an extra of its own

    cover = coverage.Coverage(data_file=None, source=[str(ROOT / "router")])
    recorder = _Recorder(cover)
    cover.start()
    pytest.main([*PYTEST, "--tb=no", "--timeout=300", *paths], plugins=[recorder])
    cover.stop()
    data = cover.get_data()
    names = sorted(set(recorder.seconds) - recorder.failed)
    numbers = {name: number for number, name in enumerate(names)}
    lines = {
        str(Path(name).relative_to(ROOT)): {
            line: [numbers[test] for test in contexts if test in numbers]
            for line, contexts in data.contexts_by_lineno(name).items()
        }
        for name in data.measured_files()
    }
    written = {"tests": names, "seconds": [round(recorder.seconds[name], 4) for name in names], "lines": lines}
    file.write_text(json.dumps(written))


@dataclass(frozen=True, slots=True)
class Covering:
    """The map, read back."""

    tests: list[str]
    seconds: list[float]
    lines: dict[str, dict[str, list[int]]]

    @classmethod
    def read(cls, *files: Path) -> Covering:
        """Several maps of different tests as one."""
        tests: list[str] = []
        seconds: list[float] = []
        lines: dict[str, dict[str, list[int]]] = {}
        for file in files:
            written, offset = json.loads(file.read_text()), len(tests)
            tests += written["tests"]
            seconds += written["seconds"]
            for module, covered in written["lines"].items():
                mine = lines.setdefault(module, {})
                for line, numbers in covered.items():
                    mine.setdefault(line, []).extend(number + offset for number in numbers)
        return cls(tests, seconds, lines)

    def of(self, module: str, line: int, most: float) -> tuple[list[str], float]:
        """Tests that run a line, of about `most` seconds together, and their seconds: those named after it or its
        folder first.

        A line that runs at import has no test of its own: all of the module count.
        """
        covered = self.lines.get(module, {})
        numbers = set(covered.get(str(line), ())) or {number for each in covered.values() for number in each}
        own = (f"test_{Path(module).stem}", f"test_{Path(module).parent.name}")

        def order(number: int) -> tuple[bool, float]:
            return not any(name in self.tests[number] for name in own), self.seconds[number]

        taken: list[str] = []
        total = 0.0
        for number in sorted(numbers, key=order):
            total += self.seconds[number] + PER_TEST
            if taken and total > most:
                break
            taken.append(self.tests[number])
        return taken, total
