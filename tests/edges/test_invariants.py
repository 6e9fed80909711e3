"""Each invariant is broken on purpose, and whoever looks after the cases says so."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import httpx
import pytest

from loadtest.fleet import RouterProcess
from router.affinity import AffinityMap
from router.dataplane.client import BodyBudget, Client
from router.dataplane.outgoing import Outgoing
from router.dataplane.upstream import Origin, UpstreamLimits, UpstreamPool, UpstreamResponse
from router.workers.registry import Lease, Registry
from tests import invariants
from tests.catalogue import TESTS
from tests.invariants import parts, replicas
from tests.invariants.answers import check_answer
from tests.invariants.parts import Parts, check_tasks
from tests.invariants.replicas import AT_REST, Holding, Replicas


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Parts]:
    """A look at what the test makes."""
    watch = Parts(monkeypatch)
    yield watch
    logging.getLogger().removeHandler(watch._log)


def breaks(number: int) -> Any:
    """The look must find this invariant broken."""
    return pytest.raises(AssertionError, match=rf"^invariant {number} ")


def fleet() -> Registry:
    registry = Registry()
    registry.add("http://10.0.0.1:8000", slots=1)
    return registry


def client(budget: BodyBudget) -> Client:
    """A request whose connection is not there."""
    gate = SimpleNamespace(outgoing=Outgoing())
    connection = cast(
        Any, SimpleNamespace(headers=[], fields={}, old=False, keep_alive=True, connections=SimpleNamespace(gate=gate))
    )
    return Client(connection, b"POST", "/v1/x", b"", budget, b"spare")


# -- parts in the same process ---------------------------------------------------------------------------------


def test_without_a_fault_nothing_is_found(made: Parts) -> None:
    registry = fleet()
    Lease(registry, *registry).end()
    request = client(BodyBudget(100))
    request.limit = 10
    request.feed(b"body")
    request.lost()
    made.check()
    assert invariants.taken() == {1, 2, 3, 8, 9}


def test_1_a_request_that_is_counted_for_ever(made: Parts) -> None:
    registry = fleet()
    Lease(registry, *registry)
    with breaks(1):
        made.check()


def test_1_a_count_below_nothing(made: Parts) -> None:
    [worker] = fleet()
    worker.load -= 1
    with breaks(1):
        made.check()


def test_1_a_body_that_is_kept(made: Parts) -> None:
    BodyBudget(10).take(1)
    with breaks(1):
        made.check()


def test_2_descriptors_that_are_left_open(made: Parts) -> None:
    with ExitStack() as stack:
        for _ in range(parts.DESCRIPTORS + 1):
            stack.enter_context(open(os.devnull))
        with breaks(2):
            made.check()


async def test_2_a_connection_to_a_worker_that_is_not_given_back(made: Parts) -> None:
    pool = UpstreamPool(Origin("127.0.0.1", 1), UpstreamLimits())
    UpstreamResponse(asyncio.get_running_loop(), cast(Any, SimpleNamespace(pool=pool)), [], 0.0, Outgoing())
    with breaks(2):
        made.check()


async def test_2_a_task_that_goes_on() -> None:
    task = asyncio.create_task(asyncio.Event().wait(), name="forgotten")
    with breaks(2):
        check_tasks({other.get_name() for other in asyncio.all_tasks() if other is not asyncio.current_task()})
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_3_a_request_without_an_end(made: Parts) -> None:
    client(BodyBudget(10))
    with breaks(3):
        made.check()


def test_7_a_map_beyond_its_bounds(made: Parts) -> None:
    registry, index = fleet(), AffinityMap(10, 60.0, 5.0)
    [worker] = registry
    index.set_epoch(worker.id, 1.0)
    index.record(worker.id, 1.0, list(range(100, 110)), 0.0)
    index.max_blocks = 9
    with breaks(7):
        made.check()


def test_7_blocks_of_a_worker_that_nobody_configured(made: Parts) -> None:
    fleet()
    AffinityMap(10, 60.0, 5.0).set_epoch("stranger", 1.0)
    with breaks(7):
        made.check()


def test_8_a_log_that_never_ends(made: Parts) -> None:
    for _ in range(invariants.LINES + 1):
        logging.getLogger("router").warning("again")
    with breaks(8):
        made.check()


def test_8_memory_that_is_not_given_back(made: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MEGABYTES", 8)
    # So much comes fresh from the system, whatever earlier tests have left free.
    kept = b"x" * (64 << 20)
    with breaks(8):
        made.check()
    del kept


@pytest.mark.parametrize("words", ["prompt: canary", "to 10.0.0.1:8000", "Traceback (most recent call last):"])
def test_9_what_must_not_be_said(made: Parts, words: str) -> None:
    fleet()
    logging.getLogger("router").warning("%s", words)
    with breaks(9):
        made.check()


async def test_9_an_exception_that_nobody_takes(made: Parts) -> None:
    async def fail() -> None:
        raise ValueError("nobody asks")

    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    del task
    gc.collect()
    with breaks(9):
        made.check()


# -- replicas --------------------------------------------------------------------------------------------------

FINE = dict.fromkeys(AT_REST, 0.0) | {"router_asyncio_tasks": 9.0}
STATES = {'router_worker_state{worker="a",state="ready"}': 1.0, 'router_index_blocks{worker="a"}': 10.0}
NOW = Holding(20, 9, 80 << 20)


class Pretender(RouterProcess):
    """A replica that shows what it is told to."""

    def __init__(self, directory: Path, shown: dict[str, float], log: str = "") -> None:
        super().__init__(directory, ["http://10.0.0.1:8000"])
        self.shown = {**FINE, **STATES, **shown}
        self.log.write_text(log)

    @property
    def alive(self) -> bool:
        return True

    @property
    def pid(self) -> int:
        return os.getpid()

    def metrics(self) -> str:
        return "".join(f"{name} {value}\n" for name, value in self.shown.items())


@pytest.mark.parametrize(
    ("number", "shown", "log", "before"),
    [
        *((1, {name: 1.0}, "", NOW) for name in AT_REST),
        (1, {"router_in_flight": -1.0}, "", NOW),
        (2, {}, "", Holding(14, 9, 80 << 20)),
        (2, {}, "", Holding(20, 3, 80 << 20)),
        (7, {'router_index_blocks{worker="a"}': 200_001.0}, "", NOW),
        (7, {'router_index_blocks{worker="b"}': 1.0}, "", NOW),
        (8, {}, "", Holding(20, 9, -400 << 20)),
        (8, {}, "", Holding(20, 9, 80 << 20, -501)),
        (9, {}, "to 10.0.0.1:8000", NOW),
        (9, {}, "internal error", NOW),
        (9, {}, "canary-of-the-prompts", NOW),
        (9, {}, "canary-of-a-key", NOW),
    ],
)
def test_what_a_replica_shows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    shown: dict[str, float],
    log: str,
    before: Holding,
) -> None:
    monkeypatch.setattr(replicas, "REST_SECONDS", 0.05)
    monkeypatch.setattr(replicas, "CLOSED_SECONDS", 0.05)
    monkeypatch.setattr(Holding, "of", lambda router: NOW)
    with breaks(number):
        Replicas(before={os.getpid(): before}).check([Pretender(tmp_path, shown, log)], {"canary-of-a-key"})
    Replicas(before={os.getpid(): NOW}).check([Pretender(tmp_path, {})], {"canary-of-a-key"})


# -- answers ---------------------------------------------------------------------------------------------------

EVENTS = {"content-type": "text/event-stream"}
ASKED = {"x-request-id": "r1"}


@pytest.mark.parametrize(
    ("number", "status", "headers", "body"),
    [
        (5, 200, EVENTS, 'data: {"id":"chatcmpl-r1"}\n\n'),
        (6, 200, ASKED, '{"id":"chatcmpl-r2"}'),
        (9, 200, ASKED, '{"text":"Traceback (most recent call last)"}'),
        (9, 502, ASKED, '{"error":{"message":"10.0.0.1:8000 is away","type":"t","param":null,"code":"c"}}'),
        (9, 502, ASKED, '{"error":{"message":"m","code":"c"}}'),
        (9, 502, {}, '{"error":{"message":"m","type":"t","param":null,"code":"c"}}'),
    ],
)
def test_what_a_client_sees(number: int, status: int, headers: dict[str, str], body: str) -> None:
    request = httpx.Request("POST", "http://router/v1/chat/completions", content=b"{}")
    with breaks(number):
        check_answer(httpx.Response(status, headers=headers, text=body, request=request), {"10.0.0.1:8000"})


# -- nobody has to remember --------------------------------------------------------------------------------------

LEAKS = """
import asyncio
from router.workers.registry import Lease, Registry

