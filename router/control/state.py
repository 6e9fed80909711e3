"""Everything the dashboard shows, in one answer that costs the same however many people look."""

from __future__ import annotations

import secrets
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Final

import msgspec
from starlette.responses import Response

from router.calibration import Verdict
from router.control.context import ControlContext
from router.control.decisions import shown
from router.control.exchange import raw_answer
from router.control.health import can_serve
from router.control.workers import describe
from router.decisions import DecisionRecord
from router.metrics import Histogram
from router.policy import Reason

FRESH_SECONDS: Final = 0.5
RECENT: Final = 50
MODELS_SHOWN: Final = 8
# Prompts that had something to look for and resumed nothing; short ones would make the comparison unfair.
WITHOUT_HIT: Final = frozenset(
    {Reason.MISS, Reason.SPILL, Reason.ONLY, Reason.CACHE_DISABLED, Reason.BELOW_BLOCK_FLOOR}
)


class State:
    """`GET /router/state`; made at most once every half second."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        # Behind a balancer, one page may be answered by several replicas in turn.
        self._replica = secrets.token_hex(4)
        self._made_at = float("-inf")
        self._body = b""

    async def state(self) -> Response:
        """The fleet, the totals since the start, and the last decisions."""
        now = self._context.clock()
        if now - self._made_at >= FRESH_SECONDS:
            self._body = msgspec.json.encode(self._read(now))
            self._made_at = now
        return raw_answer(self._body)

    def _read(self, now: float) -> dict[str, Any]:
        context = self._context
        records = context.ring.find()
        ttft = context.metrics.ttft_seconds
        return {
            "at": round(time.time(), 3),
            "replica": self._replica,
            "draining": context.is_draining(),
            "ready": not context.is_draining() and any(map(can_serve, context.registry)),
            "policy": context.settings.policy.name,
            "sync": {"up": context.sync.up, "peers": context.sync.peers, "lag_seconds": context.sync.lag_seconds},
            "workers": [_brief(describe(context, worker)) for worker in context.registry],
            "index": {"blocks": len(context.index), "max_blocks": context.index.max_blocks},
            "totals": self._totals(),
            "recent_hits": _calibration(records),
            "ttft": {
                "with_hit": summary(ttft, {Reason.HIT}),
                "without_hit": summary(ttft, WITHOUT_HIT),
            },
            "decisions": [shown(record, now) for record in records[:RECENT]],
        }

    def _totals(self) -> dict[str, Any]:
        metrics = self._context.metrics
        reasons: Counter[str] = Counter({reason.value: 0 for reason in Reason})
        for (_, reason), count in metrics.decisions.values.items():
            reasons[reason] += int(count)
        return {
            "reasons": reasons,
            "predicted_tokens": int(metrics.predicted.total()),
            "reported_tokens": int(metrics.reported.total()),
            "blocks_queried": int(metrics.blocks_queried.total()),
            "blocks_matched": int(metrics.blocks_matched.total()),
            "retries": int(metrics.retries.total()),
            "aborts": int(metrics.aborts.total()),
            "shed": int(metrics.shed.total()),
        }


def _brief(row: dict[str, Any]) -> dict[str, Any]:
    """A worker's row with the names of its first models alone."""
    names = [model["name"] for model in row["models"]]
    return {**row, "models": names[:MODELS_SHOWN], "model_count": len(names)}


def _calibration(records: Iterable[DecisionRecord]) -> dict[str, Any]:
    """Predicted against reported cached tokens, over those recent answers that reported any number."""
    predicted = reported = 0
    verdicts = {verdict.value: 0 for verdict in Verdict}
    for record in records:
        if record.verdict is not None:
            verdicts[record.verdict] += 1
        if record.reported_cached_tokens is not None:
            predicted += record.predicted_cached_tokens or 0
            reported += record.reported_cached_tokens
    return {"predicted_tokens": predicted, "reported_tokens": reported, "verdicts": verdicts}


def summary(histogram: Histogram, reasons: Iterable[str]) -> dict[str, float | int | None]:
    """Count, mean, median and 95th percentile, in seconds, of the series whose last label is one of the reasons."""
    wanted = {str(reason) for reason in reasons}
    sums = [0.0] * (len(histogram.buckets) + 2)
    for labels, series in histogram.values.items():
        if labels[-1] in wanted:
            sums = [total + part for total, part in zip(sums, series, strict=True)]
    *counts, total = sums
    count = int(sum(counts))
    return {
        "count": count,
        "mean": total / count if count else None,
        "p50": quantile(histogram.buckets, counts, 0.5),
        "p95": quantile(histogram.buckets, counts, 0.95),
    }


def quantile(bounds: Sequence[float], counts: Sequence[float], share: float) -> float | None:
    """The value below which this share lies, by linear interpolation within its bucket, as Prometheus does it.

    `counts` has one entry more than `bounds`; what lies above the last bound is reported as that bound.
    """
    running = list(accumulate(counts))
    if not running[-1]:
        return None
    wanted = share * running[-1]
    at = bisect_left(running, wanted)
    if at >= len(bounds):
        return bounds[-1]
    lower, before = (bounds[at - 1], running[at - 1]) if at else (0.0, 0.0)
    return lower + (bounds[at] - lower) * (wanted - before) / counts[at]
