"""The fleet: shown to everybody who may read, changed by the admin. Changes concern this replica alone."""

from __future__ import annotations

import time
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from router.calibration import Ledger
from router.control.context import ControlContext
from router.control.doors import Doors
from router.control.exchange import ADMIN_BODY_BYTES, answer, read_body
from router.errors import BadRequest, Conflict, NotFound
from router.settings import WorkerSettings, words
from router.workers.registry import Worker, worker_id

MAX_WORKERS = 1000


class Workers:
    """`/router/workers` and what lies below it."""

    def __init__(self, context: ControlContext, doors: Doors) -> None:
        self._context = context
        self._registry = context.registry
        self._doors = doors

    async def list(self, request: Request) -> Response:
        """Every worker; where they listen is for the admin alone."""
        reveal = self._doors.is_admin(request)
        return answer({"workers": [self._row(worker, reveal=reveal) for worker in self._registry]})

    async def add(self, request: Request) -> Response:
        """201 for a new worker, 200 for one that is there already as described; raises BadRequest, Conflict."""
        wanted = _read(await read_body(request, ADMIN_BODY_BYTES))
        api_key = wanted.api_key.get_secret_value() if wanted.api_key else None
        known = self._registry.get(worker_id(wanted.url))
        if known is not None:
            _refuse_difference(known, wanted.slots, api_key)
            known.leaving = False
            return answer(self._row(known))
        if len(self._registry) >= MAX_WORKERS:
            raise Conflict(f"The fleet has {MAX_WORKERS} workers, which is the most it can have.")
        slots = wanted.slots or self._context.settings.limits.default_slots
        return answer(self._row(self._registry.add(wanted.url, slots=slots, api_key=api_key)), 201)

    async def remove(self, worker: str) -> Response:
        """Take a worker out; its requests in flight go on."""
        found = self._find(worker)
        self._registry.remove(found)
        return answer(self._row(found))

    async def drain(self, worker: str) -> Response:
        """Send nothing new to a worker."""
        return self._set_draining(worker, True)

    async def resume(self, worker: str) -> Response:
        """End a drain."""
        return self._set_draining(worker, False)

    def _set_draining(self, name: str, draining: bool) -> Response:
        worker = self._find(name)
        self._registry.set_draining(worker, draining)
        return answer(self._row(worker))

    def _find(self, name: str) -> Worker:
        worker = self._registry.get(name)
        if worker is None:
            raise NotFound("No worker has this id.")
        return worker

    def _row(self, worker: Worker, *, reveal: bool = True) -> dict[str, Any]:
        row = describe(self._context, worker)
        return {**row, "url": worker.url} if reveal else row


def describe(context: ControlContext, worker: Worker) -> dict[str, Any]:
    """One worker in plain values, without its URL; times in seconds, sizes in tokens."""
    facts, profile = worker.facts, worker.facts.profile
    return {
        "id": worker.id,
        "state": worker.state.value,
        "draining": worker.draining,
        "asleep": worker.asleep,
        "in_flight": {"local": worker.local, "all": worker.load},
        "slots": worker.slots,
        "models": [
            {"name": model.name, "window": model.window, "parent": model.parent} for model in facts.models.values()
        ],
        # Epoch 0 means that nobody has seen the worker start.
        "epoch": worker.epoch or None,
        "epoch_age_seconds": round(max(0.0, time.time() - worker.epoch), 1) if worker.epoch else None,
        "epoch_from": _source(context, worker),
        "emptied": int(context.metrics.emptied.values.get((worker.id,), 0)),
        "cache": {
            "enabled": profile.enabled,
            "block_size": profile.block_size,
            "hit_unit": profile.unit,
            "floor_tokens": profile.floor_tokens,
            "capacity_tokens": profile.capacity_tokens,
            # The same, corrected by what came true.
            "learned_capacity_tokens": context.ledger_of(worker).capacity.tokens,
        },
        "hits": _hits(context.ledger_of(worker)),
        "blocks": context.index.blocks_of(worker.id),
        "ejections": worker.ejections,
        "engine": {"running": facts.running, "waiting": facts.waiting},
    }


def _source(context: ControlContext, worker: Worker) -> str | None:
    """How the last epoch was found out: by hits that failed here, the engine's start time, or as somebody saw it."""
    if not worker.epoch:
        return None
    if worker.epoch == context.emptied_at(worker):
        return "emptied"
    return "start" if worker.epoch == worker.facts.started else "seen"


def _hits(ledger: Ledger) -> dict[str, Any]:
    """Answers by verdict since the start, and how good the predictions were of late; shares of tokens."""
    shares = {"precision": ledger.precision, "recall": ledger.recall}
    counts = {verdict.value: count for verdict, count in ledger.counts.items()}
    return {**counts, **{name: None if share is None else round(share, 4) for name, share in shares.items()}}


def _read(body: bytes) -> WorkerSettings:
    try:
        return WorkerSettings.model_validate_json(body)
    except ValidationError as error:
        problems = [
            ".".join(map(str, item["loc"]))
            + ": " * bool(item["loc"])
            + words.reason(item["type"], item["msg"], item.get("ctx", {}), item["input"])
            for item in error.errors(include_url=False)
        ]
        raise BadRequest("; ".join(problems)) from None


def _refuse_difference(known: Worker, slots: int | None, api_key: str | None) -> None:
    same_slots = slots is None or slots == known.slots
    same_key = api_key is None or api_key == known.api_key
    if not (same_slots and same_key):
        raise Conflict("The worker is there with other slots or another key; remove it first to change them.")
