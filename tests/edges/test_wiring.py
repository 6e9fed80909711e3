"""Settings reach the parts that go by them: where a replica is put together, and where its settings are read again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from router.app import Router
from router.dataplane.gate import Bounds
from router.dataplane.upstream_types import UpstreamLimits
from router.prompt import Form, Prompt
from router.settings import Settings, load
from router.workers.health import Event
from router.workers.registry import Facts, Lease, Model, Worker

WORKERS = ["http://127.0.0.1:9"]
# A value for each, none of them a default, and no two alike.
LIMITS = {
    "body_bytes": 1_001,
    "media_body_bytes": 2_002,
    "total_body_bytes": 30_003,
    "header_bytes": 4_004,
    "header_count": 55,
    "queue_per_worker": 6,
    "default_slots": 77,
    "connections_per_worker": 88,
    "client_connections": 99,
    "choices": 10,
    "decisions": 11,
}
TIMEOUTS = {
    "header": 1.5,
    "body": 2.5,
    "queue": 3.5,
    "connect": 4.5,
    "first_byte": 5.5,
    "stream_idle": 6.5,
    "write_stall": 7.5,
    "upstream_keep_alive": 0.5,
    "keep_alive": 8.5,
}
OTHERS: dict[str, Any] = {
    "decision_headers": False,
    "affinity": {"max_blocks": 1_234, "ttl_seconds": 12.5, "tentative_seconds": 1.25},
    "retry": {"attempts": 3, "budget_share": 0.75, "budget_min": 7},
    "auth": {"worker_api_key": "worker-key"},
}
SETTINGS: dict[str, Any] = {"workers": WORKERS, "limits": LIMITS, "timeouts": TIMEOUTS, **OTHERS}


@pytest.fixture(params=["from the start", "read again"])
async def replica(request: pytest.FixtureRequest) -> AsyncIterator[Router]:
    settings = load(None, SETTINGS)
    if request.param == "from the start":
        made = Router(settings)
    else:
        # What needs a restart is as it was.
        made = Router(load(None, {"workers": WORKERS, "limits": {"decisions": LIMITS["decisions"]}}))
        made.reconfigure(settings)
    yield made
    await made.aclose()


def only_worker(replica: Router) -> Worker:
    (worker,) = replica.registry
    return worker


async def test_what_clients_may_send_and_how_long_they_may_take(replica: Router) -> None:
    assert replica.connections.bounds == Bounds(
        header_bytes=4_004,
        header_count=55,
        body_bytes=2_002,
        header_seconds=1.5,
        body_seconds=2.5,
        write_stall_seconds=7.5,
        keep_alive_seconds=8.5,
        connections=99,
    )
    assert replica.app.budget.limit == 30_003
    assert (replica.app._limits.body_bytes, replica.app._limits.media_body_bytes) == (1_001, 2_002)


async def test_how_workers_are_asked(replica: Router) -> None:
    assert replica.pools._limits == UpstreamLimits(
        connect_seconds=4.5, keep_alive_seconds=0.5, first_byte_seconds=5.5, idle_seconds=6.5, max_connections=88
    )
    assert only_worker(replica).slots == 77
    assert replica.prober.worker_key == "worker-key"
    dispatcher = replica.dispatcher
    assert dispatcher._settings.retry.attempts == 3
    budget = dispatcher._budget
    asked = sum(budget.take(1.0) for _ in range(20))
    assert asked == 7


async def test_how_many_wait_and_for_how_long(replica: Router) -> None:
    assert (replica.admission._per_worker, replica.admission._seconds) == (6, 3.5)


async def test_how_much_is_remembered_and_shown(replica: Router) -> None:
    index = replica.index
    assert (index.max_blocks, index.ttl, index.tentative_ttl) == (1_234, 12.5, 1.25)
    assert replica.ring._ring.maxlen == 11
    assert replica.relay._reveal is False


async def test_a_fleet_that_is_replaced_serves_until_its_successor_is_ready() -> None:
    made = Router(load(None, {"workers": WORKERS}))
    before = only_worker(made)
    _ready(made, before)
    made.reconfigure(load(None, {"workers": ["http://127.0.0.1:10"]}))
    inquiry = made.selector.inquire(Prompt(Form.OTHER, "m"))
    placement = made.selector.place(inquiry, 0.0)
    assert placement is not None
    assert placement.worker is before
    (successor,) = (worker for worker in made.registry if worker is not before)
    _ready(made, successor)
    assert only_worker(made) is successor
    placement.release()
    await made.aclose()


def _ready(replica: Router, worker: Worker) -> None:
    replica.registry.learn(worker, Facts(models={"m": Model("m", b"{}")}))
    replica.registry.feed(worker, Event.UP)


def test_no_value_above_is_a_default_or_stands_twice() -> None:
    plain = Settings(workers=WORKERS)  # type: ignore[arg-type]
    for group, values in (("limits", LIMITS), ("timeouts", TIMEOUTS)):
        defaults = getattr(plain, group)
        assert set(values) >= {name for name in type(defaults).model_fields if not name.startswith(("drain", "strict"))}
        assert all(getattr(defaults, name) != value for name, value in values.items())
        assert len(set(values.values())) == len(values)


async def test_metrics_are_read_from_their_owners(replica: Router) -> None:
    worker = only_worker(replica)
    replica.index.set_epoch(worker.id, worker.epoch)
    replica.index.record(worker.id, worker.epoch, [512, 1024, 1536], 1.0)
    replica.index.clear(worker.id)
    replica.index.record(worker.id, worker.epoch, [512, 1024], 1.0)
    first, second = Lease(replica.registry, worker, 500), Lease(replica.registry, worker, 700)
    first.first_byte()
    replica.registry.set_remote(worker, "other", 3)
    page = set(replica.metrics.render().decode().splitlines())
    of_worker = {"in_flight": 2, "worker_load": 5, "worker_waiting": 1, "worker_queued_tokens": 700, "index_blocks": 2}
    assert page >= {f'router_{name}{{worker="{worker.id}"}} {float(count)}' for name, count in of_worker.items()}
    assert f'router_worker_state{{state="starting",worker="{worker.id}"}} 1.0' in page
    assert 'router_index_evictions_total{cause="epoch"} 3.0' in page
    assert page >= {f'router_config_reloads_total{{result="{result}"}} 0.0' for result in replica.reloader.results}
    # Of parts that are switched off there is nothing to tell.
    switched_off = ("router_spans_total{", "router_dns_lookups_total{", "router_decision_file_lines_total{")
    assert not any(line.startswith(switched_off) for line in page)
    second.end()
    first.end()
