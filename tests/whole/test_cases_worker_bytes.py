"""Cases of workers that answer with bytes no client may see, or end where no answer ends."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from loadtest.fleet import until
from tests.whole.rig import CHAT, Json, Rig, building, chat_body, group

OK = b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}'
SETTINGS = {
    "ROUTER_TIMEOUTS__FIRST_BYTE": "3",
    "ROUTER_TIMEOUTS__STREAM_IDLE": "0.7",
    "ROUTER_TIMEOUTS__CONNECT": "1",
    # Every row of the table fails on the same workers; none is to be spared for what the row before did.
    "ROUTER_HEALTH__EJECT_AFTER": "1000",
    "ROUTER_RETRY__BUDGET_SHARE": "1",
}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with building(tmp_path_factory.mktemp("bytes")) as build:
        rig = build(group("sole"), group("twins", 2), settings=SETTINGS)
        yield rig


def raw(data: bytes, then: str = "close") -> Json:
    """The fault that sends these bytes and no others."""
    return {"kind": "raw", "base64": base64.b64encode(data).decode(), "then": then}


def head(*lines: str, status: str = "200 OK") -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status}", *lines, "", "")).encode("latin-1")


def error_of(answer: Any) -> Json:
    """The error of a refusal, which has all that a client of the API expects of one."""
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    error: Json = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


JUNK = {
    "w18-another-protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
    "w19-length-and-chunks": head("Content-Length: 4", "Transfer-Encoding: chunked") + b"4\r\nabcd\r\n0\r\n\r\n",
    "w19-two-lengths": head("Content-Length: 4", "Content-Length: 5") + b"abcde",
    "w19-folded-line": head("X-Note: one", " two", f"Content-Length: {len(OK)}") + OK,
    "w19-nul-in-a-header": head("X-Note: a\0b", f"Content-Length: {len(OK)}") + OK,
    "w25-another-protocol-is-switched-to": head("Connection: upgrade", "Upgrade: h2c", status="101 Switching"),
    "w25-interim-answers-without-end": head(status="100 Continue") * 2_000 + head("Content-Length: 2") + b"{}",
}


@pytest.mark.parametrize("case", JUNK)
def test_w18_w19_w25_bytes_that_are_no_answer_are_a_bad_gateway(rig: Rig, case: str) -> None:
    rig.groups["sole"][0].add_faults({"action": raw(JUNK[case])})
    answer = rig.chat("junk", model="sole")
    assert answer.status_code == 502
    assert error_of(answer)["type"] == "upstream_error"
    # The connection that spoke them is not used again.
    assert rig.chat("after junk", model="sole").status_code == 200


def test_w25_a_few_interim_answers_are_dropped(rig: Rig) -> None:
    data = head(status="100 Continue") * 3 + head(f"Content-Length: {len(OK)}", "Content-Type: application/json") + OK
    answer = rig.chat("interim", model="sole", fault=raw(data))
    assert (answer.status_code, answer.content) == (200, OK)


def test_w22_a_compressed_answer_passes_as_it_is(rig: Rig) -> None:
    bomb = gzip.compress(b"0" * 50_000_000)
    fields = ("Content-Encoding: gzip", "Content-Type: application/json", f"Content-Length: {len(bomb)}")
    rig.sent += 1
    rig.groups["sole"][0].add_faults({"action": raw(head(*fields) + bomb)})
    headers = {"content-type": "application/json"}
    body = json.dumps(chat_body("bomb", model="sole")).encode()
    before = resident(rig)
    with rig.http.stream("POST", rig.front + CHAT, content=body, headers=headers) as answer:
        assert answer.headers["content-encoding"] == "gzip"
        assert b"".join(answer.iter_raw()) == bomb
    assert resident(rig) - before < 20_000_000


def resident(rig: Rig) -> int:
    """Bytes of memory of the first replica."""
    with open(f"/proc/{rig.routers[0].pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096


@pytest.mark.parametrize("place", ["http://169.254.169.254/latest/meta-data", "/elsewhere"])
def test_w23_a_redirect_leads_nowhere(rig: Rig, place: str) -> None:
    answer = rig.chat("moved", model="sole", fault={"kind": "status", "status": 302, "headers": {"location": place}})
    assert answer.status_code == 502
    assert "location" not in answer.headers
    assert "169.254" not in answer.text
    assert error_of(answer)["type"] == "upstream_error"


def test_w3_a_reset_without_a_byte_is_asked_once_elsewhere(rig: Rig) -> None:
    before = rig.arrived("twins")
    answer = rig.chat("reset everywhere", model="twins", fault={"kind": "reset"})
    assert answer.status_code == 502
    assert error_of(answer)["code"] == "upstream_reset"
    # Each of the two once, and once more where the first time may have been the age of the connection.
    assert before + 2 <= rig.arrived("twins") <= before + 4


def test_w3_a_worker_that_resets_loses_the_request_to_another(rig: Rig) -> None:
    answer = rig.chat("who has this", model="twins")
    owner = rig.worker(answer.headers["x-router-worker"])
    # The first time it may have been the age of the connection: that is tried again on a new one.
    owner.add_faults({"action": {"kind": "reset"}, "times": 2})
    again = rig.chat("who has this", model="twins")
    assert again.status_code == 200
    assert rig.worker(again.headers["x-router-worker"]) is not owner


def test_w6_a_death_between_head_and_body_is_not_seen_by_the_client(rig: Rig) -> None:
    answer = rig.chat("head alone", model="twins", stream=True)
    owner = rig.worker(answer.headers["x-router-worker"])
    start = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
    owner.add_faults({"action": raw(start, "reset"), "times": 1})
    again = rig.chat("head alone", model="twins", stream=True)
    assert again.status_code == 200
    assert again.text.endswith("data: [DONE]\n\n")


def stream(rig: Rig, fault: Json) -> bytes:
    """All bytes of a stream's answer until its connection ends, head and framing included."""
    with rig.open(chat_body("a stream", model="sole", stream=True, max_tokens=20), fault=fault) as call:
        return call.rest()


