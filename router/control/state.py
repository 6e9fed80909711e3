"""Everything the dashboard shows, in one answer that costs the same however many people look."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Final

import msgspec
from starlette.responses import Response

from router.control.context import ControlContext
from router.control.decisions import shown
from router.control.exchange import raw_answer
from router.control.findings import View, WorkerView, findings, floors
from router.control.health import can_serve
from router.control.history import WITHOUT_HIT, History
from router.control.recent import Answers, Recent, look_back
from router.control.workers import describe
from router.metrics import Histogram
from router.policy import Reason

FRESH_SECONDS: Final = 0.5
RECENT: Final = 30
MODELS_SHOWN: Final = 8


class State:
    """`GET /router/state`; made at most once every half second."""

    def __init__(self, context: ControlContext, history: History) -> None:
        self._context = context
        self._history = history
        self._made_at = float("-inf")
        self._body = b""

    async def state(self) -> Response:
        """The fleet, the totals since the start, what follows from the last decisions, and the last of them."""
        return raw_answer(self.body())

    def body(self) -> bytes:
        """The same as JSON."""
        now = self._context.clock()
        if now - self._made_at >= FRESH_SECONDS:
            self._body = msgspec.json.encode(self._read(now))
            self._made_at = now
        return self._body

    def _read(self, now: float) -> dict[str, Any]:
        context = self._context
        records = context.ring.find()
        workers = [
            WorkerView(
                worker.id,
                "draining" if worker.draining else worker.state.value,
                list(worker.facts.models)[:MODELS_SHOWN],
                worker.facts.profile,
            )
            for worker in context.registry
        ]
        recent = look_back(records, floors(workers))
        ttft = context.metrics.ttft_seconds
        hit, without = summary(ttft, {Reason.HIT}), summary(ttft, WITHOUT_HIT)
        return {
            "at": round(time.time(), 3),
            "replica": context.replica,
            "draining": context.is_draining(),
            "ready": not context.is_draining() and any(map(can_serve, context.registry)),
            "policy": context.settings.policy.name,
            "findings": self._findings(workers, recent, hit["mean"], without["mean"]),
            "sync": self._sync(),
            "workers": [self._worker(describe(context, worker), recent) for worker in context.registry],
            "index": {"blocks": len(context.index), "max_blocks": context.index.max_blocks},
            "totals": self._totals(),
            "recent_hits": recent.total.as_dict(),
            "prefill": {"tokens_per_second": recent.speed, "saved_seconds": self._history.saved_seconds},
            "ttft": {"with_hit": hit, "without_hit": without},
            "decisions": [_brief(shown(record, now)) for record in records[:RECENT]],
        }

    def _worker(self, row: dict[str, Any], recent: Recent) -> dict[str, Any]:
        """A worker's row with the names of its first models alone, and what its answers said of its cache."""
        names = [model["name"] for model in row["models"]]
        answers = recent.workers.get(row["id"]) or Answers()
        return {**row, "models": names[:MODELS_SHOWN], "model_count": len(names), "cached": answers.as_dict()}

    def _findings(
        self, workers: Sequence[WorkerView], recent: Recent, hit: float | None, without: float | None
    ) -> list[dict[str, Any]]:
        context = self._context
        view = View(
            workers=workers,
            recent=recent,
            sync_up=context.sync.up,
            peers=context.sync.peers,
            shed=int(context.metrics.shed.total()),
            unserved=int(context.metrics.shed.values.get(("no_worker_available",), 0)),
            saved=self._history.saved_seconds,
            ttft_hit=hit,
            ttft_without=without,
            reuse={name: model.reuse for name, model in context.settings.models.items()},
        )
        return [
            {"code": found.code, "level": found.level.value, "text": found.text, "change": found.change}
            for found in findings(view)
        ]

    def _sync(self) -> dict[str, Any]:
        """The link to the others, and what each of them has in flight as this replica knows it."""
        sync = self._context.sync
        others: Counter[str] = Counter()
        for worker in self._context.registry:
            for sender, part in worker.remote.items():
                others[sender] += part.in_flight
        return {
            "up": sync.up,
            "peers": sync.peers,
            "lag_seconds": sync.lag_seconds,
            "warming": sync.warming,
            "gaps": sync.gaps,
            "dropped": sum(sync.dropped.values()),
            "others": [{"replica": sender[:8], "in_flight": count} for sender, count in sorted(others.items())],
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


def _brief(decision: dict[str, Any]) -> dict[str, Any]:
    """A decision without its sentence, which `/router/decisions` has, and without what is not known yet."""
    return {name: value for name, value in decision.items() if value is not None and name != "why"}


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
