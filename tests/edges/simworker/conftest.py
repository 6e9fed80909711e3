"""Simulated workers for tests of them, in this process or another, and clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from loadtest.simworker import SimProcess, SimWorker
from tests.edges.simworker import faults_rig, routes_rig
from tests.edges.simworker.faults_rig import Served


@pytest.fixture
async def worker() -> AsyncIterator[SimWorker]:
    async with SimWorker(routes_rig.CONFIG) as made:
        yield made


@pytest.fixture
async def client(worker: SimWorker) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=worker.url) as made:
        yield made


@pytest.fixture(scope="module")
def process() -> Iterator[SimProcess]:
    with SimProcess(faults_rig.CONFIG) as made:
        yield made


@pytest.fixture(params=["asyncio", "uvloop"])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    if request.param == "asyncio":
        async with SimWorker(faults_rig.CONFIG) as worker:
            yield Served(worker)
    else:
        running: SimProcess = request.getfixturevalue("process")
        await asyncio.to_thread(running.reset)
        yield Served(running)
