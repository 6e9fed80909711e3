"""The catalogue, its tests and its page belong together."""

from __future__ import annotations

import pytest

from tests import catalogue
from tests.invariants import TITLES


def test_every_case_has_tests_and_every_test_with_an_id_its_case() -> None:
    cases, problems = catalogue.load()
    assert not problems
    assert len(cases) > 100


def test_the_page_has_a_row_for_every_case_and_no_other() -> None:
    page = catalogue.PAGE.read_text()
    part = page[page.index(catalogue.BEGIN) : page.index(catalogue.END)]
    assert all(f"{number}. {text[0].upper()}{text[1:]}." in part for number, text in TITLES.items())
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


REPORT = """<testsuites><testsuite>
      <testcase classname="tests.core.test_a" name="test_x[1]">
        <properties><property name="invariants" value="1 2"/><property name="other" value="7"/></properties>
      </testcase>
      <testcase classname="tests.core.test_a" name="test_x[2]">
        <properties><property name="invariants" value="3"/></properties><failure/>
      </testcase>
      <testcase classname="tests.edges.sync.test_b" name="test_y"><skipped/></testcase>
    </testsuite></testsuites>"""


def test_a_report_is_read_by_function() -> None:
    found = catalogue.outcomes(REPORT)
    assert found == {
        "core/test_a.py::test_x": ["holds", "failed"],
        "edges/sync/test_b.py::test_y": ["skipped"],
    }


def test_what_was_looked_at_is_read_from_the_report() -> None:
    looked = catalogue.looked_at(REPORT)
    assert looked == {"core/test_a.py::test_x": {1, 2, 3}, "edges/sync/test_b.py::test_y": set()}
    case = catalogue.Case("X", "users", "f", "s", {"core/test_a.py::test_x", "edges/sync/test_b.py::test_y"})
    assert catalogue.after(case, looked) == "1–3"
    case.pure = {"holds": [10], "others": "why"}
    assert catalogue.after(case, looked) == "1–3; pure: 10"
    case.tests = {"edges/sync/test_b.py::test_y"}
    assert catalogue.after(case, looked) == "pure: 10"
    case.pure = {}
    assert catalogue.after(case, looked) == "none"


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([4], "4"), ([3, 1, 2, 5], "1–3, 5"), ([1, 3, 4, 10], "1, 3–4, 10")]
)
def test_numbers_in_a_row_are_a_range(numbers: list[int], text: str) -> None:
    assert catalogue.ranges(numbers) == text


def test_a_table_is_made_of_cases_and_report() -> None:
    cases = {"X": catalogue.Case("X", "users", "f", "s", {"core/test_a.py::test_x"}, {"holds": [9], "others": "so"})}
    made = catalogue.table(cases, REPORT)
    assert "| X | f | s | failed | 1–3; pure: 9 |" in made
    assert "- X asserts 9. So." in made


@pytest.mark.parametrize(
    ("path", "name", "is_one"),
    [
        ("whole/test_x.py", "test_p43_anything", True),
        ("edges/test_admission.py", "test_a_waiter_that_leaves_makes_room_for_the_next", True),
        ("edges/test_other.py", "test_a_waiter_that_leaves_makes_room_for_the_next", False),
        ("core/test_x.py", "test_plain", False),
    ],
)
def test_cases_are_known_by_name_or_list(path: str, name: str, is_one: bool) -> None:
    assert catalogue.is_case(catalogue.TESTS / path, name) is is_one


def test_what_lies_elsewhere_is_no_case() -> None:
    assert not catalogue.is_case(catalogue.ROOT / "elsewhere.py", "test_p43_anything")
