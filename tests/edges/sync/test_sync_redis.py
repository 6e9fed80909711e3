"""Replicas get over everything that can happen to their Redis."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from router import sync_redis
from router.sync_places import Places
from tests.edges.sync.rig import HASHES, Replica, Stopwatch, make, pair, settings_for, sync_tasks, wait, wait_for_match
from tests.redis_server import RedisServer


async def use(replica: Replica, seconds: float) -> None:
    """Traffic: requests begin, are remembered, and end."""
    end = time.monotonic() + seconds
    for number in itertools.count(10_000):
        if time.monotonic() > end:
            return
        lease = replica.lease()
        replica.serve([number])
        await asyncio.sleep(0.001)
        lease.end()


Fault = Callable[[RedisServer], Coroutine[Any, Any, None]]


async def crash(server: RedisServer) -> None:
    server.kill()
    await asyncio.sleep(0.6)
    await asyncio.to_thread(server.start)


async def freeze(server: RedisServer) -> None:
    server.pause()
    await asyncio.sleep(1.0)
    server.resume()


@pytest.mark.redis
@pytest.mark.parametrize("fault", [crash, freeze])
async def test_an_outage_touches_no_request_and_passes(own_redis: RedisServer, fault: Fault) -> None:
    async with pair(own_redis.url) as (one, two):
        watch = Stopwatch()
        watching = asyncio.create_task(watch.run())
        traffic = asyncio.create_task(use(one, 0.6))
        outage: asyncio.Task[None] = asyncio.create_task(fault(own_redis))
        await wait(lambda: not one.sync.up and not two.sync.up)
        await traffic
        await outage
        healed = time.monotonic()
        await wait(lambda: one.sync.up and two.sync.up)
        assert time.monotonic() - healed < 5.0
        one.serve(HASHES)
        await wait_for_match(two)
        assert watch.longest < 0.5
        lease = two.lease()
        await wait(lambda: one.load() == 1)
        lease.end()
        await wait(lambda: one.load() == 0)
        watching.cancel()


@pytest.mark.redis
@pytest.mark.parametrize("kind", ["pubsub", "normal"])
async def test_killed_connections_are_noticed_and_replaced(own_redis: RedisServer, kind: str) -> None:
    async with pair(own_redis.url) as (one, two):
        await asyncio.to_thread(own_redis.call, "CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        if kind == "pubsub":
            await wait(lambda: one.sync.resubscribed == two.sync.resubscribed == 1)
        one.serve(HASHES)
        lease = two.lease()
        await wait(lambda: two.depth(HASHES) == 20 and one.load() == 1)
        await wait(lambda: one.sync.up and two.sync.up)
        lease.end()
        if kind == "normal":
            # What only speaks is replaced without missing a word of the others.
            assert one.sync.resubscribed == two.sync.resubscribed == 0
            assert one.sync.gaps == two.sync.gaps == 0


@pytest.mark.redis
async def test_one_that_may_listen_and_not_speak_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    user = ("--user", "router", "on", ">pa55", "resetchannels", "&*", "-@all", "+hello", "+subscribe")
    with RedisServer(user) as server:
        replica = make(settings_for(f"redis://router:pa55@127.0.0.1:{server.port}/0"))
        replica.sync.start()
        replica.serve(HASHES)
        link = replica.sync._link
        assert isinstance(link, sync_redis.RedisLink)
        # It goes on trying.
        await wait(lambda: link._publisher is not None)
        first = link._publisher
        await wait(lambda: link._publisher not in (None, first))
        assert replica.sync.up is False
        await replica.sync.aclose()
    said = [record.getMessage() for record in caplog.records if "cannot be sent" in record.getMessage()]
    assert said == ["replica news: cannot be sent (its user may not use the channel), trying again"]


def link_to(url: str, channel: str, silence_seconds: float) -> sync_redis.RedisLink:
    return sync_redis.RedisLink(Places(settings_for(url)), channel, silence_seconds)


class Witness:
    """Counts what a link reports."""

    def __init__(self) -> None:
        self.links = self.losses = self.messages = 0

    def linked(self) -> None:
        self.links += 1

    def lost(self) -> None:
        self.losses += 1

    def receive(self, data: object) -> None:
        self.messages += 1
        raise RuntimeError("a listener that is broken")


@pytest.mark.redis
async def test_a_subscription_that_has_fallen_silent_is_renewed(own_redis: RedisServer) -> None:
    link = link_to(own_redis.url, "quiet", 0.1)
    witness = Witness()
    link.start(witness)
    await wait(lambda: witness.links >= 2)
    assert witness.losses == witness.links - 1
    await link.aclose()


@pytest.mark.redis
async def test_a_broken_listener_does_not_end_the_link(own_redis: RedisServer) -> None:
    link = link_to(own_redis.url, "broken", 60.0)
    witness = Witness()
    link.start(witness)
    await wait(lambda: witness.links == 1)
    link.publish(b"anything")
    await wait(lambda: witness.links == 2)
    link.publish(b"anything")
    await wait(lambda: witness.messages == 2)
    await link.aclose()


@pytest.mark.redis
async def test_a_subscriber_that_was_too_slow_is_cut_off_and_comes_back() -> None:
    with RedisServer(("--client-output-buffer-limit", "pubsub", "1mb", "1mb", "1")) as server:
        async with pair(server.url, channel="busy") as (one, two):
            for _ in range(400):  # blocks the event loop, so that nobody reads
                server.call("PUBLISH", "busy", b"x" * 60_000)
            await wait(lambda: one.sync.resubscribed == two.sync.resubscribed == 1)
            one.serve(HASHES)
            await wait(lambda: two.depth(HASHES) == 20 and one.sync.up and two.sync.up)


@pytest.mark.redis
async def test_a_start_without_redis_is_degraded_and_gets_well(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "router.sync")
    own_redis.kill()
    url = own_redis.url.replace("redis://", "redis://user:hunter2@")
    replica = make(settings_for(url))
    began = time.monotonic()
    replica.sync.start()
    assert time.monotonic() - began < 0.5
    await wait(lambda: caplog.records)
    replica.serve(HASHES)
    assert replica.sync.up is False
    # A busy machine may let the attempt's time run out before the refusal is seen.
    said = re.search(rf"127\.0\.0\.1:{own_redis.port}: (.*); serving without it", caplog.text)
    assert said is not None
    assert said[1] in {"connection refused", "timed out"}
    assert "hunter2" not in caplog.text
    await replica.sync.aclose()


@pytest.mark.redis
async def test_an_unreachable_server_is_not_hammered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_redis, "BACKOFF_LAST", 0.001)
    attempts: list[float] = []

    async def slam(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attempts.append(time.monotonic())
        writer.close()

    server = await asyncio.start_server(slam, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    replica = make(settings_for(f"redis://127.0.0.1:{port}"))
    replica.sync.start()
    await wait(lambda: len(attempts) >= 4)
    await replica.sync.aclose()
    server.close()
    await server.wait_closed()
    assert attempts[3] - attempts[0] > 2 * sync_redis.ATTEMPT_SECONDS


@pytest.mark.redis
@pytest.mark.parametrize("state", ["running", "frozen", "dead"])
async def test_nothing_is_left_after_closing_whatever_redis_does(own_redis: RedisServer, state: str) -> None:
    replica = make(settings_for(own_redis.url))
    replica.sync.start()
    await wait(lambda: replica.sync.up)
    replica.serve(HASHES)
    if state == "frozen":
        own_redis.pause()
    elif state == "dead":
        own_redis.kill()
    began = time.monotonic()
    await replica.sync.aclose()
    assert time.monotonic() - began < 2.0
    assert not sync_tasks()


@pytest.mark.redis
async def test_closing_before_the_first_connection_leaves_nothing(own_redis: RedisServer) -> None:
    own_redis.pause()
    replica = make(settings_for(own_redis.url))
    replica.sync.start()
    await asyncio.sleep(0.05)
    await replica.sync.aclose()
    assert not sync_tasks()


@pytest.mark.redis
async def test_no_connection_is_left_on_the_server(own_redis: RedisServer) -> None:
    def connections() -> int:
        return int(own_redis.call("INFO", "clients")["connected_clients"]) - 1  # but for this question

    async with pair(own_redis.url):
        assert connections() == 4
    await wait(lambda: connections() == 0)


@pytest.mark.redis
async def test_passwords_acl_users_and_unix_sockets_work() -> None:
    options = ("--requirepass", "s3cret", "--user", "router", "on", ">pa55", "+@all", "&*", "~*")
    with RedisServer(options) as server:
        for url in (
            f"redis://:s3cret@127.0.0.1:{server.port}/0",
            f"redis://router:pa55@127.0.0.1:{server.port}/0",
            f"unix://router:pa55@{server.socket}",
        ):
            async with pair(url) as (one, two):
                one.serve(HASHES)
                await wait_for_match(two)


@pytest.mark.redis
@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
async def test_tls_works_and_is_verified(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ("-subj", "/CN=redis", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", str(key), "-out", str(certificate))
    command = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files)
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=30)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ("--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key))
    with RedisServer((*options, "--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no")):
        async with pair(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}") as (one, two):
            one.serve(HASHES)
            await wait_for_match(two)
        async with pair(f"rediss://127.0.0.1:{port}/0", ca_file=certificate) as (one, two):
            one.serve(HASHES)
            await wait_for_match(two)
        stranger = link_to(f"rediss://127.0.0.1:{port}/0", "tls", 60.0)
        witness = Witness()
        stranger.start(witness)
        await wait(lambda: "its certificate is not trusted; serving without it" in caplog.text)
        assert witness.links == 0
        await stranger.aclose()


@pytest.mark.redis
async def test_a_wrong_password_is_an_outage_and_not_a_crash(caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer(("--requirepass", "s3cret")) as server:
        replica = make(settings_for(f"redis://:wr0ng@127.0.0.1:{server.port}/0"))
        replica.sync.start()
        await wait(lambda: caplog.records)
        assert "it refused the password; serving without it" in caplog.text
        assert "wr0ng" not in caplog.text
        assert not replica.sync.up
        await replica.sync.aclose()


async def _no_redis(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await writer.drain()
    writer.close()


async def _said_of(url: str, caplog: pytest.LogCaptureFixture) -> str:
    replica = make(settings_for(url))
    replica.sync.start()
    await wait(lambda: caplog.records)
    await replica.sync.aclose()
    return caplog.text


async def test_a_server_of_another_kind_is_named_as_such(caplog: pytest.LogCaptureFixture) -> None:
    async with await asyncio.start_server(_no_redis, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert "it does not speak Redis; serving without it" in await _said_of(f"redis://127.0.0.1:{port}/0", caplog)


@pytest.mark.redis
async def test_a_database_that_is_not_there_is_named_as_such(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert "no such database; serving without it" in await _said_of(f"{own_redis.url.removesuffix('/0')}/99", caplog)
