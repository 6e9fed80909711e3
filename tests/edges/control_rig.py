"""A control plane over a fleet made by hand: no sockets, and a clock that the test turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from router.affinity import AffinityMap
from router.cachemodel import CacheProfile
from router.calibration import TokenRatios
from router.control.app import Control, ControlContext, create_control
from router.decisions import DecisionRecord, DecisionRing
from router.metrics import Metrics
from router.settings import Settings
from router.workers.health import Event
from router.workers.registry import Facts, Model, Registry, Worker
from router.workers.selection import Selector

ADMIN = "sesame"
AS_ADMIN = {"authorization": f"Bearer {ADMIN}"}
HOST = "gpu.internal.example"
READ = ["/router/decisions", "/router/state"]


@dataclass
class HandMadeSync:
    """What the control plane wants to see of the news between replicas."""

    up: bool | None = True
    warming: bool = False
    peers: int = 1
    lag_seconds: float | None = 0.002
    gaps: int = 0
    dropped: dict[str, int] = field(default_factory=dict)


class Rig:
    """One replica's parts; `app` is its control plane."""

    def __init__(self, *, admin: bool = False, **settings: Any) -> None:
        auth = {**settings.pop("auth", {}), **({"admin_key": ADMIN} if admin else {})}
        self.settings = Settings.model_validate({"auth": auth, **settings})
        self.now = 1000.0
        self.draining = False
        self.registry = Registry()
        self.index = AffinityMap(10_000, 3600.0, 10.0)
        self.registry.hooks.epoch.append(self._set_epoch)
        self.selector = Selector(self.settings, self.registry, self.index, TokenRatios(), lambda: 0.5)
        self.ring = DecisionRing(1000)
        self.metrics = Metrics()
        self.sync = HandMadeSync()
        self.context = ControlContext(
            self.settings,
            self.registry,
            self.selector,
            self.index,
            self.ring,
            self.metrics,
            self.sync,
            lambda: self.draining,
            lambda: self.now,
        )
        self.app: Control = create_control(self.context)

    def _set_epoch(self, worker: Worker) -> None:
        self.index.set_epoch(worker.id, worker.epoch)

    def worker(
        self,
        name: str,
        models: Sequence[str] = ("m",),
        *,
        events: Sequence[Event] = (Event.UP,),
        window: int | None = 32_000,
        slots: int = 8,
        profile: CacheProfile | None = None,
        cards: Sequence[bytes] = (),
    ) -> Worker:
        """A worker with these models (or these cards), after these events."""
        worker = self.registry.add(f"http://{name}.{HOST}:8000", slots=slots)
        made = cards or [f'{{"id": "{model}"}}'.encode() for model in models]
        facts = Facts(
            models={model: Model(model, card, window) for model, card in zip(models, made, strict=True)},
            profile=profile or CacheProfile(enabled=True),
        )
        self.registry.learn(worker, facts)
        self.registry.set_epoch(worker, 1.0)
        for event in events:
            self.registry.feed(worker, event)
        return worker

    @asynccontextmanager
    async def client(self, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
        """A client of the control plane."""
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://router", headers=headers) as client:
            yield client

    async def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request."""
        async with self.client() as client:
            return await client.request(method, path, **options)

    def decided(self, request_id: str = "r1", **fields: Any) -> DecisionRecord:
        """Put a decision into the ring."""
        values: dict[str, Any] = {
            "request_id": request_id,
            "at": self.now,
            "endpoint": "/v1/chat/completions",
            "model": "m",
            "worker": "905487f1",
            "reason": "hit",
            "matched_blocks": 6,
            "blocks": 7,
            "resumable_tokens": 768,
            "prompt_tokens": 900,
            "load": 1,
            "min_load": 0,
            "slack": 1,
            "runner_up": None,
            "attempt": 1,
        }
        record = DecisionRecord(**{**values, **fields})
        self.ring.add(record)
        return record


def code_of(response: httpx.Response) -> str:
    """The code of a refusal, whose form is checked on the way."""
    body = response.json()
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    return str(body["error"]["code"])
