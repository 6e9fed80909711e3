"""The matrix of clients: what its programs say, what the router decided, and that the documentation shows the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from loadtest.clients.catalogue import CLIENTS
from loadtest.clients.command import main
from loadtest.clients.installing import NotInstalled, environment
from loadtest.clients.report import as_markdown, as_text, details
from loadtest.clients.running import PROGRAMS, Check, Outcome, _cause, read_checks

ROOT = Path(__file__).resolve().parents[2]
CLIENT = CLIENTS["openai-python"]
LOAD = CLIENTS["aiperf"]


def decision(worker: str = "905487f1", reason: str = "hit") -> dict[str, Any]:
    return {"worker": worker, "reason": reason}


def outcome(*decisions: dict[str, Any], load: bool = False) -> Outcome:
    return Outcome(LOAD if load else CLIENT, "1.0", [Check("chat", True, "8 tokens")], list(decisions))


KEPT = [decision(reason="miss"), *[decision()] * 4]


def test_what_a_program_says_is_read_and_what_its_libraries_print_is_not() -> None:
    lines = ["Give feedback!", "{", '{"check": "chat", "ok": true, "seen": "8"}', '{"check": "stream"}', "[1]", ""]
    assert read_checks(lines) == [Check("chat", True, "8")]


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("Traceback:\n  File x\nValueError: odd\n", "ValueError: odd"),
        ("throw\nError [ERR_MODULE_NOT_FOUND]: Cannot find 'openai'\n  at x\nNode.js v20\n", "Error [ERR_"),
        ("killed\n", "killed"),
        ("", ""),
    ],
)
def test_the_error_of_a_program_that_broke_is_found(said: str, cause: str) -> None:
    assert _cause(said).startswith(cause)


def test_a_client_works_if_its_conversation_stays_where_it_began() -> None:
    before = [decision("aaaaaaaa", "short")] * 7
    assert outcome(*before, *KEPT).ok
    assert not outcome(*before, *KEPT[:-1], decision("aaaaaaaa")).ok
    assert not outcome(*before, *KEPT[:-1], decision(reason="miss")).ok
    assert not Outcome(CLIENT, "1.0", [], KEPT).ok


def test_a_failure_of_any_kind_is_one() -> None:
    failed = outcome(*KEPT)
    failed.checks.append(Check("stream", False, "ValueError: odd"))
    assert not failed.ok
    broken = outcome(*KEPT)
    broken.problem = "not installed: no node here"
    assert not broken.ok
    text = as_text([failed, broken])
    assert "stream: ValueError: odd" in text
    assert "not installed: no node here" in text
    assert "  FAIL  stream: ValueError: odd" in [*details(failed)]
    assert "  FAIL  not installed: no node here" in [*details(broken)]


def test_a_load_tool_works_if_something_was_a_hit() -> None:
    assert outcome(decision(reason="miss"), decision("aaaaaaaa"), load=True).ok
    assert not outcome(decision(reason="miss"), load=True).ok


def test_the_table_says_what_the_router_decided() -> None:
    table = as_markdown([outcome(*KEPT), outcome(*KEPT, decision("aaaaaaaa", "spill"), load=True)])
    assert "| openai for Python | 1.0 | works | chat | 5 turns on 1 worker: 4 hit, 1 miss |" in table
    assert "| 6 requests on 2 workers: 4 hit, 1 miss, 1 spill |" in table


def test_every_client_has_its_program_and_every_program_a_client() -> None:
    files = {path.name for path in PROGRAMS.iterdir() if path.suffix in (".py", ".mjs")} - {"__init__.py", "saying.py"}
    assert files == {c.program if c.kind == "node" else f"{c.program}.py" for c in CLIENTS.values()}
    assert {name: client.name for name, client in CLIENTS.items()} == {name: name for name in CLIENTS}


def test_the_documentation_shows_every_client_with_its_version_and_that_it_works() -> None:
    page = (ROOT / "docs" / "clients.md").read_text()
    found = re.search(r"<!-- clients -->\n(.*)<!-- /clients -->", page, re.DOTALL)
    assert found
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()[2:]]
    pinned = {c.title: re.split("[=@]+", c.packages[0])[-1] for c in CLIENTS.values()}
    assert {row[0]: row[1] for row in rows} == pinned
    assert {row[2] for row in rows} == {"works"}


def test_without_node_its_client_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotInstalled, match="node and npm"):
        environment(CLIENTS["openai-node"], tmp_path / "clients")


def test_an_unknown_client_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nobody"])
    assert "invalid choice: 'nobody'" in capsys.readouterr().err
