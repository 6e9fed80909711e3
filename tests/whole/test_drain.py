"""The end of a replica: not ready first, then no new connections, then what runs, then an error event, or at once."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from loadtest.fleet import until
from tests.invariants.replicas import REPLICAS
from tests.whole.rig import Rig, building, chat_body, group

STALL = {"kind": "stall", "unit": "event", "after": 2, "seconds": 60}


@pytest.fixture
def rig(tmp_path: Path, grace: int) -> Iterator[Rig]:
    settings = {"ROUTER_TIMEOUTS__DRAIN": str(grace), "ROUTER_TIMEOUTS__DRAIN_DELAY": "1"}
    with building(tmp_path) as build:
        rig = build(group("slow", decode_seconds_per_token=0.02), settings=settings)
        yield rig
        REPLICAS.check(rig.routers, rig.addresses)


def ready(rig: Rig) -> tuple[int, str]:
    answer = httpx.get(f"{rig.front}/ready", trust_env=False)
    return answer.status_code, answer.json().get("error", {}).get("code", "")


@pytest.mark.parametrize("grace", [2])
def test_readiness_goes_first_running_answers_finish_and_those_that_do_not_are_told(rig: Rig) -> None:
    router = rig.routers[0]
    with (
        rig.open(chat_body("long", model="slow", stream=True, max_tokens=50)) as finishing,
        rig.open(chat_body("stuck", model="slow", stream=True, max_tokens=50), fault=STALL) as stuck,
    ):
        finishing.first()
        begun = stuck.first()
        router.signal(signal.SIGTERM)
        for _ in until(5, "readiness to end"):
            if ready(rig) == (503, "draining"):
                break
        assert rig.chat("new, while balancers look", model="slow").status_code == 200
        assert finishing.rest().endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        end = begun + stuck.rest()
    assert b'"code": "draining"' in end
    assert b"[DONE]" not in end
    assert not end.endswith(b"0\r\n\r\n")
    assert router.wait(30) == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", router.port)) != 0
    assert router.log.read_text().endswith("INFO router: ended after 3 requests: ok 2, midstream_abort 1\n")


@pytest.mark.parametrize("grace", [100])
def test_a_second_signal_ends_it_at_once_and_nothing_looks_complete(rig: Rig) -> None:
    router = rig.routers[0]
    with rig.open(chat_body("stuck", model="slow", stream=True, max_tokens=50), fault=STALL) as stuck:
        begun = stuck.first()
        router.signal(signal.SIGTERM)
        for _ in until(5, "the drain to begin"):
            if "draining: not ready any more" in router.log.read_text():
                break
        router.signal(signal.SIGTERM)
        assert router.wait(30) == 0
        try:
            end = begun + stuck.rest()
        except ConnectionResetError:
            end = begun
    assert b"[DONE]" not in end
    assert not end.endswith(b"0\r\n\r\n")
