"""What the router is held to, as ratios to its peers within the same rounds. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from loadtest.bench.samples import Samples
from loadtest.bench.stats import Spread


@dataclass(frozen=True, slots=True)
class Target:
    """`figure` of the router by that of a peer: at most `limit`, or at least where `least` is set."""

    figure: str
    peer: str
    limit: float
    least: bool = False

    def met(self, ratio: float) -> bool:
        return ratio >= self.limit if self.least else ratio <= self.limit

    @property
    def bound(self) -> str:
        return f"{'at least' if self.least else 'at most'} {self.limit:g}"


TARGETS = (
    Target("cpu_us 8 KB", "sglang", 0.8),
    Target("cpu_us 64 KB", "sglang", 0.6),
    Target("cpu_us 512 KB", "sglang", 0.6),
    Target("cpu_us 0.5 KB", "vllm", 0.4),
    Target("cpu_us 8 KB", "vllm", 0.4),
    Target("cpu_us 64 KB", "vllm", 0.4),
    Target("cpu_us 512 KB", "vllm", 0.4),
    Target("chunk_us 400", "sglang", 1.0),
    Target("chunk_us 400", "nginx", 1.6),
    Target("added_p50 1 KB", "sglang", 0.8),
    Target("added_p50 64 KB", "sglang", 0.8),
    Target("serial_p99 1 KB", "sglang", 1.0),
    Target("serial_p99 64 KB", "sglang", 1.0),
    Target("per_cpu_second 8 KB", "sglang", 1.0, least=True),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where the router stands on one target; None where one of the two was not measured."""

    target: Target
    ratio: Spread | None

    @property
    def met(self) -> bool | None:
        return None if self.ratio is None else self.target.met(self.ratio.median)


def judge(samples: Samples, ours: str) -> list[Verdict]:
    """Every target, judged by the median of its rounds."""
    return [Verdict(target, samples.ratio(ours, target.peer, target.figure)) for target in TARGETS]
