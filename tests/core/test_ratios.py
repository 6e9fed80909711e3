"""Tokens per byte: unknown at first, learned from reports, following them, and bounded."""

from __future__ import annotations

import pytest

from router.calibration.ratios import DEFAULT_RATIO, MAX_MODELS, TokenRatios


def test_what_is_reported_is_believed_from_the_first_report_on() -> None:
    ratios = TokenRatios()
    assert ratios.ratio("m") == DEFAULT_RATIO
    ratios.learn("m", 1_000, 400)
    assert ratios.ratio("m") == 0.4
    assert ratios.ratio("other") == DEFAULT_RATIO


def test_long_prompts_weigh_more_and_old_ones_fade() -> None:
    ratios = TokenRatios()
    ratios.learn("m", 9_000, 1_800)
    ratios.learn("m", 1_000, 800)
    assert ratios.ratio("m") == pytest.approx((0.98 * 1_800 + 800) / (0.98 * 9_000 + 1_000))
    for _ in range(300):
        ratios.learn("m", 1_000, 800)
    assert ratios.ratio("m") == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize(("size", "tokens"), [(0, 5), (5, 0), (-5, 5), (5, -5)])
def test_a_report_of_nothing_teaches_nothing(size: int, tokens: int) -> None:
    ratios = TokenRatios()
    ratios.learn("m", size, tokens)
    assert ratios.ratio("m") == DEFAULT_RATIO
    ratios.learn("m", 1, 1)
    assert ratios.ratio("m") == 1.0


def test_the_model_that_was_met_first_gives_way() -> None:
    ratios = TokenRatios()
    for number in range(MAX_MODELS + 1):
        ratios.learn(f"m{number}", 10, 9)
    assert [ratios.ratio(f"m{number}") for number in (0, 1, MAX_MODELS)] == [DEFAULT_RATIO, 0.9, 0.9]
