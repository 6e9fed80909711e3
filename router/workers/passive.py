"""What requests tell about their workers: ejection, return, and whom to ask when nobody is well.

Failures that count are connections refused or reset, time-outs, and 502, 503 or 504: the caller reports those alone.
What a request provokes (4xx) or breaks in an engine that goes on working (500) must not take the worker from others.
Times are seconds on one clock.
"""

from __future__ import annotations

from router.settings import HealthSettings
from router.workers.health import Event, State
from router.workers.registry import Registry, Worker

# An answer this young says more about a worker than its probes do.
RECENT_SECONDS = 15.0
_READY = State.READY  # an attribute of an enum is looked up slowly


def served(registry: Registry, worker: Worker, now: float) -> None:
    """A request got its first byte from the worker."""
    worker.strikes = 0
    worker.last_served = now
    if worker.state is State.PROBATION:
        registry.feed(worker, Event.SERVED)


def failed(registry: Registry, worker: Worker, now: float, settings: HealthSettings, draw: float) -> bool:
    """A request failed by the worker's fault; True if that ejects it. `draw` in [0, 1) spreads the returns."""
    worker.strikes += 1
    if worker.state is State.PROBATION:
        event = Event.FAILED
    elif worker.state is State.READY and worker.strikes >= settings.eject_after:
        event = Event.STRUCK_OUT
    else:
        return False
    _count(worker, now, settings)
    seconds = min(settings.eject_seconds * worker.ejections, settings.eject_max_seconds)
    worker.until = now + seconds * (1 + 0.1 * draw)
    return registry.feed(worker, event)


def fell(worker: Worker, now: float, settings: HealthSettings) -> None:
    """A worker that was in use fails its probes. If it does so often, its return is put off, as after an ejection."""
    _count(worker, now, settings)
    seconds = min(settings.eject_seconds * (worker.ejections - 1), settings.eject_max_seconds / 2)
    worker.until = max(worker.until, now + seconds)


def tick(registry: Registry, now: float) -> None:
    """Let ejections end that have lasted long enough."""
    for worker in registry:
        if worker.state is State.EJECTED and now >= worker.until:
            registry.feed(worker, Event.COOLED)


def candidates(registry: Registry, model: str, now: float) -> list[Worker]:
    """The workers of a model that may be asked, but for slots and window.

    If none is well, those are named that may be well after all: one attempt that fails costs less than a refusal.
    """
    pool = registry.serving(model)
    # The common case is spelt out: this runs for every request, and a property costs more than all of it.
    usable = [worker for worker in pool if (worker.state is _READY and not worker.draining) or worker.usable]
    return usable or _last_resort(pool, now)


def _count(worker: Worker, now: float, settings: HealthSettings) -> None:
    """One more ejection or fall; one is forgotten for each long while of health since the last ended."""
    calm = max(0.0, now - worker.until)
    worker.ejections = max(0, worker.ejections - int(calm / settings.eject_max_seconds)) + 1


def _last_resort(pool: tuple[Worker, ...], now: float) -> list[Worker]:
    ranks: tuple[list[Worker], ...] = ([], [], [])
    for worker in pool:
        # A worker that never was ready has yet to load; one that sleeps has no weights to serve with.
        if worker.draining or worker.removed or worker.asleep or worker.state is State.STARTING:
            continue
        if worker.state is not State.UNREADY or now - worker.last_served < RECENT_SECONDS:
            ranks[0].append(worker)
        else:
            ranks[2 if worker.refused else 1].append(worker)
    return ranks[0] or ranks[1] or ranks[2]
