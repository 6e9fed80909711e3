"""The catalogue, its tests and its page belong together."""

from __future__ import annotations

import pytest

from tests import catalogue


def test_every_case_has_tests_and_every_test_with_an_id_its_case() -> None:
    cases, problems = catalogue.load()
    assert not problems
    assert len(cases) > 100


def test_the_page_has_a_row_for_every_case_and_no_other() -> None:
    page = catalogue.PAGE.read_text()
    part = page[page.index(catalogue.BEGIN) : page.index(catalogue.END)]
    rows = [line.split(" | ") for line in part.splitlines() if line.startswith("| ") and " id " not in line]
    shown = {row[0].removeprefix("| "): row[1:3] for row in rows if not row[0].startswith("| ---")}
    cases, _ = catalogue.load()
    assert shown == {case.id: [case.fault, case.seen] for case in cases.values()}


@pytest.mark.parametrize(("name", "ids"), [("test_h1_h12_twice", ["H1", "H12"]), ("test_a1", []), ("test_plain", [])])
def test_ids_stand_at_the_beginning_of_a_name(name: str, ids: list[str]) -> None:
    assert catalogue.ids_of(name) == ids


def test_one_failure_or_gap_spoils_a_row() -> None:
    case = catalogue.Case("X", "users", "f", "s", {"a.py::test_a", "b.py::test_b"})
    fine = {"a.py::test_a": ["holds", "holds"], "b.py::test_b": ["holds"]}
    assert catalogue.verdict(case, fine) == "holds (3)"
    assert catalogue.verdict(case, {**fine, "b.py::test_b": ["holds", "failed"]}) == "failed"
    assert catalogue.verdict(case, {"a.py::test_a": ["holds"]}) == "not run"
    assert catalogue.verdict(case, {**fine, "b.py::test_b": ["skipped"]}) == "skipped"


def test_a_report_is_read_by_function() -> None:
    report = """<testsuites><testsuite>
      <testcase classname="tests.core.test_a" name="test_x[1]"/>
      <testcase classname="tests.core.test_a" name="test_x[2]"><failure/></testcase>
      <testcase classname="tests.edges.sync.test_b" name="test_y"><skipped/></testcase>
    </testsuite></testsuites>"""
    found = catalogue.outcomes(report)
    assert found == {
        "core/test_a.py::test_x": ["holds", "failed"],
        "edges/sync/test_b.py::test_y": ["skipped"],
    }
