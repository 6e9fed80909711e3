"""Redis as people run it: Sentinels, clusters, copies, changed passwords; with real servers on loopback."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.edges.sync.rig import HASHES, Replica, make, pair, settings_for, wait
from tests.redis_server import RedisServer

pytestmark = pytest.mark.redis
# Sentinels and nodes take their own time to notice that one of them has died.
DEATH_MS = 500


async def exchange(one: Replica, two: Replica) -> None:
    """News passes both ways."""
    one.serve(HASHES)
    lease = two.lease()
    await wait(lambda: two.depth(HASHES) == len(HASHES) and one.load() == 1, seconds=20.0)
    lease.end()
    await wait(lambda: one.load() == 0)


def again(one: Replica, two: Replica) -> Callable[[], object]:
    """Whether both hear themselves and each other."""
    return lambda: one.sync.up and two.sync.up and one.sync.peers == two.sync.peers == 1


# -- Sentinels -----------------------------------------------------------------------------------------------


class Watched:
    """A master, a copy of it and a Sentinel."""

    def __init__(self, stack: ExitStack, home: Path, *, auth: bool = False) -> None:
        options = (
            "--repl-diskless-sync-delay",
            "0",
            *(("--requirepass", "pa55", "--masterauth", "pa55") if auth else ()),
        )
        self.master = stack.enter_context(RedisServer(options))
        self.copy = stack.enter_context(RedisServer((*options, "--replicaof", f"127.0.0.1 {self.master.port}")))
        config = home / "sentinel.conf"
        config.write_text(
            f"sentinel monitor main 127.0.0.1 {self.master.port} 1\n"
            f"sentinel down-after-milliseconds main {DEATH_MS}\n"
            "sentinel failover-timeout main 2000\n"
            + ("sentinel auth-pass main pa55\nrequirepass sent1nel\n" if auth else "")
        )
        self.sentinel = stack.enter_context(RedisServer(("--sentinel",), config=config))

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:1,127.0.0.1:{self.sentinel.port}/main"

    async def copied(self) -> None:
        """The copy follows the master, and the Sentinel knows it."""

        def linked() -> bool:
            with redis.Redis(port=self.sentinel.port) as client:
                (state,) = client.execute_command("SENTINEL", "REPLICAS", "main") or ({},)
            flags = dict(zip(state[::2], state[1::2], strict=True)) if isinstance(state, list) else state
            return flags.get(b"master-link-status") == b"ok" or flags.get("master-link-status") == "ok"

        deadline = time.monotonic() + 20
        while not await asyncio.to_thread(_quiet, linked):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)


def _quiet(question: Callable[[], bool]) -> bool:
    try:
        return question()
    except (redis.RedisError, ValueError):
        return False


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with ExitStack() as stack:
        yield Watched(stack, tmp_path)


async def test_sentinels_name_the_master_and_the_next_one(watched: Watched) -> None:
    async with pair(watched.url) as (one, two):
        await exchange(one, two)
        await watched.copied()
        watched.master.kill()
        died = time.monotonic()
        await wait(lambda: not one.sync.up and not two.sync.up)
        await wait(again(one, two), seconds=20.0)
        # Measured: 1.6 s, of which the Sentinel takes most.
        assert time.monotonic() - died < 15.0
        one.serve([7, 8, 9])
        await wait(lambda: two.depth([7, 8, 9]) == 3)


async def test_a_failover_that_leaves_the_old_master_running_is_followed(watched: Watched) -> None:
    async with pair(watched.url) as (one, two):
        await exchange(one, two)
        await watched.copied()
        await asyncio.to_thread(sentinel_failover, watched)
        await wait(lambda: one.sync.resubscribed and two.sync.resubscribed, seconds=20.0)
        await wait(again(one, two), seconds=20.0)
        one.serve([7, 8, 9])
        await wait(lambda: two.depth([7, 8, 9]) == 3)
        subscribers = await asyncio.to_thread(watched.copy.call, "PUBSUB", "NUMSUB", "prefix-router")
        assert subscribers[1] == 2


def sentinel_failover(watched: Watched) -> None:
    with redis.Redis(port=watched.sentinel.port) as client:
        client.execute_command("SENTINEL", "FAILOVER", "main")


async def test_sentinels_have_their_own_password(tmp_path: Path) -> None:
    for name, password in (("data", "pa55"), ("sentinel", "sent1nel")):
        (tmp_path / name).write_text(password + "\n")
    with ExitStack() as stack:
        watched = Watched(stack, tmp_path, auth=True)
        files = {"password_file": tmp_path / "data", "sentinel_password_file": tmp_path / "sentinel"}
        async with pair(watched.url, **files) as (one, two):
            await exchange(one, two)


async def test_a_service_that_nobody_watches_is_an_outage(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    replica = make(settings_for(watched.url.replace("/main", "/other")))
    replica.sync.start()
    await wait(lambda: caplog.records)
    assert not replica.sync.up
    await replica.sync.aclose()


# -- cluster -------------------------------------------------------------------------------------------------


class Cluster:
    """Three masters, and copies of them if asked for."""

    def __init__(self, stack: ExitStack, *, copies: bool = False) -> None:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(DEATH_MS))
        more = ("--repl-diskless-sync-delay", "0", "--cluster-require-full-coverage", "no", "--cluster-port", "0")
        self.nodes = [stack.enter_context(RedisServer((*options, *more))) for _ in range(6 if copies else 3)]
        first, *others = self.nodes
        for number, (low, high) in enumerate(((0, 5460), (5461, 10922), (10923, 16383))):
            self.nodes[number].call("CLUSTER", "ADDSLOTSRANGE", low, high)
            self.nodes[number].call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in others:
            node.call("CLUSTER", "MEET", "127.0.0.1", first.port)
        self.until(lambda: all(len(self.known(node)) == len(self.nodes) for node in self.nodes))
        self.until(lambda: all(b"cluster_state:ok" in node.call("CLUSTER", "INFO") for node in self.nodes))
        for number, copy in enumerate(self.nodes[3:]):
            copy.call("CLUSTER", "REPLICATE", self.nodes[number].call("CLUSTER", "MYID"))
        self.until(lambda: all(b"master_link_status:up" in raw_info(copy) for copy in self.nodes[3:]))

    @property
    def url(self) -> str:
        """The last master alone; it tells of the others."""
        return f"redis+cluster://127.0.0.1:{self.nodes[2].port}"

    def known(self, node: RedisServer) -> list[bytes]:
        return [line for line in text(node.call("CLUSTER", "NODES")).splitlines() if b"handshake" not in line]

    def owner(self) -> RedisServer:
        """The node that has the channel's slot (3719)."""
        return self.nodes[0]

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, "the cluster does not form"
            time.sleep(0.05)


