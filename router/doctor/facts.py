"""What is known of one worker. Pure: read from its answers, whatever they are; what is missing is unknown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from router.cachemodel import CacheProfile
from router.workers.discovery import MetricsFacts

_LENGTHS = b"vllm:request_prompt_tokens_bucket"
_MAX_BUCKETS = 10_000
_ENGINE = re.compile(rb'[{,]engine="([^"]{1,64})"')
_EXTERNAL = b"vllm:external_prefix_cache_queries_total"
# Every replica has it, with or without workers.
_ROUTER = b"# TYPE router_processes "


class Version(NamedTuple):
    """Major and minor number of an engine's release."""

    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of the prompts that a worker has served: how many had at most so many tokens, ascending."""

    total: int
    at_most: tuple[tuple[float, int], ...]

    def below(self, tokens: int) -> tuple[int, int]:
        """The least and the greatest number of prompts shorter than `tokens`, as far as the buckets tell."""
        least, most = 0, self.total
        for limit, count in self.at_most:
            if limit < tokens:
                least = max(least, count)
            else:
                most = min(most, count)
        return least, max(least, most)


@dataclass(frozen=True, slots=True)
class Sent:
    """One prompt of the probe and what came of it; `text` is the number of the text, 0 for the first."""

    text: int
    tokens: int | None
    cached_tokens: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Probe:
    """The prompts of the probe in order, and what the worker's own counters moved by meanwhile.

    `busy`: other requests ran at the same time. `skipped`: why there are no prompts, or not all of them.
    """

    sent: tuple[Sent, ...] = ()
    counted_queries: float | None = None
    counted_hits: float | None = None
    busy: bool = False
    skipped: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was learnt of one worker. A status of None: not asked, or no answer (then `trouble` says why)."""

    url: str
    trouble: str | None = None  # why nothing answered at all
    with_key: bool = False
    health_status: int | None = None
    models_status: int | None = None
    models: tuple[str, ...] = ()
    window: int | None = None
    version: str | None = None
    metrics_status: int | None = None
    metrics: MetricsFacts = field(default_factory=MetricsFacts)
    profile: CacheProfile = field(default_factory=CacheProfile)
    lengths: Lengths | None = None
    engines: int = 1  # data-parallel ranks behind the one address
    external_cache: bool = False  # a connector to a cache outside the GPU was asked for blocks
    is_router: bool = False  # a prefix-router, not an engine
    probe: Probe | None = None

    @property
    def labels(self) -> Mapping[str, str] | None:
        """How the worker declares its cache."""
        return self.metrics.cache_labels

    @property
    def release(self) -> Version | None:
        """The engine's release, where it says so."""
        match = re.match(r"v?(\d{1,6})\.(\d{1,6})", self.version or "")
        return Version(int(match[1]), int(match[2])) if match else None

    @property
    def hybrid(self) -> bool | None:
        """Whether the model has recurrent layers; None if its labels do not tell."""
        labels = self.labels
        if labels is None:
            return None
        if labels.get("mamba_cache_mode", "").lower() in ("align", "all"):
            return True
        sizes = (labels.get("mamba_block_size", ""), labels.get("mamba_page_size_padded", ""))
        if any(size.isascii() and size.isdecimal() and int(size[:12]) > 0 for size in sizes):
            return True
        return None if "mamba_cache_mode" not in labels else False


def read_lengths(page: bytes) -> Lengths | None:
    """The histogram of prompt lengths on a metrics page, summed over engines; None if there is none to be read."""
    lines = [line for line in page.split(b"\n") if line.startswith(_LENGTHS)]
    if not lines or len(lines) > _MAX_BUCKETS:
        return None
    counts: dict[float, float] = {}
    try:
        text = b"# TYPE vllm:request_prompt_tokens histogram\n" + b"\n".join(lines) + b"\n"
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                limit = float(sample.labels["le"])
                counts[limit] = counts.get(limit, 0) + sample.value
        whole = [(limit, int(counts[limit])) for limit in sorted(counts)]
    except (ValueError, KeyError, OverflowError):
        return None
    if not whole or whole[-1][0] != float("inf") or any(count < 0 for _, count in whole):
        return None
    return Lengths(whole[-1][1], tuple(whole[:-1]))


def count_engines(page: bytes) -> int:
    """Engines that report their load on one metrics page; 1 where none does."""
    lines = [line for line in page.split(b"\n") if line.startswith(b"vllm:num_requests_running{")]
    names = {match[1] for line in lines[:_MAX_BUCKETS] if (match := _ENGINE.search(line))}
    return max(1, len(names))


def speaks_as_router(page: bytes) -> bool:
    """Whether a metrics page is that of a prefix-router."""
    return any(line.startswith(_ROUTER) for line in page.split(b"\n"))


def asks_outside(page: bytes) -> bool:
    """Whether the worker looks blocks up in a cache outside its GPU."""
    return any(
        line.startswith(_EXTERNAL) and not line.rstrip().endswith((b" 0", b" 0.0")) for line in page.split(b"\n")
    )
