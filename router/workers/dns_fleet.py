"""Workers at the addresses of a name: looked up again and again, added as they come, drained and let go as they leave.

A lookup that fails, and one that finds nothing, change nothing: what is known may well still work, and probes say
whether it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from router.settings import DnsSettings, Settings, normalise_worker_url, read_name_server
from router.workers.dns import DnsError, Resolver, ServerResolver, SystemResolver
from router.workers.dns_wire import MAX_ADDRESSES
from router.workers.health import State
from router.workers.leaving import needed
from router.workers.registry import Registry, Worker, worker_id

log = logging.getLogger("router.workers")

# Lookups in a row that a worker is missing from before it is forgotten; a name server may leave one out now and then.
MISSING: Final = 3
RESULTS: Final = ("ok", "empty", "failed")
_JITTER: Final = 0.1


@dataclass(slots=True)
class Member:
    """One address of a name; `ours` if the worker is in the fleet for its sake alone."""

    worker: Worker
    ours: bool
    missing: int = 0
    # Sent nothing new because it left, and not because somebody asked for it.
    drained: bool = False


@dataclass(slots=True)
class Source:
    """One name, its port, and what was found under it so far."""

    name: str
    port: int
    members: dict[str, Member] = field(default_factory=dict)
    failing: bool = False


class DnsFleet:
    """Keeps the registry in step with some names, from `start` to `aclose`; `draw` in [0, 1) spreads the lookups."""

    def __init__(self, settings: Settings, registry: Registry, resolver: Resolver, draw: Callable[[], float]) -> None:
        self.results = dict.fromkeys(RESULTS, 0)
        self.sources = [Source(*_parts(text)) for text in settings.workers_dns]
        self._registry = registry
        self._resolver = resolver
        self._slots = settings.limits.default_slots
        self._interval = settings.dns.interval
        self._draw = draw
        self._tasks: list[asyncio.Task[None]] = []
        self._looked = asyncio.Event()
        registry.hooks.state.append(self._state_changed)

    def start(self) -> None:
        """Begin to look names up."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._follow(source), name=f"dns-{number}") for number, source in enumerate(self.sources)
        ]

    async def first_look(self, seconds: float) -> None:
        """Wait until every name has been looked up once, but no longer than this."""
        if self._tasks:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._looked.wait(), seconds)

    async def aclose(self) -> None:
        """Stop; the workers stay as they are."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def keeps(self, worker: Worker) -> bool:
        """The settings name a worker no longer; True if one of the names does, whose it is from now on."""
        listed = [member for member in self._members(worker) if not member.missing]
        for member in listed:
            member.ours = True
        if listed:
            worker.slots, worker.api_key = self._slots, None
        return bool(listed)

    def yields(self, worker: Worker) -> None:
        """The settings name a worker, which stays whatever becomes of the names."""
        for member in self._members(worker):
            member.ours = False
            if member.drained:
                member.drained = False
                self._registry.set_draining(worker, False)

    def _members(self, worker: Worker) -> list[Member]:
        found = [source.members.get(worker.url) for source in self.sources]
        return [member for member in found if member is not None and member.worker is worker]

    async def _follow(self, source: Source) -> None:
        first = True
        while True:
            await self.look(source)
            if first:
                first = False
                self._first_done()
            await asyncio.sleep(self._interval * (1 + _JITTER * (2 * self._draw() - 1)))

    def _first_done(self) -> None:
        if sum(self.results.values()) >= len(self.sources):
            self._looked.set()

    async def look(self, source: Source) -> None:
        """Look a name up once, and follow what has changed."""
        try:
            found = await self._resolver.addresses(source.name)
        except DnsError as error:
            self.results["failed"] += 1
            if not source.failing:
                log.warning("workers_dns: a name can't be looked up, its workers stay as they are: %s", error)
            source.failing = True
            return
        if source.failing:
            log.info("workers_dns: names can be looked up again")
        source.failing = False
        self.results["ok" if found else "empty"] += 1
        if found:
            self._update(source, _urls(found[:MAX_ADDRESSES], source.port))
        else:
            self._let_go(source)

    def _update(self, source: Source, urls: set[str]) -> None:
        before = len(source.members)
        added = sum([self._present(source, url) for url in sorted(urls)])
        for url, member in source.members.items():
            if url not in urls:
                self._absent(member)
        self._drain_absent()
        gone = self._let_go(source)
        if added or gone:
            log.info("workers_dns: %d added, %d removed, %d now", added, gone, before + added - gone)

    def _present(self, source: Source, url: str) -> bool:
        """A worker is listed; True if it was not before."""
        member = source.members.get(url)
        if member is None:
            known = self._registry.get(worker_id(url))
            ours = known is None or (known.leaving and not self._members(known))
            source.members[url] = Member(self._registry.add(url, slots=self._slots), ours)
            return True
        member.missing = 0
        if member.ours:
            member.worker.leaving = False
        if member.drained:
            member.drained = False
            self._registry.set_draining(member.worker, False)
        return False

    def _absent(self, member: Member) -> None:
        """A worker is not listed any more: it is about to leave, and stays for now."""
        member.missing += 1
        if member.ours:
            member.worker.leaving = True

    def _drain_absent(self) -> None:
        """Send nothing new to those who are about to leave, unless their successors have yet to be looked at."""
        absent = [
            member
            for source in self.sources
            for member in source.members.values()
            if member.missing and member.ours and not member.worker.draining
        ]
        if not absent:
            return
        kept = needed(self._registry, [member.worker for member in absent if member.missing < MISSING])
        for member in absent:
            if member.worker not in kept:
                member.drained = True
                self._registry.set_draining(member.worker, True)

    def _state_changed(self, worker: Worker, before: State, after: State) -> None:
        self._drain_absent()

    def _let_go(self, source: Source) -> int:
        """Forget those that have been missing for long enough and have nothing left to do; how many."""
        gone = [
            url
            for url, member in source.members.items()
            if member.missing >= MISSING and (not member.ours or not member.worker.local)
        ]
        for url in gone:
            member = source.members.pop(url)
            if member.ours:
                self._registry.remove(member.worker)
        return len(gone)


def resolver_of(settings: DnsSettings) -> Resolver:
    """The resolver that the settings ask for."""
    if settings.server is None:
        return SystemResolver(settings.timeout)
    return ServerResolver(*read_name_server(settings.server), settings.timeout)


async def urls_of(settings: Settings) -> list[str]:
    """The URLs of the workers that the names of the settings have now; raises DnsError."""
    resolver = resolver_of(settings.dns)
    found: set[str] = set()
    for name, port in map(_parts, settings.workers_dns):
        found |= _urls((await resolver.addresses(name))[:MAX_ADDRESSES], port)
    return sorted(found)


def _parts(text: str) -> tuple[str, int]:
    name, _, port = text.rpartition(":")
    return name, int(port)


def _urls(addresses: Iterable[str], port: int) -> set[str]:
    """Addresses as URLs of workers; those at which none may be are left out."""
    urls = set()
    for address in addresses:
        try:
            host = f"[{address}]" if ":" in address else address
            urls.add(normalise_worker_url(f"http://{host}:{port}"))
        except ValueError:
            log.warning("workers_dns: an address that no worker may have is left out")
    return urls
