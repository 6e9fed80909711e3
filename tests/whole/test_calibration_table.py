"""The table of predicted hits: its rows have the shape that calibration promises, on a small scale."""

from __future__ import annotations

import dataclasses

import pytest

from loadtest.calibration import SCENARIOS, Answer, Result, as_text, main, measure


def run(name: str, *, correct: bool = True) -> Result:
    (scenario,) = [scenario for scenario in SCENARIOS if scenario.name == name]
    return measure(scenario, correct=correct, talks=16, requests=120)


@pytest.mark.parametrize("name", ["dense", "hybrid, blocks of 1,600", "hybrid, match unit 32"])
def test_caches_that_keep_what_they_have_are_predicted(name: str) -> None:
    result = run(name)
    assert result.precision is not None
    assert result.recall is not None
    assert result.precision > 0.98
    assert result.recall > 0.85
    assert result.short == 0
    assert not result.causes


def test_after_a_reset_calibration_spares_most_wrong_predictions() -> None:
    off = run("cache emptied by a reset", correct=False)
    on = run("cache emptied by a reset")
    # Without it every conversation pays once; with it, three of each of the two workers do.
    assert on.short * 120 <= 6.5 < off.short * 120
    assert on.precision is not None
    assert off.precision is not None
    assert on.precision > off.precision


def test_a_capacity_that_nobody_declares_is_learned() -> None:
    off = run("the same, capacity not declared", correct=False)
    on = run("the same, capacity not declared")
    assert off.short > 0.3
    assert on.short < 0.7 * off.short


def test_shares_and_the_printed_form(capsys: pytest.CaptureFixture[str]) -> None:
    hit = Answer(1_000, 1_000, 2_000, 100)
    result = Result([hit, dataclasses.replace(hit, cached=500), dataclasses.replace(hit, predicted=500)])
    assert (result.precision, result.recall) == (2_000 / 2_500, 2_000 / 2_500)
    assert (result.wrong, result.short) == (2 / 3, 1 / 3)
    assert Result([dataclasses.replace(hit, predicted=0, cached=0)]).precision is None
    result.causes["evicted"] = 1
    assert (
        as_text([("name", True, result)]).splitlines()[2] == "| name | on | 80.0% | 80.0% | 66.7% | 33.3% | evicted 1 |"
    )
    with pytest.raises(SystemExit):
        main(["--requests", "none"])
    assert "invalid int value" in capsys.readouterr().err
