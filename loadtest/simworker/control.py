"""Routes about the worker itself: health, version, models, metrics, and the development ones."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from loadtest.simworker import metrics
from loadtest.simworker.answers import JsonObject
from loadtest.simworker.exchange import Exchange

if TYPE_CHECKING:
    from loadtest.simworker.worker import SimWorker


def health(worker: SimWorker, exchange: Exchange) -> None:
    exchange.reply(200, b"")


def version(worker: SimWorker, exchange: Exchange) -> None:
    exchange.reply_json({"version": worker.config.version})


def load(worker: SimWorker, exchange: Exchange) -> None:
    """Stays 0 without the tracking switch, as the engine's does."""
    exchange.reply_json({"server_load": worker.in_progress() if worker.config.server_load_tracking else 0})


def show_metrics(worker: SimWorker, exchange: Exchange) -> None:
    worker.driver.catch_up()
    exchange.reply(200, metrics.render(worker), metrics.CONTENT_TYPE)


def models(worker: SimWorker, exchange: Exchange) -> None:
    config = worker.config
    cards = [_card(name, root=config.model, parent=None, window=config.window) for name in config.models]
    cards += [
        _card(lora.name, root=f"/adapters/{lora.name}", parent=lora.parent, window=None) for lora in config.adapters
    ]
    exchange.reply_json({"object": "list", "data": cards})


def _card(name: str, *, root: str, parent: str | None, window: int | None) -> JsonObject:
    """Ids and times of creation are new in every answer, as the engine's are."""
    now = int(time.time())
    permission = {
        "id": f"modelperm-{uuid.uuid4().hex[:16]}",
        "object": "model_permission",
        "created": now,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": now,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": window,
        "permission": [permission],
    }


def reset_prefix_cache(worker: SimWorker, exchange: Exchange) -> None:
    worker.driver.catch_up()
    exchange.reply_json({"success": worker.engine.cache.clear()})


def sleep(worker: SimWorker, exchange: Exchange) -> None:
    """Level 1 and above empty the cache; running requests are aborted first."""
    level = exchange.request.parameter("level") or "1"
    if level not in ("0", "1", "2"):
        exchange.reply_json({"error": "level must be 0, 1 or 2"}, 400)
        return
    worker.sleep_level = int(level)
    if worker.sleep_level:
        worker.driver.reset()
        worker.engine.cache.clear()
    worker.asleep = True
    exchange.reply(200, b"")


def wake_up(worker: SimWorker, exchange: Exchange) -> None:
    worker.asleep = False
    exchange.reply(200, b"")


def is_sleeping(worker: SimWorker, exchange: Exchange) -> None:
    exchange.reply_json({"is_sleeping": worker.asleep})


def server_info(worker: SimWorker, exchange: Exchange) -> None:
    config = {"instance_id": str(worker.instance_id), "cache_config": metrics.cache_labels(worker)}
    exchange.reply_json({"vllm_config": config})
