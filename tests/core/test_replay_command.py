"""The replay from its command line to its tables, its JSON and its page."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from router.__main__ import main
from router.replay import study
from router.replay.capacity import KNEE, capacity_pace, window
from router.replay.fleet import Fleet, Scenario
from router.replay.generate import generate
from router.replay.measure import FIGURES, Estimate, figures, quantile
from router.replay.perfect import PerfectKnowledge
from router.replay.plot import bars, lines
from router.replay.study import Cell, Plan, Study, Workload
from router.replay.tables import as_text, compare
from router.replay.trace import Request, Trace
from router.replay.worker import Job

SMALL = ("--requests", "150", "--seeds", "2", "--load", "0.5,0.8", "--capacity", "20", "--jobs", "1", "--quiet")


def cell(rule: str, load: float, *values: float) -> Cell:
    return Cell("w", load, rule, tuple(dict.fromkeys(FIGURES, value) for value in values))


# -- figures ---------------------------------------------------------------------------------------------------


def test_the_standard_error_is_that_of_the_mean() -> None:
    assert Estimate.of([3.0]) == Estimate(3.0, 0.0)
    found = Estimate.of([1.0, 2.0, 3.0, 4.0])
    assert found.mean == 2.5
    assert found.error == pytest.approx(math.sqrt(5 / 3 / 4))


@pytest.mark.parametrize(("share", "value"), [(0.5, 5.0), (0.9, 9.0), (0.99, 10.0), (0.0, 1.0)])
def test_quantiles_are_values_that_occurred(share: float, value: float) -> None:
    assert quantile([float(number) for number in range(1, 11)], share) == value


def test_only_the_window_is_measured() -> None:
    trace = generate("short", 200, 1)
    fleet = Fleet(trace, PerfectKnowledge, Scenario())
    jobs = fleet.run()
    begin, end = window(trace, 1.0, 0.5)
    found = figures(jobs, fleet.engines, begin, end)
    seen = [job for job in jobs if begin <= job.arrived <= end]
    assert 0 < len(seen) < len(jobs)
    assert found["ttft_mean"] == pytest.approx(sum(job.first - job.arrived for job in seen) / len(seen))
    assert found["spread"] >= 1.0
    with pytest.raises(ValueError, match="no request"):
        figures(jobs, fleet.engines, 1e9, 2e9)


def test_capacity_is_where_waiting_becomes_several_times_that_of_an_idle_fleet() -> None:
    prompts = tuple(Request(float(at), (at,), 512, 1) for at in range(600))
    trace = Trace("t", prompts)
    scenario = Scenario(workers=2)
    pace = capacity_pace(trace, scenario, 0.2)
    # Two workers compute 8,000 tokens a second each, a step of 1,024 at a time.
    assert 512 / (2 * 8_000) * 0.9 < pace < 512 / (2 * 8_000) * 1.4

    def mean(pace: float) -> float:
        jobs: list[Job] = Fleet(trace, PerfectKnowledge, Scenario(workers=2, pace=pace)).run()
        seen = [job.first - job.arrived for job in jobs if job.arrived >= 0.2 * 599 * pace]
        return sum(seen) / len(seen)

    idle = mean(pace * 100)
    assert mean(pace * 1.1) < KNEE * idle < mean(pace / 1.1)


# -- comparison ------------------------------------------------------------------------------------------------


def test_a_cell_is_even_within_two_errors_or_a_hundredth() -> None:
    plan = Plan((Workload("w"),), ("work", "other"), (0.5, 0.7, 0.85), 2, Scenario())
    found_out = Study(plan, requests={"w": 1}, capacities={"w": 1.0}, seconds_per_12000={"work": 1.0})
    found_out.cells = [
        cell("work", 0.5, 1.0, 1.0),
        cell("other", 0.5, 2.0, 2.0),
        cell("work", 0.7, 1.0, 1.2),
        cell("other", 0.7, 0.9, 1.1),
        cell("work", 0.85, 1.0, 1.0),
        cell("other", 0.85, 0.995, 0.995),
    ]
    (found,) = compare(found_out, "work")
    assert (found.better, found.even, found.worse) == (3, 6, 0)
    assert found.ratios["ttft_mean"] == pytest.approx((2.0 * 1.0 / 1.1 * 0.995) ** (1 / 3))
    found_out.cells[3] = cell("other", 0.7, 0.5, 0.5)
    (found,) = compare(found_out, "work")
    assert (found.better, found.even, found.worse) == (3, 3, 3)
    assert "| other | " in as_text(found_out)


# -- plots -----------------------------------------------------------------------------------------------------


def test_plots_are_well_formed_whatever_the_names_and_values() -> None:
    points = [(0.5, Estimate(1.0, 0.1)), (0.85, Estimate(0.0, 0.0))]
    for text in (lines("a < b & c", {"<x>": points, "none": []}), bars("a & b", {"<x>": Estimate(0.0, 0.0)})):
        root = ElementTree.fromstring(text)
        assert root.tag == "svg"
        assert "<x>" in "".join(root.itertext())
    assert lines("t", {}) == bars("t", {}) == ""


# -- the command -----------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Counts elements and notes what would be loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def test_tables_json_and_page_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "day.jsonl"
    rows = [{"timestamp": at * 50, "input_length": 700, "output_length": 5, "hash_ids": [0, at]} for at in range(150)]
    trace.write_text("\n".join(map(json.dumps, rows)))
    files = {"--json": tmp_path / "out.json", "--html": tmp_path / "out.html"}
    arguments = ["replay", "--trace", str(trace), "--generate", "mix", "--policy", "work,slack,sglang", *SMALL]
    assert main([*arguments, *(part for flag, path in files.items() for part in (flag, str(path)))]) == 0

    text = capsys.readouterr().out
    assert re.findall(r"^### (.+)$", text, re.MULTILINE) == [
        f"{name} at {load}" for name in ("day", "mix") for load in ("50%", "80%")
    ]
    assert len(re.findall(r"^\| (?:work|slack|sglang) \| \d+\.\d\d ± ", text, re.MULTILINE)) == 12

    found = json.loads(files["--json"].read_text())
    assert found["capacity_requests_per_second"] == {"day": pytest.approx(20.0), "mix": pytest.approx(20.0)}
    assert len(found["cells"]) == 12
    for one in found["cells"]:
        assert set(one["figures"]) == set(FIGURES)
        assert len(one["runs"]) == 2
        mean = sum(run["ttft_p90"] for run in one["runs"]) / 2
        assert one["figures"]["ttft_p90"]["mean"] == pytest.approx(mean)
    assert {row["rule"] for row in found["comparison"]} == {"slack", "sglang"}

    page = Page()
    page.feed(files["--html"].read_text())
    assert page.tags.count("svg") == 8
    assert page.tags.count("table") == 5
    assert not page.links
    assert "script" not in page.tags


def test_progress_is_told_and_processes_share_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["replay", "--generate", "short", "--policy", "work,round_robin", *SMALL[:-1], "--jobs", "2"]
    assert main(arguments) == 0
    apart = capsys.readouterr()
    assert "short 80% round_robin: TTFT" in apart.err
    assert main(["replay", "--generate", "short", "--policy", "work,round_robin", *SMALL]) == 0
    alone = capsys.readouterr()
    assert alone.out.split("The slowest")[0] == apart.out.split("The slowest")[0]
    assert alone.err == ""


class Dying(ProcessPoolExecutor):
    """A pool of which a process dies after so many tasks."""

    lives = 0

    def submit(self, task: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self.lives:
            type(self).lives -= 1
            future.set_result(task(*arguments, **named))
        else:
            future.set_exception(BrokenExecutor())
        return future


@pytest.mark.parametrize(("lives", "code", "rows"), [(0, 2, 0), (2, 1, 1), (5, 1, 2)])
def test_what_was_played_before_a_process_died_is_shown(
    lives: int, code: int, rows: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study, "ProcessPoolExecutor", Dying)
    monkeypatch.setattr(Dying, "lives", lives)
    arguments = ["replay", "--generate", "short", "--policy", "work,least_loaded,round_robin", *SMALL, "--jobs", "2"]
    assert main(arguments) == code
    said = capsys.readouterr()
    assert len(re.findall(r" ± .* ± ", said.out)) == rows
    assert "a process of the replay died" in said.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "nothing to replay"),
        (["--trace", "missing.jsonl", "--capacity", "1"], "No such file"),
        (["--generate", "short", "--policy", "nobody"], "'nobody' is no rule"),
    ],
)
def test_what_can_not_be_played_is_said_in_a_line(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", *arguments]) == 2
    said = capsys.readouterr()
    assert reason in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--load", "0"],
        ["--load", "0.5,x"],
        ["--workers", "0"],
        ["--loss", "1"],
        ["--delay-ms", "-5"],
        ["--capacity", "inf"],
        ["--generate", "nothing"],
    ],
)
def test_bad_options_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["replay", "--generate", "short", *arguments])
    assert raised.value.code == 2
    assert arguments[0] in capsys.readouterr().err
