"""Alive, ready, and the metrics page."""

from __future__ import annotations

from collections import Counter

from starlette.responses import Response

from router.control.context import ControlContext
from router.control.exchange import NO_STORE, answer
from router.errors import Draining, Unavailable
from router.workers.health import State
from router.workers.registry import Registry, Worker

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
RETRY_SECONDS = 2


class Warming(Unavailable):
    """This replica has just started, and is told what the others know; it serves meanwhile."""

    code = "warming"


class Health:
    """What balancers, orchestrators and Prometheus ask."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context

    async def health(self) -> Response:
        """The process lives; says nothing about workers, so that nobody restarts a router for their sake."""
        return answer({"status": "ok"})

    async def ready(self) -> Response:
        """New requests are welcome here; raises Unavailable with the reason."""
        if self._context.is_draining():
            raise Draining("This replica is shutting down.", retry_after=RETRY_SECONDS)
        serving = sum(can_serve(worker) for worker in self._context.registry)
        if not serving:
            raise Unavailable(why_nobody_serves(self._context.registry), retry_after=RETRY_SECONDS)
        if self._context.sync.warming:
            raise Warming("This replica is still learning from the others.", retry_after=1)
        return answer({"status": "ready", "workers": serving})

    async def metrics(self) -> Response:
        """The exposition text."""
        return Response(self._context.metrics.render(), headers={"content-type": METRICS_TYPE, **NO_STORE})


def can_serve(worker: Worker) -> bool:
    """Whether the worker takes requests, now or as soon as the one that decides its probation has ended."""
    return worker.state in (State.READY, State.PROBATION) and not worker.draining


def why_nobody_serves(registry: Registry) -> str:
    """One sentence for people."""
    if not len(registry):
        return "No worker is configured."
    counts = Counter("draining" if worker.draining else worker.state.value for worker in registry)
    parts = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    return f"No worker can serve at the moment: {parts}."
