"""What the counters did in the last minutes, a row for every few seconds: taken whether anybody looks or not."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, Final

from router.control.recent import look_back
from router.decisions import DecisionRing
from router.metrics import Histogram, Metrics
from router.policy import Reason

STEP_SECONDS: Final = 5.0
STEPS: Final = 180
# So many of the last decisions tell how fast prompts are computed.
TELLING: Final = 200
# Prompts that had something to look for and resumed nothing; short ones would make the comparison unfair.
WITHOUT_HIT: Final = frozenset(
    {Reason.MISS, Reason.SPILL, Reason.ONLY, Reason.CACHE_DISABLED, Reason.BELOW_BLOCK_FLOOR}
)
REASONS: Final = tuple(reason.value for reason in Reason)


class History:
    """Rows of what happened in each step; `version` grows with every row, `saved_seconds` with what caches spared."""

    def __init__(self, metrics: Metrics, ring: DecisionRing) -> None:
        self._metrics = metrics
        self._ring = ring
        self._rows: deque[dict[str, Any]] = deque(maxlen=STEPS)
        self._before = self._read()
        self._due = float("-inf")
        self.version = 0
        self.speed: float | None = None
        self.saved_seconds: float | None = None

    def tick(self, now: float) -> None:
        """Call about once a second; a row is taken when its time has come."""
        if now < self._due:
            return
        self._due = now + STEP_SECONDS if self._due < now - STEP_SECONDS else self._due + STEP_SECONDS
        read = self._read()
        self._rows.append(self._row(self._before, read))
        self._before = read
        self.version += 1

    def as_dict(self) -> dict[str, Any]:
        """The rows, oldest first; counts in the order of `reasons`, times in seconds, None where nothing was seen."""
        return {"step_seconds": STEP_SECONDS, "steps": STEPS, "reasons": REASONS, "rows": list(self._rows)}

    def _read(self) -> dict[str, Any]:
        metrics = self._metrics
        reasons: Counter[str] = Counter()
        for (_, reason), count in metrics.decisions.values.items():
            reasons[reason] += int(count)
        return {
            "reasons": reasons,
            "predicted": metrics.predicted.total(),
            "reported": metrics.reported.total(),
            "hit": _count_and_sum(metrics.ttft_seconds, {Reason.HIT}),
            "miss": _count_and_sum(metrics.ttft_seconds, WITHOUT_HIT),
        }

    def _row(self, before: dict[str, Any], read: dict[str, Any]) -> dict[str, Any]:
        reported = read["reported"] - before["reported"]
        self.speed = look_back(self._ring.find(limit=TELLING), {}).speed or self.speed
        if self.speed and reported:
            self.saved_seconds = (self.saved_seconds or 0.0) + reported / self.speed
        return {
            "at": round(time.time()),
            "reasons": [read["reasons"][reason] - before["reasons"][reason] for reason in REASONS],
            "predicted": int(read["predicted"] - before["predicted"]),
            "reported": int(reported),
            "hit_ttft": _mean(before["hit"], read["hit"]),
            "miss_ttft": _mean(before["miss"], read["miss"]),
        }


def _count_and_sum(histogram: Histogram, reasons: Iterable[str]) -> tuple[float, float]:
    wanted = {str(reason) for reason in reasons}
    count = total = 0.0
    for labels, series in histogram.values.items():
        if labels[-1] in wanted:
            total += series[-1]
            count += sum(series) - series[-1]
    return count, total


def _mean(before: tuple[float, float], after: tuple[float, float]) -> float | None:
    count = round(after[0] - before[0])
    return round((after[1] - before[1]) / count, 4) if count else None