def text(answer: Any) -> bytes:
    return answer if isinstance(answer, bytes) else str(answer).encode()


def raw_info(node: RedisServer) -> bytes:
    return text(node.call("INFO", "replication")).replace(b"'", b"").replace(b": ", b":")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack)


async def test_a_cluster_carries_news_on_one_shard_alone(cluster: Cluster) -> None:
    async with pair(cluster.url) as (one, two):
        await exchange(one, two)
        subscribers = [node.call("PUBSUB", "SHARDNUMSUB", "prefix-router")[1] for node in cluster.nodes]
        assert subscribers == [2, 0, 0]


async def test_a_slot_that_moves_is_followed(cluster: Cluster) -> None:
    source, target = cluster.nodes[0], cluster.nodes[1]
    async with pair(cluster.url) as (one, two):
        await exchange(one, two)
        name = target.call("CLUSTER", "MYID")
        target.call("CLUSTER", "SETSLOT", 3719, "IMPORTING", source.call("CLUSTER", "MYID"))
        source.call("CLUSTER", "SETSLOT", 3719, "MIGRATING", name)
        for node in (target, source, cluster.nodes[2]):
            node.call("CLUSTER", "SETSLOT", 3719, "NODE", name)
        await wait(lambda: one.sync.resubscribed and two.sync.resubscribed, seconds=20.0)
        await wait(again(one, two), seconds=20.0)
        one.serve([7, 8, 9])
        await wait(lambda: two.depth([7, 8, 9]) == 3)
        assert target.call("PUBSUB", "SHARDNUMSUB", "prefix-router")[1] == 2


