"""What must hold of a whole deployment is broken on purpose, in a deployment that only says so."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from loadtest.fleet import RouterProcess
from router.workers.registry import worker_id
from tests.invariants.replicas import REPLICAS, Holding
from tests.whole import invariants
from tests.whole.invariants import check_invariants, check_recovery
from tests.whole.rig import Rig

WORKER = "http://127.0.0.1:8001"
NAME = "0123456789abcdef" * 2


@dataclass
class Said:
    """A deployment of two workers and two replicas, by what it says of itself."""

    sent: int = 3
    counted: float = 3.0
    running: int = 0
    asked: list[list[str]] = field(default_factory=lambda: [[NAME], [NAME, NAME]])
    blocks: list[int] = field(default_factory=lambda: [10, 10])
    state: str = "ready"
    countable: bool = True
    redis: object = True
    addresses: set[str] = field(default_factory=set)
    secrets: set[str] = field(default_factory=set)

    @property
    def workers(self) -> list[Any]:
        state = {"running": self.running, "waiting": 0}
        return [SimpleNamespace(url=f"{WORKER}{n}", state=lambda: state, names=names) for n, names in self._numbered()]

    def _numbered(self) -> list[tuple[int, list[str]]]:
        return list(enumerate(self.asked))

    def records(self, worker: Any) -> list[Any]:
        return [SimpleNamespace(header=lambda _, name=name: name) for name in worker.names]

    @property
    def routers(self) -> list[Any]:
        rows = [{"id": worker_id(worker.url), "state": self.state} for worker in self.workers]
        return [
            SimpleNamespace(
                alive=True,
                metrics=lambda held=held: f'router_index_blocks{{worker="a"}} {held}\n',
                get=lambda path: {"workers": rows},
            )
            for held in self.blocks
        ]

    def metric(self, name: str) -> float:
        return self.counted


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def once(seconds: float, what: str) -> Any:
        yield
        raise TimeoutError(what)

    monkeypatch.setattr(invariants, "until", once)
    monkeypatch.setattr(REPLICAS, "check", lambda routers, secrets: None)


def test_a_deployment_at_rest_is_fine() -> None:
    rig = cast(Rig, Said())
    check_invariants(rig)
    check_recovery(rig)


@pytest.mark.parametrize(
    ("number", "wrong"),
    [
        (1, Said(running=1)),
        (3, Said(counted=2.0)),
        (3, Said(counted=4.0)),
        (4, Said(asked=[[NAME], [NAME], [NAME]])),
        (7, Said(blocks=[10, 30])),
    ],
)
def test_what_a_case_leaves_behind(number: int, wrong: Said) -> None:
    with pytest.raises(AssertionError, match=rf"^invariant {number} "):
        check_invariants(cast(Rig, wrong))


def test_workers_that_do_not_come_back() -> None:
    with pytest.raises(AssertionError, match=r"^invariant 10 "):
        check_recovery(cast(Rig, Said(state="ejected")))


def test_a_replica_is_looked_at_before_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found then is said with the test that comes next to its end, though the replica is gone."""
    seen: list[object] = []

    def found(routers: list[Any], secrets: object = ()) -> None:
        seen.extend(routers)
        raise AssertionError("invariant 1")

    ended: list[Any] = []
    monkeypatch.setattr(RouterProcess, "stop", ended.append)
    monkeypatch.setattr(RouterProcess, "alive", property(lambda router: not ended))
    followed = type(REPLICAS)()
    monkeypatch.setattr(followed, "check", found)
    followed.follow(monkeypatch)
    router = RouterProcess.__new__(RouterProcess)
    monkeypatch.setattr(RouterProcess, "pid", 1)
    followed.before[1] = Holding(0, 0, 0)
    router.stop()
    assert seen == ended == [router]
    monkeypatch.setattr(followed, "check", lambda routers: None)
    with pytest.raises(AssertionError, match="invariant 1"):
        followed.check_all()
    followed.check_all()
