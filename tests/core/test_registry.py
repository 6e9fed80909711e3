from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.workers.health import Event, State
from router.workers.registry import Facts, Lease, Model, Registry, Worker, worker_id


def serve(registry: Registry, worker: Worker, *models: Model | str) -> None:
    cards = [Model(model, b"{}") if isinstance(model, str) else model for model in models]
    registry.learn(worker, Facts(models={model.name: model for model in cards}))


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_a_worker_is_added_once_and_its_url_shows_nowhere(registry: Registry) -> None:
    told: list[Worker] = []
    registry.hooks.added.append(told.append)
    worker = registry.add("http://10.1.2.3:8000", slots=4, api_key="secret")
    assert registry.add("http://10.1.2.3:8000", slots=9) is worker
    assert told == [worker]
    assert worker.slots == 4
    assert worker.id == worker_id("http://10.1.2.3:8000")
    assert len(worker.id) == 8
    assert "10.1.2.3" not in repr(worker)
    assert "secret" not in repr(worker)
    assert registry.get(worker.id) is worker
    assert list(registry) == [worker]


def test_removal_tells_once_and_cannot_take_a_successor_along(registry: Registry) -> None:
    told: list[Worker] = []
    registry.hooks.removed.append(told.append)
    first = registry.add("http://a:1", slots=1)
    registry.remove(first)
    second = registry.add("http://a:1", slots=1)
    registry.remove(first)
    assert told == [first]
    assert second is not first
    assert registry.get(second.id) is second
    assert len(registry) == 1
    assert not first.usable


def test_serving_follows_models_and_membership(registry: Registry) -> None:
    a, b = registry.add("http://a:1", slots=1), registry.add("http://b:1", slots=1)
    assert registry.serving("m") == ()
    serve(registry, a, "m")
    assert registry.serving("m") == (a,)
    serve(registry, b, "m", "n")
    assert registry.serving("m") == (a, b)
    assert registry.serving("n") == (b,)
    serve(registry, b, "n")
    assert registry.serving("m") == (a,)
    registry.remove(a)
    assert registry.serving("m") == ()
    assert registry.serving("n") == (b,)


def test_names_that_nobody_serves_fill_no_cache(registry: Registry) -> None:
    for n in range(100):
        assert registry.serving(f"invented-{n}") == ()
    assert not registry._pools


def test_the_union_of_models_survives_the_first_worker(registry: Registry) -> None:
    a, b = registry.add("http://a:1", slots=1), registry.add("http://b:1", slots=1)
    serve(registry, a, Model("m", b'{"id":"m","from":"a"}'))
    serve(registry, b, Model("m", b'{"id":"m","from":"b"}'), "n")
    assert registry.models()["m"].card == b'{"id":"m","from":"a"}'
    registry.remove(a)
    assert registry.models()["m"].card == b'{"id":"m","from":"b"}'
    assert set(registry.models()) == {"m", "n"}


def test_the_only_base_model_ignores_adapters_and_is_none_when_workers_differ(registry: Registry) -> None:
    assert registry.only_base_model() is None
    a, b = registry.add("http://a:1", slots=1), registry.add("http://b:1", slots=1)
    serve(registry, a, Model("lora", b"{}", parent="m"), "m", "alias")
    assert registry.only_base_model() == "m"
    serve(registry, b, "m")
    assert registry.only_base_model() == "m"
    registry.learn(b, replace(b.facts, models={"other": Model("other", b"{}")}))
    assert registry.only_base_model() is None


def test_feed_tells_of_changes_alone_and_frees_slots_of_a_usable_worker(registry: Registry) -> None:
    worker = registry.add("http://a:1", slots=1)
    changes: list[tuple[State, State]] = []
    freed: list[Worker] = []
    registry.hooks.state.append(lambda _, before, after: changes.append((before, after)))
    registry.hooks.freed.append(freed.append)
    assert not registry.feed(worker, Event.DOWN)
    worker.strikes = 3
    assert registry.feed(worker, Event.UP)
    assert worker.strikes == 0
    assert registry.feed(worker, Event.DOWN)
    assert changes == [(State.STARTING, State.READY), (State.READY, State.UNREADY)]
    assert freed == [worker]


def test_the_larger_epoch_wins_and_nonsense_never(registry: Registry) -> None:
    worker = registry.add("http://a:1", slots=1)
    told: list[float] = []
    registry.hooks.epoch.append(lambda changed: told.append(changed.epoch))
    assert registry.set_epoch(worker, 5.0)
    for epoch in (5.0, 4.0, -1.0, math.nan, math.inf):
        assert not registry.set_epoch(worker, epoch)
    assert registry.set_epoch(worker, 6.0)
    assert told == [5.0, 6.0]


