"""What came of a run in figures, and those of several rounds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from loadtest.live.player import Seen
from router.replay.measure import Estimate, quantile


@dataclass(frozen=True, slots=True)
class Counters:
    """What one worker counted since it started, in prompt tokens."""

    looked_up: float
    hit: float


@dataclass(frozen=True, slots=True)
class Moment:
    """One reading: the workers' counters, and CPU seconds of all that the run started, its workers, the machine."""

    at: float
    workers: tuple[Counters, ...]
    own_cpu: float
    worker_cpu: float
    machine_cpu: float
    cores: int


@dataclass(frozen=True, slots=True)
class Figures:
    """One run. Times in wall seconds; `cpu`, `worker_cpu` and `machine` are shares of all cores: of the run, of its
    workers alone, and of everybody.

    `spread`: tokens computed by the busiest worker over the mean of all.
    """

    requests: int
    errors: int
    ttft_mean: float
    ttft_p90: float
    ttft_p99: float
    end_mean: float
    hit: float
    spread: float
    cpu: float
    worker_cpu: float
    machine: float


SHOWN = ("ttft_mean", "ttft_p90", "ttft_p99", "end_mean", "hit", "spread", "cpu", "worker_cpu", "machine")


def measured(seen: Iterable[Seen], before: Moment, after: Moment) -> list[Seen]:
    """The requests that arrived between the two readings."""
    return [one for one in seen if before.at <= one.arrived <= after.at]


def judge(seen: Sequence[Seen], before: Moment, after: Moment) -> Figures:
    """The figures of the requests that are measured; raises ValueError if none was answered."""
    good = [one for one in seen if one.ok and one.ended is not None]
    if not good:
        raise ValueError("no request was answered in the time that is measured")
    ttft = sorted(one.first - one.arrived for one in good)
    ends = [one.ended - one.arrived for one in good if one.ended is not None]
    looked_up = [late.looked_up - early.looked_up for early, late in _pairs(before, after)]
    hits = [late.hit - early.hit for early, late in _pairs(before, after)]
    computed = [asked - hit for asked, hit in zip(looked_up, hits, strict=True)]
    time = (after.at - before.at) * after.cores
    return Figures(
        requests=len(seen),
        errors=len(seen) - len(good),
        ttft_mean=sum(ttft) / len(ttft),
        ttft_p90=quantile(ttft, 0.9),
        ttft_p99=quantile(ttft, 0.99),
        end_mean=sum(ends) / len(ends),
        hit=sum(hits) / max(1.0, sum(looked_up)),
        spread=max(computed) * len(computed) / max(1.0, sum(computed)),
        cpu=(after.own_cpu - before.own_cpu) / time,
        worker_cpu=(after.worker_cpu - before.worker_cpu) / time,
        machine=(after.machine_cpu - before.machine_cpu) / time,
    )


def _pairs(before: Moment, after: Moment) -> Iterable[tuple[Counters, Counters]]:
    return zip(before.workers, after.workers, strict=True)


def over_rounds(rounds: Sequence[Figures]) -> Mapping[str, Estimate]:
    """Each figure's mean and standard error."""
    return {name: Estimate.of([getattr(figures, name) for figures in rounds]) for name in SHOWN}
