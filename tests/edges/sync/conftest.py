"""Channels and servers for tests of the news between replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack

import pytest
import uvloop

from router import sync_places, sync_redis, sync_repair
from tests.edges.sync.rig import Channel, LocalChannel, RedisChannel, sync_tasks
from tests.redis_server import RedisServer

# Where bytes and connections are handled, which differs between event loops.
UNDER_BOTH_LOOPS = ("test_sync_subscriber.py", "test_sync_redis.py")


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    both: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    if item.path.name in UNDER_BOTH_LOOPS:
        both["asyncio"] = asyncio.new_event_loop
    return both


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits of a real outage, a fifth as long."""
    monkeypatch.setattr(sync_redis, "IO_SECONDS", 0.2)
    monkeypatch.setattr(sync_redis, "CHECK_SECONDS", 0.2)
    monkeypatch.setattr(sync_places, "IO_SECONDS", 0.2)
    monkeypatch.setattr(sync_redis, "ATTEMPT_SECONDS", 0.2)
    monkeypatch.setattr(sync_repair, "FIRST_SECONDS", 0.5)
    monkeypatch.setattr(sync_repair, "SAME_PEER_SECONDS", 0.4)
    monkeypatch.setattr(sync_repair, "ANSWER_SPACING_SECONDS", 0.2)


@pytest.fixture(scope="module")
def shared_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(params=["local", pytest.param("redis", marks=pytest.mark.redis)])
async def channel(request: pytest.FixtureRequest) -> AsyncIterator[Channel]:
    async with AsyncExitStack() as stack:
        if request.param == "local":
            yield LocalChannel(stack)
        else:
            yield RedisChannel(request.getfixturevalue("shared_redis"), stack)
    assert not sync_tasks()