def test_a_draining_worker_is_not_usable_and_resuming_frees_it(registry: Registry) -> None:
    worker = registry.add("http://a:1", slots=1)
    registry.feed(worker, Event.UP)
    freed: list[Worker] = []
    registry.hooks.freed.append(freed.append)
    registry.set_draining(worker, True)
    assert not worker.usable
    assert not freed
    registry.set_draining(worker, False)
    assert worker.usable
    assert freed == [worker]


def test_load_is_the_sum_of_all_replicas_and_falls_with_them(registry: Registry) -> None:
    worker, other = registry.add("http://a:1", slots=9), registry.add("http://b:1", slots=9)
    freed: list[Worker] = []
    lease = Lease(registry, worker)
    registry.set_remote(worker, "r2", 3)
    registry.set_remote(worker, "r3", 1)
    registry.set_remote(other, "r2", 2)
    assert (worker.local, worker.load, other.load) == (1, 5, 2)
    registry.hooks.freed.append(freed.append)
    registry.set_remote(worker, "r2", 4)
    assert not freed
    registry.drop_replica("r2")
    assert freed == [worker, other]
    assert (worker.load, other.load) == (2, 0)
    registry.set_remote(worker, "r3", -7)
    assert worker.load == 1
    assert worker.remote == {}
    lease.end()
    assert worker.load == 0


def test_what_waits_for_its_first_byte_is_counted_over_all_replicas(registry: Registry) -> None:
    worker = registry.add("http://a:1", slots=9)
    told: list[tuple[int, int, int]] = []
    registry.hooks.step.append(lambda _, __: told.append((worker.load, worker.waiting, worker.queued_tokens)))
    answered, broken = Lease(registry, worker, 100), Lease(registry, worker, 20)
    registry.set_remote(worker, "r2", 3, 2, 5_000)
    registry.set_remote(worker, "r3", 2, 7, -1)
    assert (worker.waiting, worker.queued_tokens) == (6, 5_120)
    assert worker.own_part == (2, 2, 120)
    assert worker.remote == {"r2": (3, 2, 5_000), "r3": (2, 2, 0)}
    for _ in range(2):
        answered.first_byte()
    registry.drop_replica("r2")
    registry.drop_replica("r3")
    assert (worker.load, worker.waiting, worker.queued_tokens) == (2, 1, 20)
    for lease in (broken, answered):
        lease.end()
        lease.first_byte()
    assert told == [(1, 1, 100), (2, 2, 120), (7, 5, 5_020), (1, 0, 0), (0, 0, 0)]


def test_a_lease_ends_once(registry: Registry) -> None:
    worker = registry.add("http://a:1", slots=1)
    loads: list[int] = []
    freed: list[Worker] = []
    registry.hooks.step.append(lambda lease, _: loads.append(lease.worker.load))
    registry.hooks.freed.append(freed.append)
    lease = Lease(registry, worker)
    lease.end()
    lease.end()
    assert loads == [1, 0]
    assert freed == [worker]
    assert worker.local == 0


def test_a_probation_has_one_request_and_older_ones_do_not_end_it(registry: Registry) -> None:
    worker = registry.add("http://a:1", slots=9)
    registry.feed(worker, Event.UP)
    old = Lease(registry, worker)
    registry.feed(worker, Event.STRUCK_OUT)
    registry.feed(worker, Event.COOLED)
    assert worker.usable
    trial = Lease(registry, worker)
    forced = Lease(registry, worker)
    assert not worker.usable
    old.end()
    forced.end()
    assert not worker.usable
    trial.end()
    assert worker.usable


@given(
    st.lists(st.tuples(st.sampled_from(["lease", "first", "end", "remote", "drop"]), st.integers(0, 3)), max_size=40)
)
def test_no_order_of_events_makes_load_wrong(events: list[tuple[str, int]]) -> None:
    registry = Registry()
    worker = registry.add("http://a:1", slots=1)
    leases: list[Lease] = []
    waiting: dict[Lease, int] = {}
    remote = {"r0": 0, "r1": 0}
    for kind, n in events:
        replica = f"r{n % 2}"
        if kind == "lease":
            leases.append(Lease(registry, worker, n - 1))
            waiting[leases[-1]] = max(0, n - 1)
        elif kind == "first" and leases:
            leases[n % len(leases)].first_byte()
            waiting.pop(leases[n % len(leases)], None)
        elif kind == "end" and leases:
            ended = leases.pop(n % len(leases))
            ended.end()
            waiting.pop(ended, None)
        elif kind == "remote":
            remote[replica] = n
            registry.set_remote(worker, replica, n, n, 10 * n)
        elif kind == "drop":
            remote[replica] = 0
            registry.drop_replica(replica)
        others = sum(remote.values())
        assert worker.load == len(leases) + others
        assert worker.waiting == len(waiting) + others
        assert worker.queued_tokens == sum(waiting.values()) + 10 * others
