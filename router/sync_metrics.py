"""The metrics of the news between replicas, read from their owner at scrape time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from router.metrics import Metrics, Sample
from router.sync_off import NoSync

L = TypeVar("L", bound=str)


def describe_sync(metrics: Metrics, sync: NoSync) -> None:
    """Add them all."""
    gauge, count, repairs = metrics.gauge, metrics.counter, sync.repairs
    gauge("router_sync_up", "1 while news passes both ways.", (), lambda: _maybe(sync.up))
    gauge("router_sync_warming", "1 from the start until the others' memory is here.", (), lambda: _one(sync.warming))
    gauge("router_sync_lag_seconds", "Age of own news when it comes back.", (), lambda: _maybe(sync.lag_seconds))
    gauge("router_sync_peers", "Other replicas heard from.", (), lambda: _one(sync.peers))
    gauge("router_sync_queued", "Deltas that wait to be sent.", (), lambda: _one(sync.queued))
    gauge("router_sync_resync_seconds", "What the last resync took.", (), lambda: _maybe(repairs.seconds))
    count("router_sync_messages_total", "Messages.", ("direction", "kind"), lambda: list(sync.messages.items()))
    count("router_sync_bytes_total", "Bytes of messages.", ("direction",), lambda: _by(sync.bytes))
    count("router_sync_dropped_total", "News dropped or refused.", ("cause",), lambda: _by(sync.dropped))
    count("router_sync_gaps_total", "Holes in others' sequences.", (), lambda: _one(sync.gaps))
    count("router_sync_resubscribed_total", "Subscriptions made anew.", (), lambda: _one(sync.resubscribed))
    count("router_sync_resyncs_total", "Questions to another replica.", ("cause",), lambda: _by(repairs.asked))
    count("router_sync_resyncs_failed_total", "Those without a whole answer.", (), lambda: _one(repairs.failed))
    count("router_sync_answers_total", "Questions of others answered.", (), lambda: _one(repairs.answered))
    count("router_sync_restored_blocks_total", "Blocks learned by resyncs.", (), lambda: _one(repairs.restored))
    count("router_sync_digest_mismatches_total", "Digests that differed.", (), lambda: _one(repairs.differences))


def _one(value: float) -> Iterable[Sample]:
    return [((), float(value))]


def _maybe(value: float | None) -> Iterable[Sample]:
    return [] if value is None else _one(value)


def _by(values: Mapping[L, float]) -> Iterable[Sample]:
    return [((label,), value) for label, value in values.items()]
