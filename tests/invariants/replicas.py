"""The invariants of replicas that are processes of their own: by their metrics, their log, and the kernel's view."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest.fleet import RouterProcess, until
from tests.invariants import LINES, MEGABYTES, require

AT_REST = (
    "router_in_flight",
    "router_worker_load",
    "router_worker_waiting",
    "router_worker_queued_tokens",
    "router_queue_depth",
    "router_active_requests",
    "router_body_bytes",
)
CANARIES = ("canary-of-the-prompts", "canary-of-the-admin", "Traceback", "internal error")
REST_SECONDS = 5.0
CLOSED_SECONDS = 8.0
TOLERANCE = 5
MAX_BLOCKS = 200_000
LINES_PER_REQUEST = 5
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Holding:
    """What a replica takes up, but for connections that clients and workers keep open; memory in bytes.

    Its log, in lines, may be older than itself; `requests` are those that it has counted.
    """

    descriptors: int
    tasks: int
    memory: int
    lines: int = 0
    requests: float = 0.0

    @classmethod
    def of(cls, router: RouterProcess) -> Holding:
        """Now."""
        text = router.metrics()
        kept = total(text, "router_client_connections") + total(text, "router_upstream_connections")
        memory = int(Path(f"/proc/{router.pid}/statm").read_text().split()[1]) * _PAGE
        return cls(
            open_descriptors(router.pid) - int(kept),
            int(total(text, "router_asyncio_tasks")),
            memory,
            router.log.read_bytes().count(b"\n") if router.log.is_file() else 0,
            total(text, "router_outcomes_total"),
        )


@dataclass
class Replicas:
    """All that are started meanwhile. They are looked at before they are stopped, too."""

    started: list[RouterProcess] = field(default_factory=list)
    before: dict[int, Holding] = field(default_factory=dict)
    broken: list[AssertionError] = field(default_factory=list)

    def follow(self, patch: pytest.MonkeyPatch) -> None:
        """Know of every replica from its start on."""
        start, ready, stop = RouterProcess.start, RouterProcess.wait_ready, RouterProcess.stop

        def noted_start(router: RouterProcess) -> None:
            start(router)
            self.started.append(router)

        def noted_ready(router: RouterProcess, *words: Any, **named: Any) -> None:
            ready(router, *words, **named)
            self.note(router)

        def noted_stop(router: RouterProcess) -> None:
            try:
                if router.alive and router.pid in self.before:  # one that never was ready has nothing to say
                    self.check([router])
            except AssertionError as error:
                self.broken.append(error)
            finally:
                stop(router)

        patch.setattr(RouterProcess, "start", noted_start)
        patch.setattr(RouterProcess, "wait_ready", noted_ready)
        patch.setattr(RouterProcess, "stop", noted_stop)

    def note(self, router: RouterProcess) -> None:
        """It has come to rest: what it holds now is what it may hold later."""
        self.before[router.pid] = Holding.of(router)

    def check(self, routers: Collection[RouterProcess], secrets: Collection[str] = ()) -> None:
        """Raises AssertionError for the first invariant that is broken at one of them."""
        for router in routers:
            require(9, _said(router, secrets))
            if router.alive and _listens(router):
                require(1, _gauges(router))
                require(7, _map(router))
                before = self.before.get(router.pid)
                if before is not None:
                    require(2, _left_open(router, before))
                    require(8, _growth(router, before))

    def check_all(self) -> None:
        """Those that live, and whatever was found at those that were stopped."""
        broken, self.broken = self.broken, []
        known, self.started = self.started, [router for router in self.started if router.alive]
        self.check(known)
        if broken:
            raise broken[0]


REPLICAS = Replicas()


def _listens(router: RouterProcess) -> bool:
    """One that drains has closed its door already."""
    try:
        router.metrics()
    except httpx.ConnectError:
        return False
    return True


def _said(router: RouterProcess, secrets: Collection[str]) -> Iterator[str]:
    if not router.log.is_file():
        return
    log = router.log.read_text(errors="replace")
    addresses = {url.partition("//")[2] for url in router._workers}
    for secret in {*addresses, *secrets, *CANARIES}:
        at = log.find(secret)
        if at >= 0:
            yield f"{secret!r} is in the log: {log[max(0, at - 200) : at + 200]}"


def _gauges(router: RouterProcess) -> Iterator[str]:
    values: dict[str, float] = {}
    with contextlib.suppress(TimeoutError):
        for _ in until(REST_SECONDS, "gauges at 0"):
            text = router.metrics()
            values = {name: total(text, name) for name in AT_REST}
            low = [name for name in AT_REST if any(value < 0 for _, value in samples(text, name))]
            if low:
                yield f"below 0: {low}"
                return
            if not any(values.values()):
                return
    yield f"{values}"


def _left_open(router: RouterProcess, before: Holding) -> Iterator[str]:
    now = before
    with contextlib.suppress(TimeoutError):
        for _ in until(CLOSED_SECONDS, "descriptors and tasks as before"):
            now = Holding.of(router)
            if now.descriptors <= before.descriptors + TOLERANCE and now.tasks <= before.tasks + TOLERANCE:
                return
    yield f"before {before}, now {now}"


def _map(router: RouterProcess) -> Iterator[str]:
    text = router.metrics()
    held = {labels["worker"]: value for labels, value in samples(text, "router_index_blocks")}
    if sum(held.values()) > MAX_BLOCKS:
        yield f"{held} blocks"
    if strangers := set(held) - {labels["worker"] for labels, _ in samples(text, "router_worker_state")}:
        yield f"blocks of {strangers}, which are no workers"


def _growth(router: RouterProcess, before: Holding) -> Iterator[str]:
    now = Holding.of(router)
    grown = (now.memory - before.memory) >> 20
    if grown > MEGABYTES:
        yield f"{grown} MB more memory"
    lines = now.lines - before.lines
    if lines > LINES + LINES_PER_REQUEST * (now.requests - before.requests):
        yield f"{lines} lines of log"


def samples(text: str, name: str) -> Iterator[tuple[dict[str, str], float]]:
    """The samples of one metric in an exposition."""
    for found, labels, value in _SAMPLE.findall(text):
        if found == name:
            yield dict(_LABEL.findall(labels)), float(value)


def total(text: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples that carry these labels."""
    return sum(value for found, value in samples(text, name) if labels.items() <= found.items())


def open_descriptors(pid: int) -> int:
    """File descriptors that a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))