async def test_w1_a_task_is_left():
    test_w1_a_task_is_left.task = asyncio.create_task(asyncio.Event().wait())

def test_w2_a_lease_is_left():
    registry = Registry()
    Lease(registry, registry.add("http://10.0.0.1:8000", slots=1))

def test_w4_all_is_well():
    registry = Registry()
    Lease(registry, registry.add("http://10.0.0.1:8000", slots=1)).end()

def test_of_no_case():
    registry = Registry()
    Lease(registry, registry.add("http://10.0.0.1:8000", slots=1))
"""


def test_a_case_is_looked_after_by_its_name_alone(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    (tests / "edges").mkdir(parents=True)
    for name in ("conftest.py", "catalogue.py"):
        shutil.copy(TESTS / name, tests)
    for name in ("invariants", "data"):
        shutil.copytree(TESTS / name, tests / name, ignore=shutil.ignore_patterns("corpus", "models", "__pycache__"))
    (tests / "edges" / "test_leaks.py").write_text(textwrap.dedent(LEAKS))
    words = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "asyncio_mode=auto",
        "--import-mode=importlib",
        "--junitxml=seen.xml",
    ]
    path = os.pathsep.join((str(tmp_path), str(TESTS.parent)))
    command = [sys.executable, "-m", "pytest", *words, "-c", os.devnull, f"--rootdir={tmp_path}", str(tests)]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    report = ElementTree.fromstring((tmp_path / "seen.xml").read_text())
    errors: dict[str, str] = {}
    for case in report.iter("testcase"):
        errors.setdefault(case.attrib["name"], "")
        errors[case.attrib["name"]] += "".join(error.attrib["message"] for error in case.iter("error"))
    assert "invariant 2 " in errors["test_w1_a_task_is_left"], done.stdout
    assert "invariant 1 " in errors["test_w2_a_lease_is_left"]
    assert errors["test_w4_all_is_well"] == errors["test_of_no_case"] == ""
    seen = {case.attrib["name"]: [p.attrib["value"] for p in case.iter("property")] for case in report.iter("testcase")}
    assert seen["test_w4_all_is_well"] == ["1 2 8 9"]
    assert seen["test_of_no_case"] == []
