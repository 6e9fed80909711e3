"""Which router a tool measures: the compiled one where there is one, the source where it is asked for."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtest import compiled
from loadtest.fleet import ROOT
from router import affinity

Begun = list[tuple[list[str], str]]


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    compiled.add_options(parser)
    return parser.parse_args(words)


@pytest.fixture
def makes(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[list[object]]]:
    """Let scripts/compile end with a code; what was run."""

    def end_with(code: int) -> list[list[object]]:
        ran: list[list[object]] = []

        def run(words: list[object], **_: Any) -> subprocess.CompletedProcess[bytes]:
            ran.append(words)
            return subprocess.CompletedProcess([], code)

        monkeypatch.setattr(subprocess, "run", run)
        return ran

    return end_with


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Begun:
    """What would take this process's place: its words, and where it imports from."""
    found: Begun = []
    monkeypatch.setattr(os, "execv", lambda _, words: found.append((words, os.environ["PYTHONPATH"])))
    monkeypatch.setenv("PYTHONPATH", "")
    return found


def test_the_compiled_router_is_made_for_this_interpreter(makes: Callable[[int], list[list[object]]]) -> None:
    ran = makes(0)
    assert compiled.chosen(options()) == compiled.MADE
    assert ran == [[ROOT / "scripts" / "compile", compiled.MADE]]


def test_without_a_compiler_the_source_is_measured_and_that_is_said(
    makes: Callable[[int], list[list[object]]], capsys: pytest.CaptureFixture[str]
) -> None:
    makes(1)
    assert compiled.chosen(options()) is None
    assert "source" in capsys.readouterr().err


def test_what_is_asked_for_is_taken_and_nothing_made(
    makes: Callable[[int], list[list[object]]], tmp_path: Path
) -> None:
    ran = makes(0)
    (tmp_path / "router").mkdir()
    assert compiled.chosen(options("--source")) is None
    assert compiled.chosen(options("--compiled", str(tmp_path))) == tmp_path
    with pytest.raises(SystemExit, match="no router"):
        compiled.chosen(options("--compiled", str(tmp_path / "router")))
    assert ran == []


def test_a_tool_begins_anew_with_the_router_that_it_is_to_measure(
    begun: Begun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "router").mkdir()
    monkeypatch.setattr(affinity, "__file__", str(ROOT / "router" / "affinity.py"))
    argv = ["--compiled", str(tmp_path), "--workers", "3"]
    compiled.import_chosen(options("--compiled", str(tmp_path)), "loadtest.some", argv)
    assert begun == [([sys.executable, "-P", "-m", "loadtest.some", *argv], f"{tmp_path}{os.pathsep}{ROOT}")]


def test_a_tool_that_has_its_router_goes_on(begun: Begun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "router").mkdir()
    monkeypatch.setattr(affinity, "__file__", str(tmp_path / "router" / "affinity.so"))
    assert compiled.description() == "compiled"
    compiled.import_chosen(options(), "loadtest.some", [])
    compiled.import_chosen(options("--compiled", str(tmp_path)), "loadtest.some", [])
    monkeypatch.setattr(affinity, "__file__", str(ROOT / "router" / "affinity.py"))
    assert compiled.description() == "source"
    compiled.import_chosen(options("--source"), "loadtest.some", [])
    assert begun == []


def test_a_compiled_router_gives_way_to_the_source_that_is_asked_for(
    begun: Begun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(affinity, "__file__", str(tmp_path / "router" / "affinity.so"))
    compiled.import_chosen(options("--source"), "loadtest.some", ["--source"])
    assert [paths.split(os.pathsep)[0] for _, paths in begun] == [str(ROOT)]
