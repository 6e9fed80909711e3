"""Workers that come and go with the addresses of a name: added, drained, let go, and never for want of an answer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from router.settings import Settings
from router.workers.dns import DnsError
from router.workers.dns_fleet import MISSING, DnsFleet
from router.workers.health import Event
from router.workers.registry import Facts, Lease, Model, Registry, Worker, worker_id

ONE, TWO, THREE = "10.0.0.1", "10.0.0.2", "10.0.0.3"


class Scripted:
    """A resolver that says what the test says; None is a failure."""

    def __init__(self) -> None:
        self.says: Sequence[str] | None = ()

    async def addresses(self, name: str) -> Sequence[str]:
        if self.says is None:
            raise DnsError("no answer in time")
        return self.says


class Rig:
    def __init__(self) -> None:
        values = {"workers_dns": ["vllm.example:8000"], "limits": {"default_slots": 7}}
        self.registry = Registry()
        self.resolver = Scripted()
        self.fleet = DnsFleet(Settings.model_validate(values), self.registry, self.resolver, lambda: 0.5)
        (self.source,) = self.fleet.sources

    async def look(self, says: Sequence[str] | None, times: int = 1) -> None:
        self.resolver.says = says
        for _ in range(times):
            await self.fleet.look(self.source)

    def worker(self, address: str) -> Worker | None:
        return self.registry.get(worker_id(f"http://{address}:8000"))

    def there(self, address: str) -> Worker:
        worker = self.worker(address)
        assert worker is not None
        return worker


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_every_address_is_a_worker_with_the_port_and_slots_of_the_settings(rig: Rig) -> None:
    await rig.look([ONE, TWO])
    assert {worker.url for worker in rig.registry} == {f"http://{address}:8000" for address in (ONE, TWO)}
    assert {worker.slots for worker in rig.registry} == {7}


async def test_addresses_of_the_newer_kind_are_written_as_urls_write_them(rig: Rig) -> None:
    await rig.look(["fd00::1"])
    assert [worker.url for worker in rig.registry] == ["http://[fd00::1]:8000"]


async def test_addresses_that_no_worker_may_have_are_left_out(rig: Rig) -> None:
    await rig.look(["169.254.169.254", "0.0.0.0", "224.0.0.1", ONE])
    assert [worker.url for worker in rig.registry] == [f"http://{ONE}:8000"]


async def test_one_that_leaves_gets_nothing_new_and_is_then_let_go(rig: Rig) -> None:
    await rig.look([ONE, TWO])
    left = rig.there(TWO)
    await rig.look([ONE])
    assert left.draining
    assert rig.worker(TWO) is left
    await rig.look([ONE], MISSING - 1)
    assert rig.worker(TWO) is None
    assert left.removed
    assert not rig.there(ONE).draining


async def test_one_that_comes_back_in_time_is_the_same_worker(rig: Rig) -> None:
    await rig.look([ONE, TWO])
    kept = rig.there(TWO)
    for _ in range(3):
        await rig.look([ONE], MISSING - 1)
        await rig.look([ONE, TWO])
    assert rig.worker(TWO) is kept
    assert not kept.draining


async def test_one_with_requests_in_flight_is_waited_for(rig: Rig) -> None:
    await rig.look([ONE, TWO])
    left = rig.there(TWO)
    lease = Lease(rig.registry, left)
    await rig.look([ONE], 2 * MISSING)
    assert rig.worker(TWO) is left
    lease.end()
    await rig.look([ONE])
    assert rig.worker(TWO) is None


def ready(rig: Rig, address: str) -> None:
    worker = rig.there(address)
    rig.registry.learn(worker, Facts(models={"m": Model("m", b"{}")}))
    rig.registry.feed(worker, Event.UP)


async def test_where_all_are_replaced_they_serve_until_one_that_came_is_ready(rig: Rig) -> None:
    await rig.look([ONE, TWO])
    ready(rig, ONE)
    ready(rig, TWO)
    before = [rig.there(ONE), rig.there(TWO)]
    await rig.look([THREE])
    assert [worker.usable for worker in before] == [True, True]
    ready(rig, THREE)
    assert [worker.draining for worker in before] == [True, True]
    assert rig.there(THREE).usable


async def test_the_last_of_a_model_waits_for_nobody_longer_than_it_may_be_missing(rig: Rig) -> None:
    await rig.look([ONE])
    ready(rig, ONE)
    left = rig.there(ONE)
    lease = Lease(rig.registry, left)
    await rig.look([TWO], MISSING - 1)
    assert left.usable
    await rig.look([TWO])
    assert left.draining
    lease.end()
    await rig.look([TWO])
    assert rig.worker(ONE) is None


async def test_one_that_comes_back_before_its_successors_are_ready_stays(rig: Rig) -> None:
    await rig.look([ONE])
    ready(rig, ONE)
    await rig.look([TWO])
    await rig.look([ONE, TWO])
    ready(rig, TWO)
    assert [worker.draining for worker in rig.registry] == [False, False]


@pytest.mark.parametrize("says", [None, ()])
async def test_no_answer_and_an_answer_of_nothing_change_nothing(rig: Rig, says: Sequence[str] | None) -> None:
    await rig.look([ONE, TWO])
    await rig.look(says, 3 * MISSING)
    assert len(rig.registry) == 2
    assert not any(worker.draining for worker in rig.registry)
    assert rig.fleet.results["failed" if says is None else "empty"] == 3 * MISSING


async def test_one_that_was_leaving_goes_on_leaving_when_there_is_no_answer(rig: Rig) -> None:
    await rig.look([ONE, TWO])
    await rig.look([ONE])
    await rig.look(None, 3 * MISSING)
    assert rig.there(TWO).draining


async def test_a_worker_that_the_settings_name_is_not_the_names_to_remove(rig: Rig) -> None:
    mine = rig.registry.add(f"http://{ONE}:8000", slots=3)
    await rig.look([ONE, TWO])
    await rig.look([TWO], 2 * MISSING)
    assert rig.worker(ONE) is mine
    assert not mine.draining
    assert mine.slots == 3


async def test_a_worker_passes_from_the_settings_to_the_name_and_back(rig: Rig) -> None:
    mine = rig.registry.add(f"http://{ONE}:8000", slots=3, api_key="own")
    assert not rig.fleet.keeps(mine)
    await rig.look([ONE, TWO])
    assert rig.fleet.keeps(mine)
    assert (mine.slots, mine.api_key) == (7, None)
    await rig.look([TWO])
    assert mine.draining
    rig.fleet.yields(mine)
    assert not mine.draining
    await rig.look([TWO], 2 * MISSING)
    assert rig.worker(ONE) is mine
    assert not rig.fleet.keeps(mine)


async def test_what_the_admin_has_drained_stays_so(rig: Rig) -> None:
    await rig.look([ONE, TWO])
    rig.registry.set_draining(rig.there(TWO), True)
    await rig.look([ONE])
    await rig.look([ONE, TWO])
    assert rig.there(TWO).draining


async def test_what_the_admin_has_removed_does_not_come_back_while_its_record_stays(rig: Rig) -> None:
    await rig.look([ONE, TWO])
    rig.registry.remove(rig.there(TWO))
    await rig.look([ONE, TWO], 2)
    assert rig.worker(TWO) is None
    await rig.look([ONE], MISSING)
    await rig.look([ONE, TWO])
    assert not rig.there(TWO).draining


async def test_failures_are_told_once_and_so_is_their_end(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "router.workers")
    await rig.look([ONE])
    await rig.look(None, 4)
    await rig.look([ONE, TWO])
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "workers_dns: 1 added, 0 removed, 1 now",
        "workers_dns: a name can't be looked up, its workers stay as they are: no answer in time",
        "workers_dns: names can be looked up again",
        "workers_dns: 1 added, 0 removed, 2 now",
    ]


async def test_without_names_nothing_runs() -> None:
    fleet = DnsFleet(Settings(), Registry(), Scripted(), lambda: 0.5)
    fleet.start()
    await fleet.first_look(20.0)
    await fleet.aclose()
    assert fleet.sources == []


async def test_the_first_look_ends_when_every_name_was_looked_up() -> None:
    registry, resolver = Registry(), Scripted()
    settings = Settings.model_validate({"workers_dns": "vllm.example:8000, Other.example.:9000"})
    fleet = DnsFleet(settings, registry, resolver, lambda: 0.5)
    assert [(source.name, source.port) for source in fleet.sources] == [
        ("vllm.example", 8000),
        ("other.example.", 9000),
    ]
    resolver.says = [ONE]
    fleet.start()
    await fleet.first_look(20.0)
    assert len(registry) == 2
    await fleet.aclose()
