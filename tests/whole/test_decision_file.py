"""From live traffic to its replay: a router writes its decisions, and other policies are asked about the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest.conversation import Shape, play, user_turns
from loadtest.fleet import until
from router.__main__ import main
from router.hashing import boundaries
from tests.whole.conftest import MODEL, Builder
from tests.whole.rig import total

CONVERSATIONS, TURNS = 12, 4
SHAPE = Shape(TURNS, 1_500, 200, 16, 6.0)


@pytest.fixture(scope="module")
def recorded(build_shared: Builder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The decision file of a replica that has served some conversations, and a word of their text."""
    path = tmp_path_factory.mktemp("recorded") / "decisions.jsonl"
    rig = build_shared(environment={"ROUTER_DECISION_FILE__PATH": str(path)})
    conversations = [user_turns(seed, SHAPE) for seed in range(CONVERSATIONS)]
    # One after another: side by side, some turns would spill, as they should.
    for turns in conversations:
        play([rig.front], turns, MODEL)
    for _ in until(10, "the lines to be written"):
        if total(rig.routers[0].metrics(), "router_decision_file_lines_total", result="written") >= 48:
            break
    return path, conversations[0][0][:40]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_request_has_its_line_with_what_became_of_it(recorded: tuple[Path, str]) -> None:
    found = lines(recorded[0])
    assert len(found) == CONVERSATIONS * TURNS
    for line in found:
        assert (line["outcome"], line["status"]) == ("ok", 200)
        assert line["reported_prompt_tokens"] > 1_000
        assert line["output_tokens"] > 0
        assert 0 < line["first_byte_seconds"] <= line["total_seconds"]
        assert len(line["hashes"]) == line["blocks"] == len(boundaries(line["prompt_bytes"]))
    hits = [line for line in found if line["reason"] == "hit"]
    assert len(hits) == CONVERSATIONS * (TURNS - 1)


def test_a_request_that_was_asked_again_has_a_line_for_each_worker(build: Builder, tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    rig = build(environment={"ROUTER_DECISION_FILE__PATH": str(path)})
    for worker in rig.workers:
        worker.add_faults({"action": {"kind": "status", "status": 503}, "times": 1, "path": "/v1/chat/completions"})
    body = {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": "both are busy"}]}
    answer = httpx.post(f"{rig.front}/v1/chat/completions", json=body, trust_env=False, timeout=30)
    assert answer.status_code == 503
    rig.routers[0].stop()  # what waits to be written is written then
    first, second = lines(path)
    assert (first["attempt"], first["outcome"], first["error"]) == (1, "retried", "overloaded")
    assert (second["attempt"], second["outcome"], second["status"]) == (2, "upstream_error", 503)
    assert first["request_id"] == second["request_id"]
    assert first["worker"] != second["worker"]


def test_no_word_of_any_prompt_is_in_it(recorded: tuple[Path, str]) -> None:
    path, words = recorded
    assert words not in path.read_text()


def test_other_policies_can_be_asked_about_the_same_requests(
    recorded: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = tmp_path / "figures.json"
    flags = ["--policy", "slack,round_robin", "--seeds", "1", "--load", "0.5", "--capacity", "20", "--workers", "3"]
    flags += ["--jobs", "1", "--quiet", "--warmup", "0", "--json", str(figures)]
    assert main(["replay", str(recorded[0]), *flags]) == 0
    table = capsys.readouterr().out
    assert "slack" in table
    assert "round_robin" in table
    hit = {cell["rule"]: cell["figures"]["hit"]["mean"] for cell in json.loads(figures.read_text())["cells"]}
    # Every turn but a conversation's first one finds the ones before; blind, it does so on one worker of three.
    assert hit["slack"] > hit["round_robin"]
