"""What the router says of its own traffic, in words."""

from __future__ import annotations

from typing import Any

import pytest

from router.cachemodel import CacheProfile, Rule
from router.control.findings import ENOUGH, View, WorkerView, findings, floors
from router.control.recent import look_back
from router.decisions import DecisionRecord
from router.doctor.findings import Finding, Level

PLAIN = CacheProfile(enabled=True)
COARSE = CacheProfile(enabled=True, block_size=1600, rule=Rule.OPEN_BLOCK)
OFF = CacheProfile(enabled=False)


def decision(reason: str = "hit", **fields: Any) -> DecisionRecord:
    values: dict[str, Any] = {
        "request_id": "r",
        "at": 0.0,
        "endpoint": "/v1/chat/completions",
        "model": "m",
        "worker": "w1",
        "reason": reason,
        "matched_blocks": 6,
        "blocks": 7,
        "resumable_tokens": 768,
        "prompt_tokens": 900,
        "load": 1,
        "min_load": 0,
        "slack": 1,
        "runner_up": None,
        "attempt": 1,
    }
    return DecisionRecord(**{**values, **fields})


def answered(reason: str, cached: int | None, predicted: int, verdict: str) -> DecisionRecord:
    return decision(
        reason,
        outcome="ok",
        reported_prompt_tokens=1000,
        reported_cached_tokens=cached,
        predicted_cached_tokens=predicted,
        verdict=verdict,
    )


def worker(name: str = "w1", state: str = "ready", profile: CacheProfile = PLAIN, model: str = "m") -> WorkerView:
    return WorkerView(name, state, [model], profile)


def found(records: list[DecisionRecord], *workers: WorkerView, **fields: Any) -> dict[str, Finding]:
    fleet = workers or (worker(),)
    view = View(fleet, look_back(records, floors(fleet)), **fields)
    return {finding.code: finding for finding in findings(view)}


def test_affinity_that_works_says_so_and_what_it_is_worth() -> None:
    records = [decision("hit")] * 30 + [decision("miss")] * 10 + [decision("short")] * 5
    text = found(records, saved=75.0, ttft_hit=0.2, ttft_without=2.4)["working"].text
    assert text == (
        "Affinity works: 75 % of the last 40 prompts found their beginning in a cache; their first byte came 12.0 "
        "times sooner than without, on average; 75 s of prefill were spared since the start."
    )


def test_whether_it_works_comes_before_what_could_be_better() -> None:
    records = [decision("hit")] * 30 + [decision("spill")] * 30
    assert list(found(records, worker(), worker("w2", "ejected"))) == ["working", "workers_ejected", "spills"]


def test_with_nothing_to_say_it_says_that() -> None:
    assert list(found([])) == ["idle"]


def test_prompts_below_the_block_floor_are_counted_and_the_argument_named() -> None:
    records = [decision("below_block_floor", prompt_tokens=1_000)] * 70 + [decision("hit", prompt_tokens=9_000)] * 30
    finding = found(records, worker(profile=COARSE))["below_block_floor"]
    assert finding.text.startswith("70 % of prompts to m are shorter than 3,200 tokens")
    assert finding.level is Level.PROBLEM
    assert "--prefix-match-unit 32" in str(finding.change)


@pytest.mark.parametrize(
    ("count", "tokens", "profile"),
    [(ENOUGH - 1, 1_000, COARSE), (ENOUGH, 9_000, COARSE), (ENOUGH, 10, PLAIN)],
)
def test_the_floor_is_no_matter_with_few_long_or_fine_grained_prompts(
    count: int, tokens: int, profile: CacheProfile
) -> None:
    records = [decision("miss", prompt_tokens=tokens)] * count
    assert "below_block_floor" not in found(records, worker(profile=profile))


def test_engines_that_reuse_short_prompts_refute_the_floor() -> None:
    records = [decision("below_block_floor", prompt_tokens=2_000, reported_cached_tokens=1_600)] * 40
    said = found(records, worker(profile=COARSE))
    assert "below_block_floor" not in said
    assert said["finer_than_told"].text.startswith("40 of the last 40 prompts to m were shorter than 3,200 tokens")


def test_a_cache_that_is_off_is_named_with_its_worker_and_its_flag() -> None:
    finding = found([decision("cache_disabled")], worker(profile=OFF))["cache_disabled"]
    assert "off on w1" in finding.text
    assert "--enable-prefix-caching" in str(finding.change)


@pytest.mark.parametrize(
    ("state", "level"), [("unready", Level.PROBLEM), ("ejected", Level.PROBLEM), ("draining", Level.NOTE)]
)
def test_workers_that_are_away_are_named(state: str, level: Level) -> None:
    finding = found([], worker(), worker("w2", state))[f"workers_{state}"]
    assert finding.text == f"1 of 2 workers is {state}: w2."
    assert finding.level is level


