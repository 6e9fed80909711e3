"""What the live comparison plays, and what it makes of what came of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from loadtest.bench.plan import another_round
from loadtest.bench.publish import replaced
from loadtest.fleet import ROOT
from loadtest.live import prompts
from loadtest.live.__main__ import main
from loadtest.live.judge import Counters, Figures, Moment, judge, measured, over_rounds
from loadtest.live.plan import LEAST_SECONDS, Plan, shortened, traffic
from loadtest.live.player import Seen
from loadtest.live.readings import busy_ticks, total
from loadtest.live.report import BEGIN, END, as_html, as_json, as_table, as_text
from loadtest.live.run import Outcome
from loadtest.live.systems import NAMES
from router.replay.generate import generate
from router.replay.trace import Request, Trace


def test_equal_ids_become_equal_bytes_and_tokens_become_words() -> None:
    first = json.loads(prompts.body(Request(0.0, (1, 2, 3), 1_100, 80, None, 1)))
    later = json.loads(prompts.body(Request(0.0, (1, 2, 4, 5, 6, 7), 3_072, 80, None, 1)))
    assert [message["role"] for message in later["messages"]] == ["system", "user", "assistant"]
    assert first["messages"][0] == later["messages"][0]
    texts = ["".join(message["content"] for message in body["messages"]) for body in (first, later)]
    assert [len(text.split()) for text in texts] == [1_100, 3_072]
    assert texts[0][:4096] == texts[1][:4096]
    assert texts[0][4096:] != texts[1][4096 : len(texts[0])]
    assert first["stream"] is True
    assert first["max_tokens"] == 80 // 8


def test_sessions_are_cut_and_keep_their_order() -> None:
    whole = generate("agent", 300, 1).requests
    kept = shortened(whole, 3)
    assert 0 < len(kept) < len(whole)
    turns: list[int] = []
    for number, request in enumerate(kept):
        turns.append(1 if request.after is None else turns[request.after] + 1)
        assert request.after is None or request.after < number
        if request.after is not None:
            before = kept[request.after]
            assert before.ids[: request.opening] == request.ids[: request.opening]
            assert before.prompt_tokens < request.prompt_tokens
    assert max(turns) == 3
    assert turns.count(1) == sum(request.after is None for request in whole)


def test_a_round_has_the_rate_that_was_asked_for_and_other_prompts_than_the_next() -> None:
    plan = Plan(rate=10.0, speed=2.0, wall_seconds=30.0)
    first, again, second = traffic(plan, 0), traffic(plan, 0), traffic(plan, 1)
    assert first == again
    assert first != second
    roots = [request.at for request in first if request.after is None]
    # All of them, at ten modelled requests a second, two modelled seconds to one.
    assert len(first) / max(roots) == pytest.approx(20.0)
    assert max(roots) > plan.wall_seconds


def test_rounds_of_a_trace_take_one_piece_behind_the_other() -> None:
    trace = Trace("t", tuple(Request(float(number), (number,), 400, 10) for number in range(100)))
    plan = Plan(rate=5.0, speed=1.0, wall_seconds=4.0)
    assert [request.ids[0] for request in traffic(plan, 1, trace)] == list(range(20, 40))
    assert traffic(plan, 1, trace)[0].at == 0.0
    assert len(traffic(Plan(rate=1e4), 0, trace)) == 100


def moment(at: float, *workers: tuple[float, float], own: float = 0.0) -> Moment:
    return Moment(at, tuple(Counters(*worker) for worker in workers), own, own / 2, 2 * own, 2)


BEFORE = moment(1.0, (100.0, 0.0), (0.0, 0.0))
AFTER = moment(5.0, (500.0, 100.0), (200.0, 100.0), own=2.0)


def test_figures_are_of_what_arrived_between_the_readings() -> None:
    seen = [Seen(0.5, 9.0, 9.0, True), Seen(1.0, 1.5, 2.0, True), Seen(4.0, 5.5, 8.0, True), Seen(4.5), Seen(5.1)]
    within = measured(seen, BEFORE, AFTER)
    assert within == seen[1:4]
    found = judge(within, BEFORE, AFTER)
    assert (found.requests, found.errors) == (3, 1)
    assert (found.ttft_mean, found.ttft_p90, found.end_mean) == (1.0, 1.5, 2.5)
    assert found.hit == 200 / 600
    assert found.spread == 300 * 2 / 400
    assert (found.cpu, found.worker_cpu, found.machine) == (0.25, 0.125, 0.5)


def test_a_run_without_an_answer_has_no_figures() -> None:
    with pytest.raises(ValueError, match="no request was answered"):
        judge([Seen(2.0)], BEFORE, AFTER)


def test_reports_name_every_system_with_means_and_errors() -> None:
    one = Figures(10, 1, 0.1, 0.2, 0.3, 1.0, 0.9, 1.5, 0.2, 0.1, 0.4)
    other = Figures(20, 0, 0.3, 0.4, 0.5, 2.0, 0.7, 1.7, 0.2, 0.1, 0.4)
    outcomes = [Outcome(name, [one, other], [Seen(0.0, 0.1, 1.0, True)]) for name in NAMES]
    assert over_rounds([one, other])["ttft_mean"].mean == pytest.approx(0.2)
    table = as_table(outcomes).splitlines()
    assert len(table) == 2 + len(NAMES)
    assert table[2].startswith("| prefix-router, work | 200 ± 100 | 300 ± 100 |")
    assert "| 80.0% | 1.60 | 30 | 1 |" in table[2]
    shown = json.loads(as_json(Plan(), outcomes))
    assert set(shown["systems"]) == set(NAMES)
    assert shown["systems"]["vllm"]["mean"]["hit"]["mean"] == pytest.approx(0.8)
    assert "vllm-router 0.1.17, cache_aware" in as_html(Plan(), outcomes)
    text = as_text({"date": "today"}, outcomes)
    assert "| date | today |" in text
    assert text.endswith("\n".join(table))
    # Where it goes: the page has a place for it.
    assert text in replaced((ROOT / "docs" / "replay.md").read_text(), text, BEGIN, END)


def test_readers_of_expositions_and_of_the_machine() -> None:
    text = '# TYPE a_total counter\na_total{engine="0"} 3.0\na_total{engine="1"} 4.0\na_total_more 5.0\n'
    assert total(text, "a_total") == 7.0
    assert busy_ticks("cpu  10 1 2 100 50 3 4 5 9 9\ncpu0 1 1 1 1\n") == 25


@pytest.mark.parametrize("words", [["--systems", "magic"], ["--rate", "0"], ["--trace", "/nowhere.jsonl"]])
def test_what_can_not_be_played_is_said(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.strip()


def test_too_few_minutes_are_refused_with_the_least_that_is_enough() -> None:
    plan = Plan(rounds=2, minutes=1.0)
    with pytest.raises(ValueError, match=r"2 rounds of 5 systems: at least 2\.7$"):
        plan.fitted(5)
    assert replace(plan, minutes=2.7).fitted(5).wall_seconds >= LEAST_SECONDS


def test_a_plan_of_long_loads_has_as_many_rounds_as_the_minutes_allow() -> None:
    plan = Plan(minutes=10.0).repeated(30.0)
    assert plan.wall_seconds == 30.0
    assert another_round(0, plan, 0.0)
    assert another_round(3, plan, 449.0)
    assert not another_round(3, plan, 451.0)
    with pytest.raises(ValueError, match="at least 4"):
        Plan().repeated(3.9)
