"""A fleet behind a name: workers on addresses of one port come and go with its records while requests run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from loadtest.fleet import RouterProcess, until
from loadtest.simworker import SimProcess
from router.workers.registry import worker_id
from tests.dns_server import DnsServer
from tests.whole.conftest import FAST, MODEL, QUICK_HEALTH
from tests.whole.rig import total

NAME = "vllm.example"


@dataclasses.dataclass
class Rig:
    """A name server, workers on one port of several addresses, and a replica that knows but the name."""

    dns: DnsServer
    workers: dict[str, SimProcess]
    router: RouterProcess

    def name(self, *addresses: str) -> None:
        self.dns.records[NAME] = list(addresses)

    def rows(self) -> dict[str, str]:
        """State, or draining, of each worker by its address."""
        ids = {worker_id(worker.url): address for address, worker in self.workers.items()}
        rows = self.router.get("/router/workers")["workers"]
        return {ids[row["id"]]: "draining" if row["draining"] else row["state"] for row in rows}

    def wait(self, **wanted: str) -> None:
        """Wait until exactly these workers are there, in these states."""
        expected = {address.replace("_", ".").removeprefix("a"): state for address, state in wanted.items()}
        rows = {}
        try:
            for _ in until(20, "the fleet"):
                rows = self.rows()
                if rows == expected:
                    return
        except TimeoutError:
            raise AssertionError(f"{rows} instead of {expected}") from None

    def chat(self, text: str) -> httpx.Response:
        body = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": text}]}
        return httpx.post(f"{self.router.url}/v1/chat/completions", json=body, trust_env=False, timeout=30)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        dns = stack.enter_context(DnsServer())
        first = stack.enter_context(SimProcess(FAST))
        workers = {"127.0.0.1": first}
        for address in ("127.0.0.2", "127.0.0.3"):
            config = dataclasses.replace(FAST, host=address, port=first.port)
            workers[address] = stack.enter_context(SimProcess(config))
        environment = {
            **QUICK_HEALTH,
            "ROUTER_WORKERS_DNS": f"{NAME}:{first.port}",
            "ROUTER_DNS__SERVER": dns.address,
            "ROUTER_DNS__INTERVAL": "0.1",
        }
        dns.records[NAME] = ["127.0.0.1"]
        router = stack.enter_context(RouterProcess(tmp_path, [], environment=environment))
        yield Rig(dns, workers, router)


def test_workers_come_and_go_with_the_records_of_their_name(rig: Rig) -> None:
    rig.wait(a127_0_0_1="ready")
    assert rig.chat("hello").status_code == 200
    rig.name("127.0.0.1", "127.0.0.2", "127.0.0.3")
    rig.wait(a127_0_0_1="ready", a127_0_0_2="ready", a127_0_0_3="ready")
    text = "a conversation that stays where it is " * 60
    home = rig.chat(text).headers["x-router-worker"]
    rig.name(*[address for address, worker in rig.workers.items() if worker_id(worker.url) != home])
    for _ in until(20, "the worker to be let go"):
        if len(rig.rows()) == 2:
            break
    answer = rig.chat(text)
    assert answer.status_code == 200
    assert answer.headers["x-router-worker"] != home
    assert home not in {row["id"] for row in rig.router.get("/router/workers")["workers"]}


def test_an_answer_that_runs_while_its_worker_leaves_is_finished(rig: Rig) -> None:
    rig.wait(a127_0_0_1="ready")
    body = {"model": MODEL, "max_tokens": 400, "stream": True, "messages": [{"role": "user", "content": "long"}]}
    # After its first events: a stall before them would be over before there is an answer to run.
    fault = {"x-sim-fault": '{"kind": "stall", "after": 3, "unit": "event", "seconds": 5}'}
    url = f"{rig.router.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, headers=fault, trust_env=False, timeout=30) as answer:
        rig.name("127.0.0.2")
        rig.wait(a127_0_0_1="draining", a127_0_0_2="ready")
        assert answer.read().rstrip().endswith(b"data: [DONE]")
    rig.wait(a127_0_0_2="ready")


@pytest.mark.parametrize("trouble", ["failing", "silent", "empty"])
def test_trouble_with_names_leaves_the_fleet_as_it_is(rig: Rig, trouble: str) -> None:
    rig.wait(a127_0_0_1="ready")
    if trouble == "failing":
        rig.dns.code = 2
    elif trouble == "silent":
        rig.dns.mute = True
    else:
        rig.dns.records.clear()
    result = "empty" if trouble == "empty" else "failed"
    for _ in until(20, "some lookups in vain"):
        if total(rig.router.metrics(), "router_dns_lookups_total", result=result) >= (1 if trouble == "silent" else 5):
            break
    assert rig.rows() == {"127.0.0.1": "ready"}
    assert rig.chat("still here").status_code == 200
    rig.dns.code, rig.dns.mute = 0, False
    rig.name("127.0.0.1", "127.0.0.3")
    rig.wait(a127_0_0_1="ready", a127_0_0_3="ready")


def test_a_replica_that_starts_before_its_name_is_known_finds_it_later(tmp_path: Path) -> None:
    with DnsServer() as dns, SimProcess(FAST) as worker:
        environment = {
            **QUICK_HEALTH,
            "ROUTER_WORKERS_DNS": f"{NAME}:{worker.port}",
            "ROUTER_DNS__SERVER": dns.address,
            "ROUTER_DNS__INTERVAL": "0.1",
        }
        with RouterProcess(tmp_path, [], environment=environment) as router:
            assert httpx.get(f"{router.url}/ready", trust_env=False).status_code == 503
            assert router.log.read_text().count("Traceback") == 0
            dns.records[NAME] = ["127.0.0.1"]
            router.wait_ready(1)
