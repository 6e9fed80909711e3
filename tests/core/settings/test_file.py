"""The settings file: what is none, and the lines of what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.settings import load
from tests.core.settings.rig import Write, problems


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a", "FILE, line 1, column 3: a list in brackets that is not closed"),
        ("a: b: c", "FILE, line 1, column 5: a second colon in a line"),
        ("port: 1\nhost: a\nport: 2\n", "FILE, line 3, column 1: port stands twice"),
        ("health: {fall: 1, rise: 2, fall: 3}", "FILE, line 1, column 28: fall stands twice"),
        ("a: *b", "FILE, line 1, column 4: found undefined alias; a value"),
        ("a: !!python/object:os.system {}", "FILE, line 1, column 4: could not determine a constructor"),
        ("[a, b]: c", "FILE, line 1, column 1: a name that is a list or a table"),
        ("\tport: 1", "FILE, line 1, column 1: a tab, where YAML indents with blanks"),
        ("a: {b: 1", "FILE, line 1, column 9: a table in braces that is not closed"),
        ("port: 1\nhost a\n", "FILE, line 3, column 1: a line without a colon: "),
        ("port: 1\n  host: a\n", "FILE, line 2, column 7: a second colon in a line, or a line that is indented"),
        ("workers:\n  - a\n - b\n", "FILE, line 3, column 2: a line that is indented unlike those around it"),
        ("host: 'a", "FILE, line 1, column 9: a quote that is not closed"),
        ("port: 1\n---\nport: 2\n", "FILE, line 2, column 1: a second document begins here"),
        ("%x\nport: 1\n", "FILE, line 2, column 1: text that belongs to no setting"),
        ("[1, 2]", "FILE: settings are expected, each written NAME: VALUE"),
        ("just text", "FILE: settings are expected, each written NAME: VALUE"),
        (b"\xff\xfe\x00", "FILE: not a YAML file in UTF-8"),
        (b"host: \xe9t\xe9", "FILE: not a YAML file in UTF-8"),
        ("host: a\x00b", "FILE: not a YAML file in UTF-8"),
        ("[" * 800, "FILE: not a YAML file in UTF-8"),
    ],
)
def test_a_file_that_is_no_settings(text: str | bytes, problem: str, write: Write) -> None:
    (line,) = problems(write(text))
    assert line.startswith(problem)


def test_the_line_is_that_of_the_setting_whatever_stands_around_it(write: Write) -> None:
    file = write(
        "# a comment\n"
        "\n"
        "base: &base\n"
        "  fall: x\n"
        "health:\n"
        "  <<: *base\n"
        "  rise: y\n"
        "workers:\n"
        "  - http://a\n"
        "  - url: http://b\n"
        "    slots: many\n"
        "  - slots: 3\n"
        "tenants:\n"
        "  good: {}\n"
        "  not good: {}\n"
        "models: {m:\n"
        "  {reuse: perhaps}}\n"
    )
    assert [line.split(": ")[:2] for line in problems(file)] == [
        ["FILE, line 11", "workers.1.slots"],
        ["FILE, line 12", "workers.2.url"],
        ["FILE, line 4", "health.fall"],
        ["FILE, line 7", "health.rise"],
        ["FILE, line 17", "models.m.reuse"],
        ["FILE, line 15", "tenants.not good"],
        ["FILE, line 3", "base"],
    ]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert problems(tmp_path / "none.yaml") == ["FILE: No such file or directory"]
    assert problems(tmp_path) == ["FILE: Is a directory"]


def test_anchors_and_merges_are_yaml_as_ever(write: Write) -> None:
    loaded = load(write("health: &h {fall: 4}\nmodels:\n  a: &a {reuse: off}\n  b: {<<: *a, cache: {enabled: true}}\n"))
    assert loaded.health.fall == 4
    assert loaded.models["b"].reuse == "off"


@pytest.mark.parametrize("word", ["on", "off", "observe", "'on'", "'off'"])
def test_words_that_yaml_takes_for_truth_values_stay_words(word: str, write: Write) -> None:
    assert load(write(f"models: {{m: {{reuse: {word}}}}}")).models["m"].reuse == word.strip("'")
