"""Wires everything: the only module that knows all others."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import Protocol, TypeVar

from router.affinity import AffinityMap
from router.allocator import give_back
from router.calibration import TokenRatios
from router.collector import look_around
from router.control.app import ControlContext, create_control
from router.dataplane.admission import Admission
from router.dataplane.connections import Connections
from router.dataplane.decision_log import DecisionLog
from router.dataplane.dispatch import Dispatcher
from router.dataplane.entry import Entry
from router.dataplane.gate import Bounds
from router.dataplane.notes import noting_in
from router.dataplane.outgoing import Outgoing
from router.dataplane.pools import Pools
from router.dataplane.relay import Relay
from router.dataplane.spans import open_tracing
from router.dataplane.stored import StoredResponses
from router.dataplane.tenancy import Tenancy, describe_tenancy
from router.dataplane.upstream_types import UpstreamLimits
from router.dataplane.verdicts import Verdicts
from router.decision_file import DecisionFile
from router.decisions import DecisionRing
from router.descriptors import connections_for, raise_limit
from router.hashing import fingerprint
from router.metrics import Metrics, Sample
from router.reload import Reloader, Sources
from router.settings import Settings
from router.siblings import Member, Siblings
from router.sync import NoSync, Sync
from router.sync_metrics import describe_sync
from router.workers.dns_fleet import DnsFleet, resolver_of
from router.workers.health import State
from router.workers.named import NamedWorkers
from router.workers.probes import Prober
from router.workers.registry import Registry, Worker
from router.workers.selection import Selector

log = logging.getLogger("router")
TICK_SECONDS = 1.0
LAG_SECONDS = 0.1
LOOK_SECONDS = 0.01
Name = TypeVar("Name", bound=str)


class _Counting(Protocol):
    """A part that counts what became of its work."""

    @property
    def results(self) -> Mapping[str, float]: ...


class Router:
    """One replica: the ASGI app, its protocol, and the tasks that live as long as it does.

    It is alone at its port, or a `member` of several.
    """

    def __init__(self, settings: Settings, member: Member | None = None, sources: Sources | None = None) -> None:
        self.settings = settings
        self.reloader = Reloader(sources, self.reconfigure, settings)
        self.sender = secrets.token_hex(8)
        self.metrics = Metrics(str(member.number) if member else "")
        self.draining = False
        self._clock = time.monotonic
        self._tasks: set[asyncio.Task[None]] = set()
        self._make_memory()
        self._make_data_plane(member)
        self._make_control_plane(member)
        self._connect_hooks()
        self._describe()
        self.named.follow(settings)

    def _make_memory(self) -> None:
        """What is known of workers, prompts and tenants, and who keeps it up to date."""
        settings, affinity = self.settings, self.settings.affinity
        self.registry = Registry(self._clock)
        self.index = AffinityMap(affinity.max_blocks, affinity.ttl_seconds, affinity.tentative_seconds)
        self.ratios = TokenRatios()
        self.ring = DecisionRing(settings.limits.decisions)
        self.selector = Selector(settings, self.registry, self.index, self.ratios, random.random)
        self.tenancy = Tenancy(settings, lambda: 1 + self.sync.peers)
        self.selector.quota.reconfigure(affinity.max_blocks, affinity.ttl_seconds, self.tenancy.share)
        key = _worker_key(settings)
        self.prober = Prober(self.registry, settings.health, worker_key=key, clock=self._clock, wall=time.time)
        self.dns = DnsFleet(settings, self.registry, resolver_of(settings.dns), random.random)
        self.named = NamedWorkers(self.registry, self.dns, self._clock)
        self.sync = self._make_sync()

    def _make_data_plane(self, member: Member | None) -> None:
        """The way of a request to its worker and back, and who is told of it."""
        settings = self.settings
        self.decision_log = DecisionLog()
        self.admission = Admission(self.registry, settings.limits.queue_per_worker, settings.timeouts.queue)
        keys_end_here = bool(settings.auth.client_keys)
        limits = _upstream_limits(settings)
        self.outgoing = Outgoing()
        self.pools = Pools(
            self.registry,
            limits,
            _worker_key(settings),
            keys_end_here=keys_end_here,
            outgoing=self.outgoing,
        )
        self.verdicts = self._make_verdicts()
        reveal = settings.decision_headers
        self.relay = Relay(self.registry, self.verdicts, self.metrics, self._clock, reveal=reveal)
        self.stored = StoredResponses(self.registry, self.pools, self.relay, self.metrics)
        self.dispatcher = self._make_dispatcher()
        self.decision_file = self._open_decision_file(member)
        if self.decision_file is not None:
            self.dispatcher.ended_hooks.append(noting_in(self.decision_file))
        self.tracing = open_tracing(settings.tracing, self.sender)
        if self.tracing is not None:
            self.dispatcher.tracer = self.tracing
            self.dispatcher.ended_hooks.append(self.tracing.end)

    def _make_verdicts(self) -> Verdicts:
        return Verdicts(
            self.registry,
            self.index,
            self.ratios,
            self.metrics,
            self._clock,
            time.time,
            correct=self.settings.calibration.correct,
        )

    def _make_dispatcher(self) -> Dispatcher:
        return Dispatcher(
            self.settings,
            self.selector,
            self.admission,
            self.pools,
            self.relay,
            self.metrics,
            self.ring,
            self.decision_log,
            self.stored,
            self.tenancy,
            clock=self._clock,
            draw=random.random,
            poke=self.prober.poke,
        )

    def _make_control_plane(self, member: Member | None) -> None:
        """What people and scrapers ask, and the protocol that tells their requests from inference."""
        settings = self.settings
        context = ControlContext(
            settings,
            self.registry,
            self.selector,
            self.index,
            self.ring,
            self.metrics,
            self.sync,
            self.is_draining,
            self._clock,
            self.sender[:8],
            self.verdicts.ledger_of,
            self.tenancy.prepare,
            self.verdicts.emptied_at,
        )
        self.control = create_control(context)
        self.siblings = Siblings(member, self.control) if member else None
        control = self.siblings or self.control
        self.app = Entry(
            settings,
            self.dispatcher,
            self.stored,
            control,
            self.metrics,
            self.decision_log,
            self.tenancy,
            self.outgoing,
        )
        self.connections = Connections(_bounds(settings), self.app)

    def reconfigure(self, settings: Settings) -> None:
        """Take other settings over in one step, as far as that is possible while serving; what runs goes on."""
        self.settings = settings
        affinity = settings.affinity
        self.index.max_blocks, self.index.ttl = affinity.max_blocks, affinity.ttl_seconds
        self.index.tentative_ttl = affinity.tentative_seconds
        self.tenancy.reconfigure(settings)
        self.selector.reconfigure(settings)
        self.selector.quota.reconfigure(affinity.max_blocks, affinity.ttl_seconds, self.tenancy.share)
        self.selector.quota.keep(self.tenancy.tenants)
        self.admission.reconfigure(settings.limits.queue_per_worker, settings.timeouts.queue)
        self.relay.reconfigure(reveal=settings.decision_headers)
        self.dispatcher.reconfigure(settings)
        self.app.reconfigure(settings.limits)
        self.control.reconfigure(settings)
        self.connections.bounds = _bounds(settings)
        self.named.follow(settings)
        limits, keys_end_here = _upstream_limits(settings), bool(settings.auth.client_keys)
        self.pools.reconfigure(self.registry, limits, _worker_key(settings), keys_end_here=keys_end_here)
        self.prober.reconfigure(settings.health, _worker_key(settings))

    def is_draining(self) -> bool:
        """This replica takes no new work from the balancer."""
        return self.draining

    async def start(self) -> None:
        """Begin probing and syncing; returns at once, whatever can't be reached yet."""
        self.prober.start()
        self.dns.start()
        self.sync.start()
        if self.siblings is not None:
            await self.siblings.start()
        follow = self.reloader.run(late=self.siblings is not None)
        for work in (self._tick(), follow):
            task = asyncio.create_task(work)
            self._tasks.add(task)

    async def first_look(self, seconds: float) -> None:
        """Wait until every worker has been looked at once, but no longer than this."""
        began = time.monotonic()
        await self.dns.first_look(seconds)
        for _ in range(int((seconds - (time.monotonic() - began)) / LOOK_SECONDS)):
            if not any(worker.state is State.STARTING and not worker.refused for worker in self.registry):
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def aclose(self) -> None:
        """End all tasks and connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self.siblings is not None:
            self.siblings.close()
        await self.sync.aclose()
        await self.dns.aclose()
        await self.prober.aclose()
        self.pools.close()
        self.decision_log.flush()
        if self.decision_file is not None:
            await self.decision_file.aclose()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)

    def _open_decision_file(self, member: Member | None) -> DecisionFile | None:
        settings = self.settings.decision_file
        path = settings.path
        if path is None:
            return None
        if member is not None:
            path = path.with_name(f"{path.stem}-{member.number}{path.suffix}")
        return DecisionFile(path, settings, self.sender, time.monotonic)

    def _make_sync(self) -> Sync | NoSync:
        settings = self.settings
        if settings.sync.redis_url is None:
            return NoSync()
        mark = fingerprint(settings.affinity.hash_secret.get_secret_value().encode())
        return Sync(settings.sync, mark, self.index, self.registry, time.monotonic, self.sender)

    def _connect_hooks(self) -> None:
        hooks = self.registry.hooks
        hooks.epoch.append(lambda worker: _set_epoch(self.index, worker))
        hooks.epoch.append(self.sync.epoch)
        if isinstance(self.sync, Sync):
            hooks.step.append(self.sync.step)
            self.dispatcher.sent_hooks.append(self.sync.moment)
        hooks.removed.append(lambda worker: self.index.forget(worker.id))
        hooks.state.append(self._state_changed)
        self.selector.owned_hooks.append(self.sync.owned)
        self.selector.cut_off = self.sync.cut_off

    def _state_changed(self, worker: Worker, before: State, after: State) -> None:
        if after is State.READY and self.index.epoch_of(worker.id) is None:
            # A worker without a start time keeps epoch 0 until somebody sees it come back.
            self.index.set_epoch(worker.id, worker.epoch)

    async def _tick(self) -> None:
        """Housekeeping once a second; how late the loop is, ten times a second while requests are served."""
        began = time.monotonic()
        while True:
            due = time.monotonic() + (LAG_SECONDS if self.app.active else TICK_SECONDS)
            await asyncio.sleep(due - time.monotonic())
            now = time.monotonic()
            self.metrics.loop_lag.observe(max(0.0, now - due))
            if now - began >= TICK_SECONDS:
                began = now
                if self.index.tick(now):
                    give_back()
                self.connections.sweep(now)
                self.named.settle()
                look_around(self.app.active)
                self.control.tick(now)

    def _describe(self) -> None:
        """Metrics that are read from their owners."""
        add = self.metrics.gauge
        add("router_processes", "Those that share the port.", (), lambda: [((), self.settings.processes)])
        for name, text, read in _OF_WORKERS:
            add(name, text, ("worker",), partial(self._each, read))
        add("router_queue_depth", "Requests waiting for a slot.", (), lambda: [((), len(self.admission))])
        add("router_worker_state", "1 for the state a worker is in.", ("worker", "state"), self._states)
        add("router_index_blocks", "Blocks owned.", ("worker",), partial(_counts, self.index.statistics))
        add("router_active_requests", "Requests being served.", (), lambda: [((), self.app.active)])
        add("router_body_bytes", "Request bodies held in memory.", (), lambda: [((), self.app.budget.held)])
        add("router_upstream_connections", "Open connections.", ("worker",), partial(_counts, self.pools.connections))
        add("router_client_connections", "Open connections.", (), lambda: [((), len(self.connections.open))])
        add("router_asyncio_tasks", "Tasks of the event loop.", (), _tasks)
        self._count("router_index_evictions_total", "Blocks dropped.", "cause", lambda: self.index.evictions)
        for name, text, owner in (
            ("router_decision_file_lines_total", "Decisions by fate.", self.decision_file),
            ("router_dns_lookups_total", "Lookups of names.", self.dns if self.dns.sources else None),
            ("router_spans_total", "Spans by fate.", self.tracing),
            ("router_config_reloads_total", "Settings read again, by result.", self.reloader),
        ):
            self._count(name, text, "result", partial(_results, owner))
        describe_sync(self.metrics, self.sync)
        describe_tenancy(self.metrics, self.tenancy, self.selector.quota, time.monotonic)

    def _count(self, name: str, text: str, label: str, read: Callable[[], Mapping[Name, float]]) -> None:
        self.metrics.counter(name, text, (label,), partial(_counts, read))

    def _each(self, read: Callable[[Worker], float]) -> Iterable[Sample]:
        return [((worker.id,), read(worker)) for worker in self.registry]

    def _states(self) -> Iterable[Sample]:
        return [((worker.id, state.value), float(worker.state is state)) for worker in self.registry for state in State]


_OF_WORKERS: tuple[tuple[str, str, Callable[[Worker], float]], ...] = (
    ("router_in_flight", "Requests in flight from this replica.", attrgetter("local")),
    ("router_worker_load", "Requests in flight from all replicas.", attrgetter("load")),
    ("router_worker_waiting", "Those that wait for their first byte.", attrgetter("waiting")),
    ("router_worker_queued_tokens", "Prompt tokens that these need computed.", attrgetter("queued_tokens")),
)


def _counts(read: Callable[[], Mapping[Name, float]]) -> Iterable[Sample]:
    """A sample for each entry of a table, whose names are the values of the one label."""
    return [((name,), count) for name, count in read().items()]


def _results(owner: _Counting | None) -> Mapping[str, float]:
    return owner.results if owner is not None else {}


def _set_epoch(index: AffinityMap, worker: Worker) -> None:
    index.set_epoch(worker.id, worker.epoch)


def _worker_key(settings: Settings) -> str | None:
    key = settings.auth.worker_api_key
    return key.get_secret_value() if key else None


def _upstream_limits(settings: Settings) -> UpstreamLimits:
    timeouts = settings.timeouts
    return UpstreamLimits(
        connect_seconds=timeouts.connect,
        keep_alive_seconds=timeouts.upstream_keep_alive,
        first_byte_seconds=timeouts.first_byte,
        idle_seconds=timeouts.stream_idle,
        max_connections=settings.limits.connections_per_worker,
    )


def _bounds(settings: Settings) -> Bounds:
    limits, timeouts = settings.limits, settings.timeouts
    return Bounds(
        header_bytes=limits.header_bytes,
        header_count=limits.header_count,
        body_bytes=max(limits.body_bytes, limits.media_body_bytes),
        header_seconds=timeouts.header,
        body_seconds=timeouts.body,
        write_stall_seconds=timeouts.write_stall,
        keep_alive_seconds=timeouts.keep_alive,
        connections=limits.client_connections or connections_for(raise_limit()),
    )


def _tasks() -> list[Sample]:
    try:
        return [((), len(asyncio.all_tasks()))]
    except RuntimeError:  # no loop runs
        return []
