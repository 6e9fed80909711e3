"""Medians, ratios within rounds, and the verdicts on the targets."""

from __future__ import annotations

import msgspec
import pytest

from loadtest.bench.jobs import Result
from loadtest.bench.plan import HalfLoad, Load, Paced
from loadtest.bench.samples import Samples, figures
from loadtest.bench.stats import Spread, percentile, ratios, spread
from loadtest.bench.targets import TARGETS, Target, Verdict, judge

RESULT = Result(done=100, seconds=2.0, cpu_seconds=0.01, worker_seconds=0.001, driver_seconds=0.002)


def result(**fields: float | str) -> Result:
    return msgspec.structs.replace(RESULT, **fields)


def test_a_spread_is_the_median_and_the_range() -> None:
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 3)
    assert spread([1.0, 2.0]) == Spread(1.5, 1.0, 2.0, 2)
    assert spread([]) is None


def test_ratios_compare_within_a_round() -> None:
    # The second round ran on a machine that was twice as slow for both.
    assert ratios([10.0, 20.0], [20.0, 40.0]) == Spread(0.5, 0.5, 0.5, 2)


def test_a_round_that_lacks_one_side_is_no_ratio() -> None:
    assert ratios([10.0, None, 5.0], [20.0, 1.0, None]) == Spread(0.5, 0.5, 0.5, 1)
    assert ratios([1.0], [0.0]) is None


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, 0.0), ([7.0], 0.99, 7.0), ([1.0, 2.0, 3.0], 0.5, 2.0), ([1.0, 2.0], 0.5, 1.5), ([0.0, 10.0], 0.99, 9.9)],
)
def test_a_percentile_lies_between_its_neighbours(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == pytest.approx(expected)


def test_a_closed_load_gives_cost_and_rate() -> None:
    found = figures(Load(8192, 100), result())
    assert found == {
        "rps 8 KB": pytest.approx(50.0),
        "cpu_us 8 KB": pytest.approx(100.0),
        "per_cpu_second 8 KB": pytest.approx(10_000.0),
        "load_us 8 KB": pytest.approx(30.0),
    }


def test_nothing_is_charged_where_there_are_no_processes() -> None:
    assert "cpu_us 8 KB" not in figures(Load(8192, 100), result(cpu_seconds=0.0))
    assert "serial_cpu_us 1 KB" not in figures(Load(1024, 100, connections=1), result(cpu_seconds=0.0))
    assert "chunk_us 400" not in figures(Paced(400), result(cpu_seconds=0.0))


def test_one_connection_gives_latency() -> None:
    found = figures(Load(1024, 100, connections=1), result(p50=0.0001, p99=0.001))
    assert found == {
        "serial_p50 1 KB": pytest.approx(100.0),
        "serial_p99 1 KB": pytest.approx(1000.0),
        "serial_cpu_us 1 KB": pytest.approx(100.0),
    }
    found = figures(HalfLoad(8192, 1.0), result(p50=0.0001, p99=0.001))
    assert found == {"half_p50 8 KB": pytest.approx(100.0), "half_p99 8 KB": pytest.approx(1000.0)}


def test_streams_are_charged_by_chunk() -> None:
    found = figures(Paced(400), result(p50=0.001, p99=0.002))
    assert found["chunk_us 400"] == pytest.approx(100.0)
    assert found["ttfb_p99 400"] == pytest.approx(2000.0)


def test_a_load_that_failed_says_nothing() -> None:
    assert figures(Load(8192, 100), result(error="requests failed")) == {}


def test_samples_keep_the_rounds_apart() -> None:
    samples = Samples()
    samples.add("ours", 0, {"a": 1.0})
    samples.add("ours", 2, {"a": 3.0})
    assert samples.rounds("ours", "a") == [1.0, None, 3.0]
    assert samples.spread("ours", "a") == Spread(2.0, 1.0, 3.0, 2)
    assert samples.spread("ours", "b") is None
    assert Samples(samples.as_dict()).rounds("ours", "a") == [1.0, None, 3.0]


def test_a_ratio_of_rounds_of_different_number_uses_those_that_both_have() -> None:
    samples = Samples({"ours": {"a": [1.0, 2.0]}, "peer": {"a": [2.0]}})
    assert samples.ratio("ours", "peer", "a") == Spread(0.5, 0.5, 0.5, 1)


def test_added_latency_is_what_is_above_the_direct_way_in_the_same_round() -> None:
    samples = Samples({"direct": {"p": [1.0, 5.0]}, "ours": {"p": [4.0, 6.0]}})
    samples.subtract("direct", "p", "added")
    assert samples.rounds("ours", "added") == [3.0, 1.0]
    assert samples.rounds("direct", "added") == []


def test_a_target_is_met_on_its_own_side_of_the_limit() -> None:
    assert Target("f", "p", 0.8).met(0.8)
    assert not Target("f", "p", 0.8).met(0.81)
    assert Target("f", "p", 1.0, least=True).met(1.0)
    assert not Target("f", "p", 1.0, least=True).met(0.99)


def test_the_median_of_the_rounds_decides() -> None:
    figure = TARGETS[0].figure
    samples = Samples({"ours": {figure: [79.0, 70.0, 200.0]}, TARGETS[0].peer: {figure: [100.0, 100.0, 100.0]}})
    verdict = judge(samples, "ours")[0]
    assert verdict == Verdict(TARGETS[0], Spread(0.79, 0.7, 2.0, 3))
    assert verdict.met is True
    assert judge(samples, "ours")[1].met is None
