"""The tool that puts small faults into modules: which, that each is taken out again, and which tests it meets."""

from __future__ import annotations

import ast
import textwrap
from collections import Counter
from types import CodeType

import pytest

from tests.mutate.__main__ import rate, sample
from tests.mutate.covering import Covering
from tests.mutate.sites import Mutant, compiled, mutants
from tests.mutate.trial import changed

SOURCE = '''
"""A module."""
MOST = 3

class Box:
    """A class."""
    size: int = 7

    def fits(self, count: int, *, spare: bool = False) -> bool:
        """A method."""
        if count < MOST and not spare:
            self.note(count, deep=True)
            return True
        raise ValueError("words")

    def note(self, count: int, deep: bool) -> None:
        log.info("count %d", count)
        self.size += 1
'''


def found() -> tuple[ast.Module, list[Mutant]]:
    tree = ast.parse(textwrap.dedent(SOURCE))
    return tree, mutants(tree)


def test_what_is_changed_and_what_is_left_alone() -> None:
    kinds = Counter(f"{mutant.kind}: {mutant.before} -> {mutant.after}" for mutant in found()[1])
    assert kinds == Counter(
        [
            "constant: 3 -> 4",
            "constant: 7 -> 8",
            "constant: False -> True",
            "condition: count < MOST and (not spare) -> not (count < MOST and (not spare))",
            "and/or: count < MOST and (not spare) -> count < MOST or not spare",
            "comparison: count < MOST -> count <= MOST",
            "negation: not spare -> spare",
            "statement: self.note(count, deep=True) -> pass",
            "argument: self.note(count, deep=True) -> self.note(count)",
            "constant: True -> False",
            "constant: True -> False",
            "return: return True -> return None",
            "statement: raise ValueError('words') -> pass",
            "arithmetic: self.size += 1 -> self.size -= 1",
            "statement: self.size += 1 -> pass",
            "constant: 1 -> 2",
        ]
    )


def test_each_fault_is_in_the_code_and_taken_out_of_the_tree_again() -> None:
    tree, faults = found()
    before = ast.dump(tree)
    plain = compile(tree, "box.py", "exec")
    for fault in faults:
        code = compiled(tree, fault, "box.py")
        assert isinstance(code, CodeType)
        assert code != plain
        assert ast.dump(tree) == before


def test_a_fault_belongs_to_a_function_or_to_the_import() -> None:
    tree, faults = found()
    names = {str(fault): changed(tree, compiled(tree, fault, "box.py"), "box.py") for fault in faults}
    assert names["3: constant: 3 -> 4"] is names["7: constant: 7 -> 8"] is None
    assert names["9: constant: False -> True"] is None
    functions = {name: code.co_qualname for name, code in names.items() if code}
    assert set(functions.values()) == {"Box.fits", "Box.note"}
    assert functions["11: comparison: count < MOST -> count <= MOST"] == "Box.fits"


def test_the_sample_is_the_same_for_the_same_seed() -> None:
    faults = found()[1]
    assert sample(faults, 5, 1) == sample(faults, 5, 1) != sample(faults, 5, 2)
    assert len(sample(faults, 5, 1)) == 5
    assert sorted(map(str, sample(faults, 1_000, 1))) == sorted(map(str, faults))


def test_the_tests_of_a_line_come_by_name_and_then_by_time() -> None:
    tests = [
        "core/test_other.py::quick",
        "core/test_box.py::slow",
        "core/test_box.py::quick",
        "core/test_x.py::endless",
    ]
    covering = Covering(tests, [0.1, 2.0, 0.2, 60.0], {"router/box.py": {"5": [0, 1, 2, 3], "6": [0]}})
    assert covering.of("router/box.py", 5, 9.0)[0] == [tests[2], tests[1], tests[0]]
    assert covering.of("router/box.py", 5, 1.0)[0] == [tests[2]]
    assert covering.of("router/box.py", 5, 0.0)[0] == [tests[2]]
    assert covering.of("router/box.py", 6, 9.0)[0] == [tests[0]]
    # What runs at import is everybody's.
    assert set(covering.of("router/box.py", 1, 99.0)[0]) == set(tests)
    assert covering.of("router/unknown.py", 1, 9.0) == ([], 0.0)


@pytest.mark.parametrize(
    ("outcomes", "text"),
    [
        ({"killed": 3, "timeout": 1, "survived": 1}, "4/5 (80 %)"),
        ({"survived": 2, "uncovered": 1, "broken": 1}, "0/4 (0 %)"),
        ({}, "0/0 (0 %)"),
    ],
)
def test_what_never_ends_is_noticed_too(outcomes: dict[str, int], text: str) -> None:
    assert rate(Counter(outcomes)) == text
