"""Rigs of real processes: workers, replicas, Redis, nginx, on free ports, ended with their test."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loadtest.fleet import NginxProcess, RedisProcess, RouterProcess, find_nginx, find_redis, replicas
from loadtest.simworker import SimConfig
from loadtest.simworker.process import SimProcess, start_workers
from tests.catalogue import is_case
from tests.invariants.replicas import REPLICAS

MODEL = "sim-model"
FAST = SimConfig(
    models=(MODEL, "alias"),
    prefill_tokens_per_second=200_000.0,
    decode_seconds_per_token=0.0005,
    enable_prompt_tokens_details=True,
    allow_fault_headers=True,
)
# Probes often enough that tests of health wait for milliseconds, not for seconds.
QUICK_HEALTH = {"ROUTER_HEALTH__INTERVAL": "0.2", "ROUTER_HEALTH__TIMEOUT": "0.5"}


def require(binary: str | None, name: str) -> None:
    """Skip without the binary; in CI its absence is a failure."""
    if binary is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is not installed")
        pytest.skip(f"{name} is not installed")


@dataclass
class Rig:
    """A small deployment."""

    directory: Path
    workers: list[SimProcess]
    routers: list[RouterProcess]
    redis: RedisProcess | None
    nginx: NginxProcess | None

    @property
    def front(self) -> str:
        """Where clients connect."""
        return self.nginx.url if self.nginx else self.routers[0].url

    def worker(self, short_id: str) -> SimProcess:
        """The process behind a worker's short id."""
        return self.workers[self.worker_ids.index(short_id)]

    @property
    def worker_ids(self) -> list[str]:
        """Short ids in the order of `workers`."""
        from router.workers.registry import worker_id

        return [worker_id(worker.url) for worker in self.workers]


class Builder:
    """Builds rigs within one test or module."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack

    def __call__(
        self,
        *,
        workers: int = 2,
        replica_count: int = 1,
        nginx: bool = False,
        config: SimConfig = FAST,
        flags: list[str] | None = None,
        environment: dict[str, str] | None = None,
    ) -> Rig:
        redis = None
        if replica_count > 1:
            require(find_redis(), "redis-server")
            redis = self._stack.enter_context(RedisProcess(self._directory))
        processes = self._stack.enter_context(start_workers(workers, config))
        routers = self._stack.enter_context(
            replicas(
                self._directory,
                replica_count,
                [worker.url for worker in processes],
                redis_url=redis.url if redis else None,
                flags=flags or [],
                environment={**QUICK_HEALTH, **(environment or {})},
            )
        )
        front = None
        if nginx:
            require(find_nginx(), "nginx")
            front = self._stack.enter_context(NginxProcess(self._directory, [router.port for router in routers]))
        return Rig(self._directory, processes, routers, redis, front)


@pytest.fixture(scope="session", autouse=True)
def _replicas() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        REPLICAS.follow(patch)
        yield


@pytest.fixture(scope="module", autouse=True)
def _deployment_of_a_module_at_its_end(_replicas: None) -> Iterator[None]:
    """Around what a module has in common, so that it is ended before."""
    yield
    REPLICAS.check_all()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """What a case leaves behind is looked at while its deployment stands."""
    result = yield
    if is_case(pyfuncitem.path, pyfuncitem.originalname):
        REPLICAS.check_all()
    return result


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Builder]:
    """Rigs for one test."""
    with ExitStack() as stack:
        yield Builder(tmp_path, stack)


@pytest.fixture(scope="module")
def build_shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """Rigs for the tests of a module, which leave them as they found them."""
    with ExitStack() as stack:
        yield Builder(tmp_path_factory.mktemp("rig"), stack)


@pytest.fixture
def rig(deployment: Any) -> Iterator[Any]:
    """The deployment of a module of cases, for one of them: what must hold after each is looked at after each."""
    from tests.whole.invariants import check_invariants  # which needs this module itself

    yield deployment
    check_invariants(deployment)