def test_no_worker_at_all_comes_first_and_is_gravest() -> None:
    view = View([worker(state="unready")], look_back([], {}))
    assert findings(view)[0].level is Level.UNREACHABLE
    assert findings(view)[0].text == "No worker can serve: w1 unready."


def test_spills_are_advice_from_a_seventh_on() -> None:
    assert "spills" in found([decision("hit")] * 40 + [decision("spill")] * 10)
    assert "spills" not in found([decision("hit")] * 46 + [decision("spill")] * 4)


def test_prompts_that_never_repeat_are_told_unless_reuse_is_off() -> None:
    records = [decision("miss")] * ENOUGH
    assert found(records)["no_repeats"].text.startswith("0 % of the last 30 prompts to m")
    assert "no_repeats" not in found(records, reuse={"m": "observe"})
    assert "reuse_not_on" in found(records, reuse={"m": "observe"})


def test_a_worker_whose_hits_fall_short_is_named() -> None:
    records = [answered("hit", 100, 900, "fell_short")] * 10 + [answered("hit", 900, 900, "confirmed")] * 30
    assert found(records)["fell_short"].text.startswith("25 % of the hits predicted on w1")
    assert "fell_short" not in found(records[5:])


def test_answers_of_which_nothing_was_expected_do_not_hide_that_hits_fall_short() -> None:
    new = [answered("miss", 0, 0, "confirmed"), answered("miss", 400, 0, "better")] * 100
    records = [answered("hit", 100, 900, "fell_short")] * 10 + [answered("hit", 900, 900, "confirmed")] * 30
    assert found(new + records)["fell_short"].text.startswith("25 % of the hits predicted on w1")
    assert "fell_short" not in found(new + records[:10])
    answers = look_back(new, {}).workers["w1"].as_dict()
    assert answers["verdicts"] == {"confirmed": 0, "fell_short": 0, "better": 100, "unknown": 0}


def test_answers_without_reports_ask_for_the_flag() -> None:
    records = [answered("hit", None, 900, "unknown")] * ENOUGH
    assert "--enable-prompt-tokens-details" in str(found(records)["no_usage_details"].change)
    assert "no_usage_details" not in found([*records, *[answered("hit", 900, 900, "confirmed")] * 5])


def test_replicas_that_do_not_hear_each_other() -> None:
    assert found([], sync_up=False)["cut_off"].level is Level.PROBLEM
    assert found([], sync_up=True, peers=0)["alone"].level is Level.NOTE
    assert not {"cut_off", "alone"} & set(found([], sync_up=True, peers=1))
    assert not {"cut_off", "alone"} & set(found([], sync_up=None))


def test_workers_of_one_model_that_cache_differently() -> None:
    assert "mixed_fleet" in found([], worker(), worker("w2", profile=COARSE))
    assert "mixed_fleet" not in found([], worker(), worker("w2"), worker("w3", profile=COARSE, model="other"))
    # One that declares nothing is only assumed to be as it is.
    assert "mixed_fleet" not in found([], worker(profile=COARSE), worker("w2", profile=CacheProfile()))


def test_refusals_are_counted() -> None:
    assert found([], shed=1)["shed"].text == "1 request was refused for want of room since the start."
    outage = found([], shed=2, unserved=2)
    assert outage["unserved"].text == "2 requests were refused since the start because no worker could serve."
    assert "shed" not in outage


# -- the sums that findings rest on ----------------------------------------------------------------------------


def test_speed_is_that_of_the_fastest_streamed_answers() -> None:
    streamed = [
        decision("miss", reported_prompt_tokens=1_000, first_byte_seconds=seconds, total_seconds=9.0)
        for seconds in (0.5, 1.0, 2.0)
    ]
    whole = [decision("miss", reported_prompt_tokens=1_000, first_byte_seconds=0.001, total_seconds=0.001)] * 3
    assert look_back(streamed + whole, {}).speed == pytest.approx(1_000.0)
    assert look_back(whole, {}).speed == pytest.approx(1e6)
    assert look_back([decision("hit")], {}).speed is None


def test_a_short_prefill_tells_nothing_of_the_engine() -> None:
    quick = decision(reported_prompt_tokens=9_000, reported_cached_tokens=8_990, first_byte_seconds=0.1)
    assert look_back([quick], {}).speed is None


def test_sums_by_worker_count_what_was_confirmed() -> None:
    records = [answered("hit", 500, 900, "fell_short"), answered("hit", 950, 900, "confirmed")]
    answers = look_back(records, {}).workers["w1"].as_dict()
    assert answers["predicted_tokens"] == 1_800
    assert answers["reported_tokens"] == 1_450
    assert answers["confirmed_tokens"] == 1_400
    assert answers["verdicts"] == {"confirmed": 1, "fell_short": 1, "better": 0, "unknown": 0}
