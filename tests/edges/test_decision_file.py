"""The decision file: whole lines, bounded in size, counted where they are lost, and nothing of any prompt."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router.__main__ import main
from router.decision_file import LONGEST_LINE, DecisionFile, Entry, RotatedFile
from router.decisions import DecisionRecord
from router.errors import SettingsError
from router.replay.trace import read_trace
from router.settings import DecisionFileSettings

HASHES = [2**64 - 1, 7, 12345678901234567890]


def record(request_id: str = "r1", **fields: Any) -> DecisionRecord:
    made = DecisionRecord(
        request_id, 100.0, "/v1/completions", "m", "905487f1", "hit", 3, 4, 900, 1_200, 0, 0, 3, None, attempt=1
    )
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@asynccontextmanager
async def writing(path: Path, **settings: Any) -> AsyncIterator[DecisionFile]:
    file = DecisionFile(path, DecisionFileSettings(path=path, **settings), "0a0b", lambda: 160.0)
    try:
        yield file
    finally:
        await file.aclose()


async def test_a_line_holds_the_decision_its_hashes_and_the_worlds_time(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    async with writing(path) as file:
        file.add(Entry([record(outcome="ok", output_tokens=9)], HASHES, 2_048))
    (line,) = lines(path)
    assert line["hashes"] == HASHES
    assert (line["prompt_bytes"], line["output_tokens"], line["replica"], line["outcome"]) == (2_048, 9, "0a0b", "ok")
    # The decision fell 60 s ago on the clock that stamped it.
    assert line["at"] == pytest.approx(time.time() - 60, abs=30)
    assert {*record().as_dict()} <= {*line}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert file.results == {"written": 1, "dropped": 0, "failed": 0}


async def test_all_attempts_of_a_request_stand_in_it_and_make_one_request_of_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    async with writing(path) as file:
        attempts = [record(outcome="retried"), record(attempt=2, reported_prompt_tokens=1_100)]
        file.add(Entry(attempts, HASHES, 4_800))
    assert [line["attempt"] for line in lines(path)] == [1, 2]
    (request,) = read_trace(path).requests
    assert request.prompt_tokens == 1_100


async def test_more_than_the_queue_holds_is_dropped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    async with writing(path, queue=5) as file:
        for number in range(8):
            file.add(Entry([record(f"r{number}")], [], 10))
        assert file.results["dropped"] == 3
    assert [line["request_id"] for line in lines(path)] == [f"r{number}" for number in range(5)]


async def test_many_entries_are_all_written_in_order(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    async with writing(path) as file:
        for number in range(1_234):
            file.add(Entry([record(f"r{number}")], HASHES, 10))
    assert [line["request_id"] for line in lines(path)] == [f"r{number}" for number in range(1_234)]
    assert file.results["written"] == 1_234


async def test_a_full_disk_costs_lines_and_is_counted() -> None:
    async with writing(Path("/dev/full")) as file:
        file.add(Entry([record()], HASHES, 10))
    assert file.results == {"written": 0, "dropped": 0, "failed": 1}


async def test_a_file_that_cannot_be_written_is_a_wrong_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refusal:
        async with writing(tmp_path / "nowhere" / "decisions.jsonl"):
            pass
    assert "decision_file.path" in refusal.value.problems[0]


def test_serve_says_what_is_wrong_with_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "router.yaml"
    config.write_text(f"workers: ['http://127.0.0.1:9']\ndecision_file: {{path: {tmp_path}}}\n")
    assert main(["serve", "--config", str(config), "--port", "0"]) == 2
    assert "decision_file.path: can't write" in capsys.readouterr().err


def test_a_full_file_gives_way_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "d"
    file = RotatedFile(path, max_bytes=10, keep=2)
    for number in range(5):
        file.write(b"line %d\n" % number)
    file.close()
    assert path.read_bytes() == b"line 4\n"
    assert (tmp_path / "d.1").read_bytes() == b"line 3\n"
    assert (tmp_path / "d.2").read_bytes() == b"line 2\n"
    assert len(os.listdir(tmp_path)) == 3


def test_without_older_files_the_one_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "d"
    file = RotatedFile(path, max_bytes=10, keep=0)
    for number in range(3):
        file.write(b"line %d\n" % number)
    file.close()
    assert path.read_bytes() == b"line 2\n"
    assert os.listdir(tmp_path) == ["d"]


@pytest.mark.parametrize("whole", [b"", b"one\n", b"one\n" * LONGEST_LINE])
def test_half_a_line_that_a_crash_left_is_taken_away(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "d"
    path.write_bytes(whole + b'{"request_id": "r')
    file = RotatedFile(path, max_bytes=1 << 30, keep=0)
    file.write(b"two\n")
    file.close()
    assert path.read_bytes() == whole + b"two\n"
