"""From the facts about a worker to findings; from the prompts of a probe to a verdict."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.cachemodel import profile_from_labels
from router.doctor.facts import Facts, Lengths, Probe, Sent, asks_outside, count_engines, read_lengths, speaks_as_router
from router.doctor.findings import Finding, Level, compare, diagnose, exit_code, turn_on
from router.doctor.judge import PLAN, Confidence, Judgement, Verdict, judge
from router.doctor.probing import size
from router.metrics import Metrics
from router.workers.discovery import MetricsFacts

PLAIN = {"block_size": "16", "enable_prefix_caching": "True", "mamba_cache_mode": "none"}
HYBRID = {
    "block_size": "1600",
    "enable_prefix_caching": "True",
    "mamba_cache_mode": "align",
    "mamba_block_size": "1600",
    "prefix_match_unit": "None",
    "prefix_cache_retention_interval": "0",
    "num_gpu_blocks": "127",
}


def facts(labels: dict[str, str] | None = None, version: str | None = "0.33.0", **more: object) -> Facts:
    values: dict[str, object] = {
        "url": "http://w",
        "health_status": 200,
        "models_status": 200,
        "models": ("m",),
        "window": 32_768,
        "version": version,
        "metrics_status": 200,
        "metrics": MetricsFacts(cache_labels=labels),
        "profile": profile_from_labels(labels or {}),
        **more,
    }
    return Facts(**values)  # type: ignore[arg-type]


def codes(found: tuple[Finding, ...]) -> dict[str, Level]:
    return {finding.code: finding.level for finding in found}


def sent(*seconds: float, cached: tuple[int | None, ...] = (None,) * 5, tokens: int | None = 2_000) -> tuple[Sent, ...]:
    return tuple(Sent(text, tokens, one, took) for text, one, took in zip(PLAN, cached, seconds, strict=True))


FLAT = (3.07, 3.22, 3.21, 3.13, 3.2)
DROPS = (4.67, 1.72, 1.61, 4.37, 1.47)


# -- findings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "code", "level", "change"),
    [
        (facts(trouble="refused"), "unreachable", Level.UNREACHABLE, None),
        (facts(is_router=True), "router", Level.UNREACHABLE, "workers behind it"),
        (facts(PLAIN, models_status=401, models=()), "key_missing", Level.PROBLEM, "worker_api_key"),
        (facts(PLAIN, models_status=401, models=(), with_key=True), "key_refused", Level.PROBLEM, "api_key"),
        (facts(PLAIN, health_status=404), "no_health_route", Level.NOTE, None),
        (facts(PLAIN, health_status=503), "unhealthy", Level.PROBLEM, None),
        (facts(PLAIN, health_status=None), "unhealthy", Level.PROBLEM, None),
        (facts(PLAIN, models=()), "no_models", Level.PROBLEM, None),
        (facts(None, metrics_status=404), "cache_unknown", Level.ADVICE, "--disable-log-stats"),
        (facts(PLAIN | {"enable_prefix_caching": "False"}), "cache_disabled", Level.PROBLEM, "--enable-prefix-caching"),
        (facts(HYBRID | {"mamba_cache_mode": "none"}), "cache_disabled", Level.PROBLEM, "--enable-prefix-caching"),
        (facts(HYBRID), "coarse_block", Level.PROBLEM, "--prefix-match-unit 32"),
        (facts(HYBRID | {"block_size": "528", "mamba_block_size": "528"}), "coarse_block", Level.PROBLEM, "unit 16"),
        (facts(HYBRID | {"sliding_window": "4096"}), "coarse_block", Level.PROBLEM, "sliding window"),
        (facts(HYBRID | {"prefix_match_unit": "48"}), "match_unit_idle", Level.PROBLEM, "divides"),
        (facts(HYBRID), "few_states", Level.NOTE, None),
        (facts(HYBRID), "last_state_only", Level.NOTE, "--prefix-cache-retention-interval"),
        (facts(PLAIN, engines=4), "several_engines", Level.ADVICE, "--data-parallel-external-lb"),
        (facts(PLAIN), "traffic_unknown", Level.NOTE, None),
        (facts(PLAIN | {"kv_offloading_size": "4.0"}), "tiers", Level.NOTE, None),
    ],
)
def test_each_fact_has_its_finding(known: Facts, code: str, level: Level, change: str | None) -> None:
    (found,) = [finding for finding in diagnose(known, None) if finding.code == code]
    assert found.level is level
    assert (change or "") in (found.change or "")


def test_a_router_is_told_by_its_metrics() -> None:
    metrics = Metrics()
    metrics.gauge("router_processes", "Those that share the port.", (), lambda: [((), 1)])
    assert speaks_as_router(metrics.render())
    assert not speaks_as_router(b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0.0\n")


def test_a_worker_with_nothing_to_change_has_no_problem() -> None:
    known = facts(
        PLAIN, lengths=Lengths(10, ((1000.0, 4),)), probe=Probe(sent(*DROPS, cached=(0, 1984, 1984, 0, 1984)))
    )
    found = diagnose(known, judge(known.probe) if known.probe else None)
    assert set(codes(found).values()) == {Level.NOTE}
    assert exit_code(found) == 0


def test_a_match_unit_settles_the_coarse_block() -> None:
    found = codes(diagnose(facts(HYBRID | {"prefix_match_unit": "32"}), None))
    assert not {"coarse_block", "match_unit_idle"} & set(found)


@pytest.mark.parametrize(
    ("labels", "version", "wanted", "unwanted"),
    [
        (HYBRID, "0.33.0", "--enable-prefix-caching", "--mamba-cache-mode"),
        (HYBRID, "0.34.1", "--enable-prefix-caching", "--mamba-cache-mode"),
        (HYBRID, "0.20.2", "--enable-prefix-caching --mamba-cache-mode align", "recurrent"),
        (HYBRID, None, "--enable-prefix-caching --mamba-cache-mode align", "recurrent"),
        (PLAIN, "0.20.2", "if the model has recurrent layers, also --mamba-cache-mode align", "0.33"),
        ({"block_size": "16"}, None, "in releases before 0.33, also --mamba-cache-mode align", "leave out"),
    ],
)
def test_the_arguments_are_those_of_model_and_release(
    labels: dict[str, str], version: str | None, wanted: str, unwanted: str
) -> None:
    change = turn_on(facts(labels, version))
    assert wanted in change
    assert unwanted not in change


@pytest.mark.parametrize(
    ("lengths", "code", "share"),
    [
        (Lengths(100, ((1000.0, 70), (2000.0, 90), (5000.0, 100))), "below_block_floor", "70% to 90%"),
        (Lengths(100, ((1000.0, 20), (2000.0, 20), (5000.0, 100))), "traffic", "20%"),
    ],
)
def test_traffic_under_the_floor_is_a_problem_if_it_is_most_of_it(lengths: Lengths, code: str, share: str) -> None:
    (found,) = [one for one in diagnose(facts(HYBRID, lengths=lengths), None) if one.code == code]
    assert found.text.startswith(f"{share} of its 100 prompts")


def test_a_flat_probe_is_a_problem_if_it_is_sure() -> None:
    for probe, level in ((Probe(sent(*FLAT)), Level.PROBLEM), (Probe(sent(*FLAT), busy=True), Level.NOTE)):
        known = facts(PLAIN, probe=probe)
        assert codes(diagnose(known, judge(probe)))["probe_flat"] is level


def test_workers_of_one_model_are_compared() -> None:
    off = facts(PLAIN | {"enable_prefix_caching": "False"})
    assert codes(compare([facts(PLAIN), off])) == {"mixed_fleet": Level.PROBLEM}
    unsaid = facts({name: value for name, value in PLAIN.items() if name != "enable_prefix_caching"})
    assert compare([facts(PLAIN), unsaid]) == ()
    assert compare([facts(PLAIN), facts(PLAIN), facts(None)]) == ()
    assert compare([facts(PLAIN), facts(HYBRID, models=("other",))]) == ()


@pytest.mark.parametrize(
    ("levels", "code"),
    [((), 0), (("note", "advice"), 0), (("note", "problem"), 1), (("problem", "unreachable"), 2)],
)
def test_the_exit_code_is_that_of_the_worst(levels: tuple[str, ...], code: int) -> None:
    assert exit_code([Finding("x", Level(level), "") for level in levels]) == code


# -- the verdict of a probe ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probe", "verdict", "confidence"),
    [
        (Probe(sent(*FLAT)), Verdict.FLAT, Confidence.LIKELY),
        (Probe(sent(*DROPS)), Verdict.HIT, Confidence.LIKELY),
        (Probe(sent(*DROPS), busy=True), Verdict.HIT, Confidence.WEAK),
        (Probe(sent(9.0, 1.0, 1.0, 1.05, 1.0)), Verdict.FLAT, Confidence.LIKELY),  # the first one warmed the engine up
        (Probe(sent(3.0, 1.0, 2.9, 3.0, 1.0)), Verdict.UNCLEAR, Confidence.WEAK),
        (Probe(sent(0.01, 0.002, 0.002, 0.01, 0.002)), Verdict.UNCLEAR, Confidence.WEAK),
        (Probe(sent(*FLAT, cached=(0, 1984, 1984, 0, 1984))), Verdict.HIT, Confidence.CERTAIN),
        (Probe(sent(*DROPS, cached=(0, 0, 0, 0, 0))), Verdict.FLAT, Confidence.CERTAIN),
        (Probe(sent(*FLAT), counted_queries=10_000, counted_hits=0), Verdict.FLAT, Confidence.CERTAIN),
        (Probe(sent(*FLAT), counted_queries=10_000, counted_hits=5_952), Verdict.HIT, Confidence.CERTAIN),
        # Other requests moved the counters, or they did not move at all: the times have to tell.
        (Probe(sent(*FLAT), counted_queries=40_000, counted_hits=30_000), Verdict.FLAT, Confidence.LIKELY),
        (Probe(sent(*FLAT), counted_queries=0, counted_hits=0), Verdict.FLAT, Confidence.LIKELY),
        (
            Probe(sent(*FLAT, cached=(0, 0, 0, 0, 0)), counted_queries=10_000, counted_hits=9),
            Verdict.UNCLEAR,
            Confidence.WEAK,
        ),
    ],
)
def test_a_verdict_rests_on_counts_first_and_then_on_times(
    probe: Probe, verdict: Verdict, confidence: Confidence
) -> None:
    found = judge(probe)
    assert isinstance(found, Judgement)
    assert (found.verdict, found.confidence) == (verdict, confidence)


def test_an_incomplete_probe_has_no_verdict() -> None:
    assert judge(Probe(sent(*FLAT)[:4])) is None
    assert judge(Probe(skipped="no model")) is None


# -- sizes and histograms --------------------------------------------------------------------------------------


def test_a_prompt_is_as_long_as_the_floor_asks() -> None:
    assert size(facts(PLAIN), 65_536) == 2_000
    tokens = size(facts(HYBRID), 65_536)
    assert isinstance(tokens, int)
    assert 1.25 * 1_601 <= tokens <= 65_536 // 5
    assert isinstance(size(facts(HYBRID, window=1_500), 65_536), str)
    assert isinstance(size(facts(HYBRID), 5_000), str)
    assert isinstance(size(facts(PLAIN, models=()), 65_536), str)


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 20), st.integers(1, 1 << 18))
def test_all_prompts_of_a_probe_fit_its_budget_and_the_window(budget: int, window: int, block: int) -> None:
    labels = HYBRID | {"block_size": str(block), "mamba_block_size": str(block)}
    tokens = size(facts(labels, window=window), budget)
    if isinstance(tokens, int):
        assert 0 < tokens * len(PLAN) <= budget
        assert tokens < window


def test_a_histogram_is_summed_over_engines() -> None:
    page = "\n".join(
        f'vllm:request_prompt_tokens_bucket{{engine="{engine}",le="{limit}"}} {count}'
        for engine in "01"
        for limit, count in (("1000.0", 3), ("2000.0", 5), ("+Inf", 6))
    )
    lengths = read_lengths(page.encode())
    assert lengths == Lengths(12, ((1000.0, 6), (2000.0, 10)))
    assert lengths.below(1_601) == (6, 10)
    assert lengths.below(100_000) == (10, 12)


def test_engines_and_outside_caches_are_read_from_the_page() -> None:
    page = b'vllm:num_requests_running{model_name="m",engine="0"} 1.0\nvllm:num_requests_running{engine="1"} 0.0\n'
    assert count_engines(page) == 2
    assert count_engines(b"") == 1
    assert asks_outside(b'vllm:external_prefix_cache_queries_total{engine="0"} 7.0')
    assert not asks_outside(b'vllm:external_prefix_cache_queries_total{engine="0"} 0.0\n')


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"vllm:request_prompt_tokens_bucket 5",
        b'vllm:request_prompt_tokens_bucket{le="wide"} 5',
        b'vllm:request_prompt_tokens_bucket{le="10"} 5',
        b'vllm:request_prompt_tokens_bucket{le="+Inf"} NaN',
        b'vllm:request_prompt_tokens_bucket{le="+Inf"} -1',
        b'vllm:request_prompt_tokens_bucket{le="\xff',
    ],
)
def test_an_unreadable_histogram_is_unknown(page: bytes) -> None:
    assert read_lengths(page) is None


@given(st.binary(max_size=200))
def test_no_page_breaks_the_reader(noise: bytes) -> None:
    read_lengths(b"vllm:request_prompt_tokens_bucket" + noise)
