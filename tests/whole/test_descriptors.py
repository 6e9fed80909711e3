"""A replica with few file descriptors: whoever finds no room is told so, and room comes back."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.fleet import ROOT, until
from router.descriptors import connections_for
from tests.whole.invariants import check_invariants
from tests.whole.rig import CHAT, Rig, building, chat_body, group

DESCRIPTORS = 64
ROOM = connections_for(DESCRIPTORS)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with building(tmp_path) as build:
        settings = {"ROUTER_LIMITS__CLIENT_CONNECTIONS": str(ROOM)}
        yield build(group("slow", decode_seconds_per_token=0.01), settings=settings)


def ask(rig: Rig, count: int) -> Counter[int]:
    """So many connections at once, each with one request; the statuses of the answers."""
    body = json.dumps(chat_body("hello", model="slow", max_tokens=60)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    connections = []
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", rig.routers[0].port), timeout=20)
        connection.sendall(head.encode() + body)
        connections.append(connection)
    rig.sent += count
    statuses: Counter[int] = Counter()
    for connection in connections:
        with connection:
            statuses[int(connection.recv(65536).split(b" ")[1])] += 1
    return statuses


def test_a_hundred_connections_at_64_descriptors_are_served_or_refused_in_words(rig: Rig) -> None:
    resource.prlimit(rig.routers[0].pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    for _ in range(2):
        answers = ask(rig, 100)
        assert set(answers) == {200, 503}
        assert answers[200] <= ROOM
        for _ in until(5, "room for the next"):
            if rig.metric("router_client_connections") <= 2:
                break
    assert ask(rig, 5) == {200: 5}
    shed = rig.metric("router_shed_total", cause="too_many_connections")
    assert shed == rig.sent - rig.metric("router_outcomes_total", outcome="ok")
    check_invariants(rig)


def test_k8_a_strict_replica_ends_at_once_where_descriptors_are_few() -> None:
    command = f"ulimit -n 256 && ROUTER_LIMITS__STRICT_DESCRIPTORS=true exec {sys.executable} -m router serve"
    done = subprocess.run(
        ["bash", "-c", f"{command} --port 0 --worker http://127.0.0.1:9"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "prefix-router: 256 file descriptors (ulimit -n), and limits.strict_descriptors wants 8192"
    ]
