"""The invariants of parts of the router that live in the process of their test."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import pytest

from router.affinity import AffinityMap
from router.dataplane.admission import Admission
from router.dataplane.client import BodyBudget, Client
from router.dataplane.upstream import UpstreamPool, UpstreamResponse
from router.workers.registry import Lease, Registry, Worker
from tests.invariants import LINES, MEGABYTES, looked_at, require

T = TypeVar("T")
KINDS: Final = (
    Admission, AffinityMap, BodyBudget, Client, Lease, Registry, UpstreamPool, UpstreamResponse, Worker
)  # fmt: skip
SECRETS: Final = ("canary", "Traceback", "internal error")
DESCRIPTORS: Final = 5
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Parts:
    """Every part that is made while the test runs, and what is logged meanwhile."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._made: dict[type, list[Any]] = {kind: [] for kind in KINDS}
        for kind in KINDS:
            self._follow(kind, patch)
        self._log = _Log()
        gc.collect()
        self._memory = _resident()
        self._descriptors = len(_descriptors())
        logging.getLogger().addHandler(self._log)

    def _follow(self, kind: type, patch: pytest.MonkeyPatch) -> None:
        made, honest = self._made[kind], vars(kind).get("__init__") or vars(kind.__bases__[0])["__init__"]

        def noted(part: Any, *words: Any, **named: Any) -> None:
            honest(part, *words, **named)
            made.append(part)

        patch.setattr(kind, "__init__", noted)

    def made(self, kind: type[T]) -> list[T]:
        """Those of one kind, in order."""
        return cast(list[T], self._made[kind])

    def check(self) -> None:
        """Everything but the tasks, for which the event loop must still run."""
        logging.getLogger().removeHandler(self._log)
        if any(self._made[kind] for kind in (Admission, BodyBudget, Client, Lease, Worker)):
            require(1, self._gauges())
        require(2, self._left_open())
        if self.made(Client):
            require(3, self._without_an_end())
        if self._made[AffinityMap] and self._made[Registry]:
            require(7, self._maps())
        require(8, self._growth())
        require(9, self._said())

    def _gauges(self) -> Iterator[str]:
        for lease in self.made(Lease):
            if not lease._ended:
                yield f"a lease on {lease.worker} has not ended"
        for worker in self.made(Worker):
            if any(worker.own_part):
                yield f"{worker} has {worker.own_part}"
            if min(worker.load, worker.waiting, worker.queued_tokens) < 0:
                yield f"{worker} is below 0"
        yield from (f"{len(line)} are in line" for line in self.made(Admission) if len(line))
        yield from (f"{budget.held} bytes of bodies are held" for budget in self.made(BodyBudget) if budget.held)

    def _left_open(self) -> Iterator[str]:
        for response in self.made(UpstreamResponse):
            if response._connection is not None:
                yield f"an answer {response.status} has its connection still"
        for pool in self.made(UpstreamPool):
            counts = pool.statistics()
            if counts.active or counts.connecting:
                yield f"connections are checked out: {counts}"
        gc.collect()
        now = _descriptors()
        if len(now) > self._descriptors + DESCRIPTORS:
            yield f"{self._descriptors} descriptors before, {len(now)} now: {now}"

    def _without_an_end(self) -> Iterator[str]:
        for client in self.made(Client):
            if not (client.response_complete or client.gone):
                yield f"a request for {client.path} has no end"
            if client.task is not None:
                yield f"a request for {client.path} is still being served"

    def _maps(self) -> Iterator[str]:
        ids = {worker.id for worker in self.made(Worker)}
        for index in self.made(AffinityMap):
            held = index.statistics()
            if sum(held.values()) > index.max_blocks:
                yield f"{sum(held.values())} blocks in a map for {index.max_blocks}"
            if strangers := set(held) - ids:
                yield f"the map has blocks of strangers: {strangers}"

    def _growth(self) -> Iterator[str]:
        grown = (_resident() - self._memory) >> 20
        if grown > MEGABYTES:
            yield f"{grown} MB more memory"
        if len(self._log.lines) > LINES:
            yield f"{len(self._log.lines)} lines of log"

    def _said(self) -> Iterator[str]:
        addresses = [worker.url.partition("//")[2] for worker in self.made(Worker)]
        for line in self._log.lines:
            yield from (
                f"{secret!r} is in the log: {line[:300]}" for secret in (*SECRETS, *addresses) if secret in line
            )
        yield from (f"nobody handled this: {line[:300]}" for line in self._log.unhandled)


class _Log(logging.Handler):
    """Keeps what is logged, and of that what the event loop was left with."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.unhandled: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        self.lines.append(line)
        if record.name == "asyncio" and record.levelno >= logging.ERROR:
            self.unhandled.append(line)


def check_tasks(left: set[str]) -> None:
    """No task is left but the one that looks."""
    require(2, (f"task {name} is left" for name in sorted(left)))
    looked_at(2)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def _descriptors() -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # that of the listing itself
            continue
    return found
