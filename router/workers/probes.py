"""Probes: asks every worker now and then how it is and what it serves, and tells the registry.

One task per worker, owned by the prober, plus one that ends ejections. A probe is GET /health, then /metrics, then
/v1/models where that may have changed; each has its own deadline and limit, and none is ever followed elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple

from router.cachemodel import CacheProfile, profile_from_labels
from router.settings import HealthSettings
from router.workers import passive
from router.workers.discovery import MAX_BYTES, MetricsFacts, all_hits, parse_metrics, parse_models
from router.workers.fetch import Answer, FetchError, Refused, Shortage, Target, TimedOut
from router.workers.health import Event, State
from router.workers.registry import Facts, Model, Registry, Worker
from router.workers.watch import CONFIRM_SECONDS, Lives, Streak, Verdict

log = logging.getLogger("router.workers")

MODELS_EVERY: Final = 6  # probes of a ready worker from one look at its models to the next
_HEALTH_BYTES: Final = 64 << 10
_TICK_SECONDS: Final = 0.25
_START_SPACING: Final = 0.01  # seconds from one worker's first probe to the next one's
_NO_SUCH_ROUTE: Final = frozenset({404, 405, 501})


class Prober:
    """Keeps the registry's picture of every worker current, from `start` to `aclose`."""

    def __init__(
        self,
        registry: Registry,
        health: HealthSettings,
        *,
        worker_key: str | None,
        clock: Callable[[], float],
        wall: Callable[[], float],
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.registry = registry
        self.health = health
        self.worker_key = worker_key
        self.clock = clock
        self.wall = wall
        self.draw = draw
        self._probes: dict[str, _Probe] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._tls: ssl.SSLContext | None = None
        # Whether ejections may be under way.
        self._ejected = asyncio.Event()
        self._ejected.set()

    async def __aenter__(self) -> Prober:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def start(self) -> None:
        """Begin to probe all workers, and those that will be added."""
        if self._tasks:
            return
        hooks = self.registry.hooks
        hooks.added.append(self._add)
        hooks.removed.append(self._remove)
        hooks.state.append(self._state_changed)
        self._own(self._end_ejections(), "ejections")
        spread = min(self.health.interval, _START_SPACING * len(self.registry))
        for worker in self.registry:
            self._add(worker, spread * self.draw())

    async def aclose(self) -> None:
        """Stop all probes and wait until they have stopped."""
        if not self._tasks:
            return
        hooks = self.registry.hooks
        hooks.added.remove(self._add)
        hooks.removed.remove(self._remove)
        hooks.state.remove(self._state_changed)
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._probes.clear()

    def reconfigure(self, health: HealthSettings, worker_key: str | None) -> None:
        """Go on with other settings, and with the keys that the workers have now; nothing known is lost."""
        self.health = health
        self.worker_key = worker_key
        for probe in self._probes.values():
            probe.reconfigure(health, self._target(probe.worker))

    def poke(self, worker: Worker) -> None:
        """Probe a worker now, for a request has met trouble there; does no more than hasten the next probe."""
        probe = self._probes.get(worker.id)
        if probe is not None:
            probe.poked.set()

    def _add(self, worker: Worker, delay: float = 0.0) -> None:
        probe = _Probe(self, worker, self._target(worker))
        self._probes[worker.id] = probe
        probe.task = self._own(probe.run(delay), worker.id)

    def _remove(self, worker: Worker) -> None:
        probe = self._probes.pop(worker.id, None)
        if probe is not None and probe.task is not None:
            probe.task.cancel()

    def _target(self, worker: Worker) -> Target:
        if self._tls is None and worker.url.startswith("https:"):
            self._tls = ssl.create_default_context()  # takes too long to make one for every worker
        return Target(worker.url, worker.api_key or self.worker_key, self._tls)

    def _own(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine, name=f"probe-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _end_ejections(self) -> None:
        while True:
            await self._ejected.wait()
            await asyncio.sleep(_TICK_SECONDS)
            passive.tick(self.registry, self.clock())
            if not any(worker.state is State.EJECTED for worker in self.registry):
                self._ejected.clear()

    def _state_changed(self, worker: Worker, before: State, after: State) -> None:
        if after is State.EJECTED:
            self._ejected.set()
        self._log_change(worker, before, after)

    def _log_change(self, worker: Worker, before: State, after: State) -> None:
        probe = self._probes.get(worker.id)
        why = f" ({probe.trouble})" if probe is not None and probe.trouble and after is State.UNREADY else ""
        level = logging.INFO if after in (State.READY, State.PROBATION) else logging.WARNING
        log.log(level, "worker %s is %s, was %s%s", worker.id, after, before, why)


class Finding(NamedTuple):
    """A verdict with its reason, in words that fit a log."""

    verdict: Verdict
    why: str = ""


_GOOD = Finding(Verdict.GOOD)


class _Probe:
    """The probes of one worker, one after another."""

    def __init__(self, prober: Prober, worker: Worker, target: Target) -> None:
        self.worker = worker
        self.poked = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.trouble = ""
        self._prober = prober
        self._registry = prober.registry
        self._health = prober.health
        self._target = target
        self._streak = Streak()
        self._lives = Lives()
        self._looks = 0
        # No vLLM, for it has no health route. llama.cpp's Python server answers for its models only when the running
        # request has ended, or ends it for that; so it is not asked while requests run.
        self._plain = False
        self._labels: Mapping[str, str] | None = None
        self._noted: set[str] = set()

    def reconfigure(self, health: HealthSettings, target: Target) -> None:
        """From the next question on."""
        self._health = health
        self._target = target

    async def run(self, delay: float) -> None:
        """Probe for ever, at first after `delay` seconds."""
        await asyncio.sleep(delay)
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            self.poked.clear()
            try:
                await self._look()
            except Exception as error:  # a fault of ours must not end the watch over a worker
                self._note(logging.ERROR, f"probing failed: {type(error).__name__}")
            await self._pause(began)

    async def _pause(self, began: float) -> None:
        """Until the next probe is due or, a little after the start of the last one, somebody asks for it."""
        loop = asyncio.get_running_loop()
        interval = self._health.interval
        spacing = min(CONFIRM_SECONDS, interval)
        seconds = self._streak.pause(self.worker.state, interval) * (0.9 + 0.2 * self._prober.draw())
        try:
            async with asyncio.timeout_at(max(began + seconds, loop.time() + spacing / 2)):
                await self.poked.wait()
        except TimeoutError:
            return
        await asyncio.sleep(max(0.0, began + spacing - loop.time()))

    async def _look(self) -> None:
        """One probe, from the first question to what follows from the answers."""
        finding, models = await self._check()
        if finding.verdict is Verdict.GOOD:
            metrics = await self._read_metrics()
            if metrics.asleep:
                finding = Finding(Verdict.ASLEEP, "asleep")
            else:
                finding = await self._study(metrics, models)
        self._conclude(finding)

    async def _check(self) -> tuple[Finding, dict[str, Model] | None]:
        """Whether the worker is well; for one without a health route, whether it can say what it serves."""
        answer = await self._get("/health", _HEALTH_BYTES)
        if isinstance(answer, Finding):
            return answer, None
        if 200 <= answer.status < 300:
            self._plain = False
            return _GOOD, None
        if answer.status not in _NO_SUCH_ROUTE:
            return Finding(Verdict.BAD, f"/health: status {answer.status}"), None
        self._plain = True
        if self.worker.load and not self._unsettled:
            return _GOOD, None
        return await self._read_models()

    async def _study(self, metrics: MetricsFacts, models: dict[str, Model] | None) -> Finding:
        """Learn what a worker that is well says about itself."""
        worker = self.worker
        epoch = self._lives.epoch(metrics, worker.epoch, self._prober.wall())
        begun = epoch is not None and self._registry.set_epoch(worker, epoch)
        finding = _GOOD
        if models is None and (self._unsettled or begun or self._models_due()):
            finding, models = await self._read_models()
            if models is None and not self._unsettled:
                self._note(logging.WARNING, f"its models are as before: {finding.why}")
                finding = _GOOD
        self._registry.learn(
            worker,
            Facts(
                models=worker.facts.models if models is None else models,
                profile=self._profile(metrics, begun=begun),
                running=metrics.running,
                waiting=metrics.waiting,
                started=metrics.started,
                cache_queries=metrics.cache_queries,
                cache_hits=all_hits(metrics),
            ),
        )
        return finding

    @property
    def _unsettled(self) -> bool:
        """Whether the worker's models have yet to be read before it can be used."""
        return not self.worker.facts.models or self.worker.state in (State.STARTING, State.UNREADY)

    def _models_due(self) -> bool:
        self._looks += 1
        return self._looks % MODELS_EVERY == 0 and not (self._plain and self.worker.load)

    def _profile(self, metrics: MetricsFacts, *, begun: bool) -> CacheProfile:
        labels = metrics.cache_labels
        if labels is not None and labels != self._labels:
            self._labels = labels
            return profile_from_labels(labels)
        return CacheProfile() if labels is None and begun else self.worker.facts.profile

    async def _read_metrics(self) -> MetricsFacts:
        answer = await self._get("/metrics", MAX_BYTES)
        if isinstance(answer, Answer):
            metrics = parse_metrics(answer.body) if answer.status == 200 else MetricsFacts()
            why = "/metrics: nothing known" if answer.status == 200 else f"/metrics: status {answer.status}"
        else:
            metrics, why = MetricsFacts(), answer.why
        if metrics == MetricsFacts():
            self._note(logging.INFO, f"its cache, load and restarts are not known exactly: {why}")
        return metrics

    async def _read_models(self) -> tuple[Finding, dict[str, Model] | None]:
        answer = await self._get("/v1/models", MAX_BYTES)
        if isinstance(answer, Finding):
            return answer, None
        if answer.status != 200:
            return Finding(Verdict.BAD, f"/v1/models: status {answer.status}"), None
        models = parse_models(answer.body)
        return (_GOOD, models) if models else (Finding(Verdict.BAD, "/v1/models: no models"), None)

    async def _get(self, path: str, limit: int) -> Answer | Finding:
        timeout = self._health.timeout
        began = self._prober.clock()
        try:
            return await self._target.get(path, limit=limit, timeout=timeout)
        except Refused as error:
            return Finding(Verdict.REFUSED, str(error))
        except Shortage as error:
            return Finding(Verdict.VOID, str(error))
        except TimedOut as error:
            if self._prober.clock() - began > 1.5 * timeout:
                return Finding(Verdict.VOID, "this router stood still")
            return Finding(Verdict.SLOW, f"{path}: {error}")
        except FetchError as error:
            return Finding(Verdict.BAD, f"{path}: {error}")

    def _conclude(self, finding: Finding) -> None:
        """Count the probe and move the worker if it is one too many."""
        worker, verdict = self.worker, finding.verdict
        if verdict is Verdict.VOID:
            self._note(logging.WARNING, f"a probe told nothing: {finding.why}")
            return
        before = worker.state
        now = self._prober.clock()
        self.trouble = finding.why
        worker.refused = verdict is Verdict.REFUSED
        worker.asleep = verdict is Verdict.ASLEEP
        event = self._streak.judge(
            verdict,
            before,
            self._health,
            busy=now - worker.last_served < self._health.interval * self._health.fall,
            held=before is State.UNREADY and now < worker.until,
        )
        if worker.asleep:
            self._lives.slept()
        elif worker.refused or event is Event.DOWN:
            self._lives.lost()
        if before is State.STARTING and finding.why:
            self._note(logging.WARNING, f"not ready yet: {finding.why}")
        if event is Event.DOWN and before in (State.READY, State.PROBATION) and not (worker.asleep or worker.draining):
            passive.fell(worker, now, self._health)
        if event is not None and self._registry.feed(worker, event) and event is Event.DOWN:
            self._noted.clear()

    def _note(self, level: int, text: str) -> None:
        """Log something once until the worker goes down."""
        if text not in self._noted:
            self._noted.add(text)
            log.log(level, "worker %s: %s", self.worker.id, text)
