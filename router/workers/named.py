"""The workers that the settings name, as they come and go while requests are served.

A worker is of no use before its first probe. Where all that serve a model are replaced at once, those before stay for
that moment, so that no request finds nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from router.settings import Settings, WorkerSettings
from router.workers.dns_fleet import DnsFleet
from router.workers.health import State
from router.workers.leaving import needed
from router.workers.registry import Registry, Worker, worker_id

# Who leaves waits no longer than this for those that come, in seconds.
MOST_SECONDS: Final = 10.0


class NamedWorkers:
    """Keeps the registry in step with the settings; workers that were added by hand stay."""

    def __init__(self, registry: Registry, dns: DnsFleet, clock: Callable[[], float]) -> None:
        self._registry = registry
        self._dns = dns
        self._clock = clock
        self._urls: list[str] = []
        # Those that are to go, and until when at the latest.
        self._going: dict[Worker, float] = {}
        registry.hooks.state.append(self._state_changed)

    def follow(self, settings: Settings) -> None:
        """Take over what the settings say: workers come, change and go."""
        for wanted in settings.workers:
            self._take(wanted, settings.limits.default_slots)
        before, self._urls = self._urls, [worker.url for worker in settings.workers]
        self._let_go(set(before) - set(self._urls))
        self.settle()

    def settle(self) -> None:
        """Remove those that are needed no longer; to be called now and then, since time passes too."""
        if not self._going:
            return
        self._going = {worker: until for worker, until in self._going.items() if worker.leaving and not worker.removed}
        kept = needed(self._registry, self._going)
        now = self._clock()
        gone = [worker for worker, until in self._going.items() if worker not in kept or now >= until]
        for worker in gone:
            del self._going[worker]
            self._registry.remove(worker)

    def _take(self, wanted: WorkerSettings, default_slots: int) -> None:
        slots = wanted.slots or default_slots
        own_key = wanted.api_key.get_secret_value() if wanted.api_key else None
        worker = self._registry.add(wanted.url, slots=slots, api_key=own_key)
        self._dns.yields(worker)
        more = slots > worker.slots
        worker.slots, worker.api_key = slots, own_key
        if more:
            self._registry.notify_freed(worker)

    def _let_go(self, urls: Iterable[str]) -> None:
        latest = self._clock() + MOST_SECONDS
        for url in urls:
            worker = self._registry.get(worker_id(url))
            if worker is not None and not self._dns.keeps(worker):
                worker.leaving = True
                self._going[worker] = latest

    def _state_changed(self, worker: Worker, before: State, after: State) -> None:
        self.settle()
