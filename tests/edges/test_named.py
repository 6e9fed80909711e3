"""Workers as the settings name them: who comes, who goes, and who stays until others can take over."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from router.settings import load
from router.workers.dns import Resolver
from router.workers.dns_fleet import DnsFleet
from router.workers.health import Event
from router.workers.named import MOST_SECONDS, NamedWorkers
from router.workers.registry import Facts, Model, Registry, Worker, worker_id

ONE, TWO, THREE = (f"http://10.0.0.{number}:8000" for number in (1, 2, 3))


class Silent(Resolver):
    async def addresses(self, name: str) -> Sequence[str]:
        return ()


class Fleet:
    """Workers that are ready when the test says so, on its clock."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.registry = Registry()
        dns = DnsFleet(load(None, {}), self.registry, Silent(), lambda: 0.5)
        self.named = NamedWorkers(self.registry, dns, lambda: self.now)

    def name(self, *urls: str) -> None:
        self.named.follow(load(None, {"workers": list(urls)}))

    def worker(self, url: str) -> Worker:
        worker = self.registry.get(worker_id(url))
        assert worker is not None
        return worker

    def ready(self, *urls: str, models: Sequence[str] = ("m",)) -> None:
        for url in urls:
            worker = self.worker(url)
            self.registry.learn(worker, Facts(models={name: Model(name, b"{}") for name in models}))
            self.registry.feed(worker, Event.UP)

    @property
    def urls(self) -> list[str]:
        return sorted(worker.url for worker in self.registry)


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet()
    fleet.name(ONE, TWO)
    fleet.ready(ONE, TWO)
    return fleet


def test_one_goes_at_once_where_others_serve_its_models(fleet: Fleet) -> None:
    fleet.name(TWO, THREE)
    assert fleet.urls == [TWO, THREE]


def test_all_go_at_once_where_nobody_comes(fleet: Fleet) -> None:
    fleet.name()
    assert fleet.urls == []


def test_where_all_are_replaced_they_stay_until_one_that_came_is_ready(fleet: Fleet) -> None:
    fleet.name(THREE)
    assert fleet.urls == [ONE, TWO, THREE]
    assert all(fleet.worker(url).usable for url in (ONE, TWO))
    fleet.ready(THREE)
    assert fleet.urls == [THREE]


def test_a_model_that_the_new_ones_do_not_serve_is_given_up_when_all_have_been_looked_at(fleet: Fleet) -> None:
    fleet.registry.learn(fleet.worker(ONE), Facts(models={"other": Model("other", b"{}")}))
    fleet.name(THREE, "http://10.0.0.4:8000")
    fleet.ready(THREE)
    assert ONE in fleet.urls
    assert TWO not in fleet.urls
    fleet.ready("http://10.0.0.4:8000")
    assert ONE not in fleet.urls


def test_nobody_is_waited_for_where_nobody_listens(fleet: Fleet) -> None:
    fleet.name(THREE)
    fleet.worker(THREE).refused = True
    fleet.named.settle()
    assert fleet.urls == [THREE]


def test_they_wait_no_longer_than_some_seconds(fleet: Fleet) -> None:
    fleet.name(THREE)
    fleet.now += MOST_SECONDS - 0.001
    fleet.named.settle()
    assert fleet.urls == [ONE, TWO, THREE]
    fleet.now += 0.001
    fleet.named.settle()
    assert fleet.urls == [THREE]


def test_who_is_named_again_meanwhile_stays(fleet: Fleet) -> None:
    kept = fleet.worker(ONE)
    fleet.name(THREE)
    fleet.name(ONE, THREE)
    fleet.ready(THREE)
    assert fleet.urls == [ONE, THREE]
    assert fleet.worker(ONE) is kept


def test_who_is_added_by_hand_meanwhile_stays_and_who_is_removed_by_hand_goes(fleet: Fleet) -> None:
    kept = fleet.worker(ONE)
    fleet.name(THREE)
    fleet.registry.add(ONE, slots=kept.slots)
    fleet.registry.remove(fleet.worker(TWO))
    again = fleet.registry.add(TWO, slots=1)
    fleet.ready(THREE)
    assert fleet.urls == [ONE, TWO, THREE]
    assert fleet.worker(TWO) is again


def test_who_is_drained_goes_at_once(fleet: Fleet) -> None:
    fleet.registry.set_draining(fleet.worker(ONE), True)
    fleet.name(THREE)
    assert fleet.urls == [TWO, THREE]


def test_those_that_leave_one_after_another_have_their_own_times(fleet: Fleet) -> None:
    fleet.name(TWO)
    fleet.name(THREE)
    fleet.now += MOST_SECONDS / 2
    fleet.name("http://10.0.0.4:8000")
    fleet.now += MOST_SECONDS / 2
    fleet.named.settle()
    assert fleet.urls == ["http://10.0.0.4:8000"]
