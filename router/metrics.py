"""The one place that names metrics.

Counting happens on the request path, so it is a dict update here, or, for what is known to be counted together, an
addition to a cell of a row; prometheus_client only renders at scrape time.
Label values that clients could invent are bounded: beyond `MAX_SERIES` a metric counts under "other".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

MAX_SERIES: Final = 5_000
OTHER: Final = "other"
SECONDS: Final[tuple[float, ...]] = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
                                     120.0, 300.0)  # fmt: skip
# Typed as they are since mypyc takes a global that is a tuple of numbers for one that was never set.
MICROS: Final[tuple[float, ...]] = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2, 1e-1)
LAGS: Final[tuple[float, ...]] = (1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1, 0.25, 0.5, 1.0)

Labels = tuple[str, ...]
Cell = list[float]  # of one number


class Counter:
    """A counter per label values."""

    __slots__ = ("_cells", "help", "labels", "name")

    def __init__(self, name: str, help: str, labels: Labels = ()) -> None:
        self.name = name
        self.help = help
        self.labels = labels
        self._cells: dict[Labels, Cell] = {} if labels else {(): [0.0]}

    def inc(self, labels: Labels = (), amount: float = 1.0) -> None:
        self.cell(labels)[0] += amount

    def cell(self, labels: Labels = ()) -> Cell:
        """Where these label values are counted; it stays the same, and is seen at 0 before anything is added."""
        cell = self._cells.get(labels)
        if cell is None:
            if len(self._cells) >= MAX_SERIES:
                labels = (OTHER,) * len(self.labels)
            cell = self._cells.setdefault(labels, [0.0])
        return cell

    @property
    def values(self) -> dict[Labels, float]:
        """What was counted so far."""
        return {labels: cell[0] for labels, cell in self._cells.items()}

    def total(self) -> float:
        return sum(cell[0] for cell in self._cells.values())

    def collect(self) -> Metric:
        family = CounterMetricFamily(self.name.removesuffix("_total"), self.help, labels=self.labels)
        for labels, cell in self._cells.items():
            family.add_metric(labels, cell[0])
        return family


class Histogram:
    """Cumulative buckets per label values."""

    __slots__ = ("buckets", "help", "labels", "name", "values")

    def __init__(self, name: str, help: str, labels: Labels = (), buckets: tuple[float, ...] = SECONDS) -> None:
        self.name = name
        self.help = help
        self.labels = labels
        self.buckets = buckets
        # Per series: a count for each bucket and for +Inf, then the sum.
        self.values: dict[Labels, list[float]] = {}

    def observe(self, value: float, labels: Labels = ()) -> None:
        series = self.series(labels)
        series[bisect_left(self.buckets, value)] += 1
        series[-1] += value

    def series(self, labels: Labels = ()) -> list[float]:
        """Where these label values are counted; it stays the same."""
        series = self.values.get(labels)
        if series is None:
            if len(self.values) >= MAX_SERIES:
                labels = (OTHER,) * len(self.labels)
            series = self.values.setdefault(labels, [0.0] * (len(self.buckets) + 2))
        return series

    def collect(self) -> Metric:
        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        for labels, series in self.values.items():
            running = 0.0
            buckets = []
            for bound, count in zip((*map(str, self.buckets), "+Inf"), series, strict=False):
                running += count
                buckets.append((bound, running))
            family.add_metric(labels, buckets, series[-1])
        return family


Sample = tuple[Labels, float]


class Reading:
    """A gauge or counter that is read from its owner at scrape time."""

    __slots__ = ("help", "kind", "labels", "name", "read")

    def __init__(
        self, name: str, help: str, labels: Labels, read: Callable[[], Iterable[Sample]], *, counter: bool = False
    ) -> None:
        self.name = name
        self.help = help
        self.labels = labels
        self.read = read
        self.kind = CounterMetricFamily if counter else GaugeMetricFamily

    def collect(self) -> Metric:
        family: CounterMetricFamily | GaugeMetricFamily
        family = self.kind(self.name.removesuffix("_total"), self.help, labels=self.labels)
        for labels, value in self.read():
            family.add_metric(labels, value)
        return family


class Row:
    """The series that requests of one endpoint, model, worker and reason have in common, looked up once."""

    __slots__ = ("_decisions", "_ends", "_labels", "_matched", "_metrics", "_queried", "_seconds", "_statuses",
                 "_tokens", "_ttft", "_verdicts")  # fmt: skip

    def __init__(self, metrics: Metrics, endpoint: str, model: str, worker: str, reason: str) -> None:
        self._metrics = metrics
        self._labels = (endpoint, model, worker)
        self._decisions = metrics.decisions.cell((model, reason))
        self._queried = metrics.blocks_queried.cell()
        self._matched = metrics.blocks_matched.cell()
        self._ttft = metrics.ttft_seconds.series((model, worker, reason))
        self._seconds = metrics.request_seconds.series((endpoint,))
        self._statuses: dict[int, Cell] = {}
        self._ends: dict[str, Cell] = {}
        self._verdicts: dict[str, Cell] = {}
        self._tokens: tuple[Cell, Cell, Cell] | None = None

    def decided(self, blocks: int, matched: int) -> None:
        """A worker was chosen."""
        self._decisions[0] += 1
        self._queried[0] += blocks
        self._matched[0] += matched

    def first_byte(self, seconds: float) -> None:
        """The answer has begun."""
        self._ttft[bisect_left(SECONDS, seconds)] += 1
        self._ttft[-1] += seconds

    def answered(self, status: int, outcome: str) -> None:
        """The answer has ended."""
        cell = self._statuses.get(status)
        if cell is None:
            cell = self._statuses[status] = self._metrics.requests.cell((*self._labels, str(status)))
        cell[0] += 1
        cell = self._ends.get(outcome)
        if cell is None:
            cell = self._ends[outcome] = self._metrics.outcomes.cell((outcome,))
        cell[0] += 1

    def judged(self, verdict: str) -> None:
        """The answer has been compared with what was predicted."""
        cell = self._verdicts.get(verdict)
        if cell is None:
            cell = self._verdicts[verdict] = self._metrics.verdicts.cell((self._labels[2], verdict))
        cell[0] += 1

    def cached(self, predicted: int, reported: int) -> None:
        """Tokens that were to be resumed, and those that were."""
        if self._tokens is None:
            metrics, labels = self._metrics, self._labels[1:]
            self._tokens = (
                metrics.predicted.cell(labels),
                metrics.reported.cell(labels),
                metrics.confirmed.cell(labels),
            )
        cells = self._tokens
        cells[0][0] += predicted
        cells[1][0] += reported
        cells[2][0] += min(predicted, reported)

    def took(self, seconds: float) -> None:
        """The request is done with."""
        self._seconds[bisect_left(SECONDS, seconds)] += 1
        self._seconds[-1] += seconds


class Metrics:
    """All metrics that the request path feeds, and a registry to which parts add what they can be asked for.

    Of several processes on one port each has its number in a label, so that none is added to or taken for another.
    """

    def __init__(self, process: str = "") -> None:
        self._process = process
        self._parts: list[Counter | Histogram | Reading] = []
        self._rows: dict[tuple[str, str, str, str], Row] = {}
        self._count_requests()
        self._count_predictions()
        self._count_troubles()
        self.loop_lag = self._histogram(
            "router_event_loop_lag_seconds", "Delay of a periodic timer, seconds.", (), LAGS
        )
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def _count_requests(self) -> None:
        self.requests = self._counter(
            "router_requests_total", "Requests answered.", ("endpoint", "model", "worker", "status")
        )
        self.outcomes = self._counter("router_outcomes_total", "How requests ended.", ("outcome",))
        self.request_seconds = self._histogram("router_request_seconds", "Whole requests, seconds.", ("endpoint",))
        self.ttft_seconds = self._histogram(
            "router_ttft_seconds", "Time to the first body byte, seconds.", ("model", "worker", "reason")
        )
        self.decision_seconds = self._histogram(
            "router_decision_seconds", "Prompt reading, hashing, lookup and choice, seconds.", (), MICROS
        )
        self.decisions = self._counter("router_affinity_decisions_total", "Decisions by reason.", ("model", "reason"))
        self.blocks_queried = self._counter("router_affinity_blocks_queried_total", "Whole blocks of all prompts.")
        self.blocks_matched = self._counter(
            "router_affinity_blocks_matched_total", "Blocks that the chosen worker held."
        )

    def _count_predictions(self) -> None:
        self.predicted = self._counter(
            "router_predicted_cached_tokens_total", "Tokens predicted to be resumed.", ("model", "worker")
        )
        self.reported = self._counter(
            "router_reported_cached_tokens_total", "Tokens that the engine reports as cached.", ("model", "worker")
        )
        self.confirmed = self._counter(
            "router_confirmed_cached_tokens_total", "Predicted tokens that were cached.", ("model", "worker")
        )
        self.verdicts = self._counter("router_calibration_verdicts_total", "Answers by verdict.", ("worker", "verdict"))
        self.emptied = self._counter("router_emptied_caches_total", "Caches found to be empty.", ("worker",))
        self.counter_checks = self._counter(
            "router_counter_checks_total", "Comparisons with a worker's counters.", ("worker", "finding")
        )
        self.fallbacks = self._counter(
            "router_post_hit_fallbacks_total", "Predicted hits that fell short.", ("model", "worker", "cause")
        )

    def _count_troubles(self) -> None:
        self.retries = self._counter("router_retries_total", "Requests sent to another worker.", ("cause",))
        self.ejections = self._counter("router_ejections_total", "Workers ejected.", ("worker", "cause"))
        self.aborts = self._counter("router_aborts_total", "Requests that their client left.", ("stage",))
        self.shed = self._counter("router_shed_total", "Requests refused for want of room.", ("cause",))
        self.upstream_errors = self._counter("router_upstream_errors_total", "Failed attempts.", ("worker", "cause"))

    def _counter(self, name: str, help: str, labels: Labels = ()) -> Counter:
        counter = Counter(name, help, labels)
        self._parts.append(counter)
        return counter

    def _histogram(self, name: str, help: str, labels: Labels = (), buckets: tuple[float, ...] = SECONDS) -> Histogram:
        histogram = Histogram(name, help, labels, buckets)
        self._parts.append(histogram)
        return histogram

    def row(self, endpoint: str, model: str, worker: str, reason: str) -> Row:
        """What is counted of a request once its worker is chosen."""
        key = (endpoint, model, worker, reason)
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= MAX_SERIES:
                self._rows.clear()  # the series stay, and are looked up again
            row = self._rows[key] = Row(self, *key)
        return row

    def gauge(self, name: str, help: str, labels: Labels, read: Callable[[], Iterable[Sample]]) -> None:
        """Add a gauge that is read at scrape time."""
        self._parts.append(Reading(name, help, labels, read))

    def counter(self, name: str, help: str, labels: Labels, read: Callable[[], Iterable[Sample]]) -> None:
        """Add a counter whose owner keeps the count."""
        self._parts.append(Reading(name, help, labels, read, counter=True))

    def collect(self) -> Iterator[Metric]:
        """All families, for prometheus_client."""
        for part in self._parts:
            family = part.collect()
            if self._process:
                family.samples = [
                    sample._replace(labels={**sample.labels, "process": self._process}) for sample in family.samples
                ]
            yield family

    def names(self) -> set[str]:
        """Every metric name, for the documentation's check."""
        return {part.name for part in self._parts}

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)
