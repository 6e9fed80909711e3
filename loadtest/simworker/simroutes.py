"""Routes under /sim, by which tests and drivers script a worker process and read what it saw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from loadtest.simworker.exchange import Exchange
from loadtest.simworker.faults import parse_rules
from loadtest.simworker.hybrid import HybridCache

if TYPE_CHECKING:
    from loadtest.simworker.worker import SimWorker

MAX_REFUSE_SECONDS = 600.0


def requests(worker: SimWorker, exchange: Exchange) -> None:
    """The records, oldest first. `bodies=1` adds the bodies, `path=` filters, `last=` keeps the newest n."""
    request = exchange.request
    bodies = request.parameter("bodies") == "1"
    path = request.parameter("path")
    records = [record for record in worker.requests if path is None or record.path == path]
    last = request.parameter("last")
    if last is not None and last.isdigit():
        records = records[-int(last) :]
    exchange.reply_json([record.as_json(bodies=bodies) for record in records])


def state(worker: SimWorker, exchange: Exchange) -> None:
    worker.driver.catch_up()
    exchange.reply_json(worker.state())


def reset(worker: SimWorker, exchange: Exchange) -> None:
    """Forget rules and records; the cache stays."""
    worker.faults.clear()
    worker.requests.clear()
    exchange.reply_json({"ok": True})


def faults(worker: SimWorker, exchange: Exchange) -> None:
    if exchange.request.method == "GET":
        exchange.reply_json(worker.faults.rules)
        return
    if exchange.request.method == "DELETE":
        worker.faults.clear()
    else:
        worker.faults.add(*parse_rules(exchange.request.body))
    exchange.reply_json({"rules": len(worker.faults.rules)})


def cache_faults(worker: SimWorker, exchange: Exchange) -> None:
    """Let the next `times` hits meet a fault of this `kind` between being promised and being read."""
    cache = worker.engine.cache
    if not isinstance(cache, HybridCache):
        raise ValueError("only a cache of several forms has faults")
    times = msgspec.convert(exchange.request.parameter("times") or "1", type=int, strict=False)
    cache.inject(exchange.request.parameter("kind") or "", times)
    exchange.reply_json({"ok": True})


def refuse(worker: SimWorker, exchange: Exchange) -> None:
    """Take no connections for `seconds` (at most 600)."""
    seconds = msgspec.convert(exchange.request.parameter("seconds") or "1", type=float, strict=False)
    worker.refuse(min(seconds, MAX_REFUSE_SECONDS))
    exchange.reply_json({"ok": True})


def restart(worker: SimWorker, exchange: Exchange) -> None:
    """A new life of the engine; the other connections are reset."""
    exchange.request.keep_alive = False
    exchange.reply_json({"ok": True})
    worker.restart()