def test_w7_a_death_between_events_is_an_error_event_and_a_broken_end(rig: Rig) -> None:
    before = rig.metric("router_outcomes_total", outcome="midstream_abort")
    seen = stream(rig, {"kind": "reset", "after": 5, "unit": "event"})
    events = [line for line in seen.split(b"\n") if line.startswith(b"data: ")]
    assert "error" in json.loads(events[-1].removeprefix(b"data: "))
    assert b"[DONE]" not in seen
    assert not seen.endswith(b"0\r\n\r\n")
    assert rig.metric("router_outcomes_total", outcome="midstream_abort") == before + 1


def test_w8_a_death_inside_an_event_adds_nothing_and_breaks(rig: Rig) -> None:
    seen = stream(rig, {"kind": "reset", "after": 5, "unit": "event", "extra": 20})
    assert b'"error"' not in seen
    assert not seen.endswith(b"0\r\n\r\n")


def test_w10_silence_between_tokens_ends_with_an_error_event(rig: Rig) -> None:
    began = time.monotonic()
    seen = stream(rig, {"kind": "stall", "after": 5, "unit": "event"})
    assert b'"upstream_timeout"' in seen
    assert not seen.endswith(b"0\r\n\r\n")
    assert time.monotonic() - began < 10
    for _ in until(5, "the worker to be left"):
        state = rig.groups["sole"][0].state()
        if state["running"] == state["waiting"] == 0:
            break


def test_w11_a_refusal_for_want_of_room_is_asked_elsewhere_and_then_passed_on(rig: Rig) -> None:
    busy = {"kind": "status", "status": 503, "headers": {"retry-after": "7"}}
    before = rig.arrived("twins")
    answer = rig.chat("all are busy", model="twins", fault=busy)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
    assert rig.arrived("twins") == before + 2
    warm = rig.chat("one is busy", model="twins")
    owner = rig.worker(warm.headers["x-router-worker"])
    owner.add_faults({"action": busy, "times": 1})
    assert rig.chat("one is busy", model="twins").status_code == 200


def test_h11_a_client_of_http_1_0_learns_of_a_death_too(rig: Rig) -> None:
    """Without chunks nothing but the event tells a broken stream from a whole one."""
    body = json.dumps(chat_body("old client", model="sole", stream=True, max_tokens=20)).encode()
    fault = json.dumps({"kind": "reset", "after": 5, "unit": "event"})
    with rig.open(chat_body("warm", model="sole")) as call:
        call.rest()
    rig.sent += 1
    with socket.create_connection(("127.0.0.1", rig.routers[0].port), timeout=20) as sock:
        lines = [f"POST {CHAT} HTTP/1.0", f"content-length: {len(body)}", "content-type: application/json"]
        sock.sendall("\r\n".join([*lines, f"x-sim-fault: {fault}", "", ""]).encode() + body)
        seen = b""
        while piece := sock.recv(65536):
            seen += piece
    assert b"transfer-encoding" not in seen.lower()
    assert b'"error"' in seen
    assert b"[DONE]" not in seen
