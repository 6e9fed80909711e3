"""The connections to every worker, made when first needed and closed when the worker has gone."""

from __future__ import annotations

import dataclasses
import ssl
from dataclasses import dataclass

from router.dataplane.outgoing import Outgoing
from router.dataplane.upstream import UpstreamPool
from router.dataplane.upstream_types import Origin, UpstreamLimits
from router.workers.registry import Registry, Worker


@dataclass(frozen=True, slots=True)
class Target:
    """How to address one worker."""

    pool: UpstreamPool
    authority: bytes
    base_path: bytes
    # In place of the client's key; empty: none at all. None: the client's own passes.
    authorization: bytes | None


class Pools:
    """Targets by worker; `worker_key` is sent where a worker has no key of its own.

    If clients' keys are the router's own (`keys_end_here`), no worker gets to see one.
    """

    def __init__(
        self,
        registry: Registry,
        limits: UpstreamLimits,
        worker_key: str | None,
        *,
        keys_end_here: bool = False,
        outgoing: Outgoing | None = None,
    ) -> None:
        self._limits = limits
        self._worker_key = worker_key
        self._keys_end_here = keys_end_here
        self._outgoing = outgoing or Outgoing()
        # By worker and not by name: one that is removed may still answer when its successor of the same name is here.
        self._targets: dict[Worker, Target] = {}
        self._tls: ssl.SSLContext | None = None
        registry.hooks.removed.append(self._worker_gone)
        registry.hooks.freed.append(self._worker_gone)

    def reconfigure(
        self, registry: Registry, limits: UpstreamLimits, worker_key: str | None, *, keys_end_here: bool
    ) -> None:
        """Go on with other limits and keys; what is under way keeps its connection."""
        self._limits = limits
        self._worker_key = worker_key
        self._keys_end_here = keys_end_here
        for worker in registry:
            target = self._targets.get(worker)
            if target is not None:
                target.pool.reconfigure(limits)
                authorization = self._authorization(worker)
                self._targets[worker] = dataclasses.replace(target, authorization=authorization)

    def of(self, worker: Worker) -> Target:
        """The target of a worker."""
        target = self._targets.get(worker)
        if target is None:
            target = self._make(worker)
            if worker.local or not worker.removed:  # else nobody would tell when to let it go
                self._targets[worker] = target
        return target

    def connections(self) -> dict[str, int]:
        """Open connections per worker."""
        found: dict[str, int] = {}
        for worker, target in self._targets.items():
            found[worker.id] = found.get(worker.id, 0) + target.pool.statistics().open
        return found

    def close(self) -> None:
        """Abort all connections."""
        for target in self._targets.values():
            target.pool.close()
        self._targets.clear()

    def _make(self, worker: Worker) -> Target:
        origin = Origin.parse(worker.url)
        if origin.tls and self._tls is None:
            self._tls = ssl.create_default_context()
        pool = UpstreamPool(origin, self._limits, ssl_context=self._tls, outgoing=self._outgoing)
        return Target(pool, origin.authority, origin.base_path, self._authorization(worker))

    def _authorization(self, worker: Worker) -> bytes | None:
        key = worker.api_key or self._worker_key
        if key:
            return f"Bearer {key}".encode()
        return b"" if self._keys_end_here else None

    def _worker_gone(self, worker: Worker) -> None:
        if worker.removed and worker.local == 0:
            target = self._targets.pop(worker, None)
            if target is not None:
                target.pool.close()