async def test_a_node_that_dies_is_replaced_by_its_copy() -> None:
    with ExitStack() as stack:
        cluster = Cluster(stack, copies=True)
        async with pair(cluster.url) as (one, two):
            await exchange(one, two)
            cluster.owner().kill()
            died = time.monotonic()
            await wait(lambda: not one.sync.up and not two.sync.up)
            await wait(again(one, two), seconds=20.0)
            # Measured: 2.5 s, of which the cluster takes most.
            assert time.monotonic() - died < 15.0
            one.serve([7, 8, 9])
            await wait(lambda: two.depth([7, 8, 9]) == 3)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://127.0.0.1:{node}", "it is part of a cluster: use redis+cluster://"),
        ("redis+cluster://127.0.0.1:{alone}", "it is not part of a cluster: use redis://"),
    ],
)
async def test_modes_are_never_mixed(url: str, why: str, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as stack:
        alone = stack.enter_context(RedisServer())
        node = stack.enter_context(RedisServer(("--cluster-enabled", "yes", "--cluster-port", "0")))
        replica = make(settings_for(url.format(node=node.port, alone=alone.port)))
        replica.sync.start()
        await wait(lambda: why in caplog.text)
        assert not replica.sync.up
        await replica.sync.aclose()


async def test_a_cluster_without_the_slot_is_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer(("--cluster-enabled", "yes", "--cluster-port", "0")) as node:
        replica = make(settings_for(f"redis+cluster://127.0.0.1:{node.port}"))
        replica.sync.start()
        await wait(lambda: "no node has the channel's slot" in caplog.text)
        await replica.sync.aclose()


# -- copies and failover without Sentinels -------------------------------------------------------------------


async def test_a_sentinel_is_no_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "sentinel.conf").write_text("")
    with RedisServer(("--sentinel",), config=tmp_path / "sentinel.conf") as sentinel:
        replica = make(settings_for(sentinel.url))
        replica.sync.start()
        await wait(lambda: caplog.records)
        assert "Sentinel" in caplog.text
        await replica.sync.aclose()


async def test_a_server_that_becomes_a_copy_is_left_and_taken_again(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with RedisServer() as other:
        async with pair(own_redis.url) as (one, two):
            await exchange(one, two)
            own_redis.call("REPLICAOF", "127.0.0.1", other.port)
            await wait(lambda: not one.sync.up and not two.sync.up)
            await wait(lambda: "it is a copy" in caplog.text)
            own_redis.call("REPLICAOF", "NO", "ONE")
            await wait(again(one, two))
            one.serve([7, 8, 9])
            await wait(lambda: two.depth([7, 8, 9]) == 3)


# -- passwords -----------------------------------------------------------------------------------------------


async def test_a_changed_password_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    with RedisServer(("--requirepass", "first")) as server:
        async with pair(server.url, password_file=file) as (one, two):
            await exchange(one, two)
            with redis.Redis(port=server.port, password="first") as admin:
                admin.config_set("requirepass", "second")
                file.write_text("second\n")
                for kind in ("pubsub", "normal"):
                    admin.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
            await wait(lambda: one.sync.resubscribed and two.sync.resubscribed)
            await wait(again(one, two))
            one.serve([7, 8, 9])
            await wait(lambda: two.depth([7, 8, 9]) == 3)


RIGHTS = {
    "redis": ("+hello", "+publish", "+subscribe"),
    "redis+cluster": ("+hello", "+client", "+spublish", "+ssubscribe", "+cluster|slots"),
}


@pytest.mark.parametrize("scheme", RIGHTS)
async def test_a_user_needs_no_more_than_the_channel(scheme: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("pa55")
    user = ("--user", "router", "on", ">pa55", "resetchannels", "&prefix-router", "-@all", *RIGHTS[scheme])
    options = ("--cluster-enabled", "yes", "--cluster-port", "0") if "cluster" in scheme else ()
    with RedisServer((*user, *options)) as server:
        if options:
            server.call("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        url = f"{scheme}://127.0.0.1:{server.port}"
        async with pair(url, username="router", password_file=file) as (one, two):
            await exchange(one, two)


async def test_a_password_file_that_is_missing_is_an_outage(
    own_redis: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "router.sync")
    async with AsyncExitStack() as stack:
        file = tmp_path / "password"
        replica = make(settings_for(own_redis.url, password_file=file))
        replica.sync.start()
        stack.push_async_callback(replica.sync.aclose)
        await wait(lambda: "the password file can't be read: no such file or directory" in caplog.text)
        assert not replica.sync.up
