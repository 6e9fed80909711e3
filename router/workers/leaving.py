"""Who of those that are to leave is needed until others have been looked at."""

from __future__ import annotations

from collections.abc import Collection

from router.workers.health import State
from router.workers.registry import Registry, Worker


def needed(registry: Registry, leaving: Collection[Worker]) -> set[Worker]:
    """Workers of a model that nobody who stays can serve now, while somebody who came has yet to show what he serves.

    One at whose port nobody listens is not waited for, and one that is drained serves nothing new anyway.
    """
    staying = [worker for worker in registry if not worker.leaving]
    if not any(worker.state is State.STARTING and not worker.refused for worker in staying):
        return set()
    served = {model for worker in staying if worker.usable for model in worker.facts.models}
    return {worker for worker in leaving if not worker.draining and not worker.facts.models.keys() <= served}
