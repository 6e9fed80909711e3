"""What came of a replay in figures, and their mean and standard error over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from router.replay.worker import Job, ModelledWorker

# Name -> what it is, in the order of the tables. Times are seconds.
FIGURES: dict[str, str] = {
    "ttft_mean": "TTFT mean",
    "ttft_p50": "TTFT p50",
    "ttft_p90": "TTFT p90",
    "ttft_p99": "TTFT p99",
    "end_mean": "end to end mean",
    "end_p50": "end to end p50",
    "end_p90": "end to end p90",
    "end_p99": "end to end p99",
    "hit": "hit share",
    "spread": "spread",
}
TTFT = ("ttft_mean", "ttft_p90", "ttft_p99")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure over several seeds."""

    mean: float
    error: float  # standard error; 0 with a single seed

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        count = len(values)
        mean = sum(values) / count
        if count < 2:
            return cls(mean, 0.0)
        variance = sum((value - mean) ** 2 for value in values) / (count - 1)
        return cls(mean, math.sqrt(variance / count))


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the ascending values does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def figures(jobs: Sequence[Job], engines: Sequence[ModelledWorker], begin: float, end: float) -> dict[str, float]:
    """The figures of all requests that arrived within [begin, end]; spread is of the whole replay.

    Hit share: cached over prompt tokens. Spread: tokens computed by the busiest worker over the mean of all.
    """
    seen = [job for job in jobs if begin <= job.arrived <= end]
    if not seen:
        raise ValueError("no request arrived in the time that is measured")
    found: dict[str, float] = {}
    for name, values in (
        ("ttft", sorted(job.first - job.arrived for job in seen)),
        ("end", sorted(job.ended - job.arrived for job in seen)),
    ):
        found[f"{name}_mean"] = sum(values) / len(values)
        for per_cent in (50, 90, 99):
            found[f"{name}_p{per_cent}"] = quantile(values, per_cent / 100)
    found["hit"] = sum(job.cached for job in seen) / sum(job.request.prompt_tokens for job in seen)
    computed = [engine.computed for engine in engines]
    found["spread"] = max(computed) * len(computed) / sum(computed)
    return found


def over_seeds(runs: Sequence[Mapping[str, float]]) -> dict[str, Estimate]:
    """Each figure's mean and standard error."""
    return {name: Estimate.of([run[name] for run in runs]) for name in FIGURES}
