"""Cases of workers that fail, fall silent, are slow or come back: requests survive, and every wait has its bound."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from loadtest.fleet import until
from loadtest.simworker import SimProcess
from router.workers.registry import worker_id
from tests.whole.rig import CHAT, Rig, building, chat_body, group, text_of, together

FIRST_BYTE = 3.5
IDLE = 1.2
SETTINGS = {
    "ROUTER_TIMEOUTS__FIRST_BYTE": str(FIRST_BYTE),
    "ROUTER_TIMEOUTS__STREAM_IDLE": str(IDLE),
    "ROUTER_TIMEOUTS__HEADER": "1",
    "ROUTER_TIMEOUTS__BODY": "1",
    "ROUTER_TIMEOUTS__QUEUE": "1",
    "ROUTER_TIMEOUTS__CONNECT": "1",
    "ROUTER_TIMEOUTS__UPSTREAM_KEEP_ALIVE": "10",
    # Workers fall often here; each time their return would be put off for longer.
    "ROUTER_HEALTH__EJECT_SECONDS": "0.1",
    # One case after the other needs a retry, and they are quick.
    "ROUTER_RETRY__BUDGET_MIN": "100",
}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with building(tmp_path_factory.mktemp("failing")) as build:
        rig = build(
            group("doomed"),
            group("twins", 2, apart=True),
            group("sole", decode_seconds_per_token=0.05),
            group("brief", keep_alive_seconds=0.25),
            settings=SETTINGS,
        )
        yield rig


def wait_for(rig: Rig, model: str, state: str = "ready") -> None:
    for _ in until(15, f"{model} {state}"):
        if all(row["state"] == state for row in rig.rows(model)):
            return


def owner_of(rig: Rig, text: str) -> tuple[SimProcess, SimProcess]:
    """Warm a prompt; the twin that has it now, and the other."""
    answer = rig.chat(text, model="twins")
    assert answer.status_code == 200
    warm = rig.worker(answer.headers["x-router-worker"])
    return warm, next(worker for worker in rig.groups["twins"] if worker is not warm)


def test_p43_connections_that_the_worker_closes_when_idle_fail_nobody(rig: Rig) -> None:
    worker = rig.groups["brief"][0]
    before = worker.state()["connections_total"]

    def lane(number: int) -> list[int]:
        statuses = []
        for turn in range(8):
            statuses.append(rig.chat(f"{number} {turn}", model="brief").status_code)
            time.sleep(0.25 + (number - 8) * 0.003)
        return statuses

    statuses = [status for lane_statuses in together(16, lane) for status in lane_statuses]
    assert statuses == [200] * 128
    # Both happened: connections were closed under the router's hands, and others were used again.
    assert 16 < worker.state()["connections_total"] - before < 128 + 20


def test_p54_a_dead_owner_is_not_chosen_again_by_the_retry(rig: Rig) -> None:
    text = text_of("warm on the one that dies", 4_000)
    warm, other = owner_of(rig, text)
    warm.kill()
    answer = rig.chat(text, model="twins")
    assert answer.status_code == 200
    assert answer.headers["x-router-worker"] == worker_id(other.url)
    assert rig.decision(answer)["attempt"] == 2
    assert rig.metric("router_retries_total") >= 1
    warm.start()
    wait_for(rig, "twins")


def test_p56_a_request_on_a_worker_that_stops_is_given_to_another(rig: Rig) -> None:
    text = text_of("warm on the one that stops", 4_000)
    warm, other = owner_of(rig, text)
    time.sleep(0.7)  # a worker that has just answered is given more patience
    warm.pause()
    try:
        began = time.monotonic()
        answer = rig.chat(text, model="twins")
        assert answer.status_code == 200
        assert answer.headers["x-router-worker"] == worker_id(other.url)
        assert time.monotonic() - began < FIRST_BYTE
    finally:
        warm.resume()
    wait_for(rig, "twins")


def test_p30_bad_gateways_eject_a_worker_though_nobody_else_can_be_asked(rig: Rig) -> None:
    worker = rig.groups["sole"][0]
    worker.add_faults({"action": {"kind": "status", "status": 502}, "times": 6})
    answers = [rig.chat("through a broken gateway", model="sole") for _ in range(6)]
    assert {answer.status_code for answer in answers} == {502}
    assert rig.metric("router_ejections_total", worker=worker_id(worker.url), cause="gateway") >= 1
    # There is nobody else, so it is asked all the same, and the first answer brings it back.
    for _ in until(5, "its return"):
        assert rig.chat("and now", model="sole").status_code == 200
        if rig.rows("sole")[0]["state"] == "ready":
            break


def test_p56_without_another_worker_the_wait_is_bounded(rig: Rig) -> None:
    began = time.monotonic()
    answer = rig.chat("never answered", model="sole", fault={"kind": "stall", "seconds": 30})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_timeout")
    assert FIRST_BYTE - 0.5 < time.monotonic() - began < FIRST_BYTE + 1.5


def test_p57_long_prefills_and_long_streams_outlive_every_other_limit(rig: Rig) -> None:
    def request(number: int) -> bytes:
        if number:  # silent for longer than any limit but the one on first bytes
            slow = {"kind": "stall", "seconds": 2.5}
            return rig.open(chat_body("long prefill", model="sole", stream=True), fault=slow).rest()
        # longer than the limit on first bytes, never silent for long
        return rig.open(chat_body("long stream", model="sole", stream=True, max_tokens=90)).rest()

    began = time.monotonic()
    stream, prefill = together(2, request)
    assert time.monotonic() - began > FIRST_BYTE
    for answer in (stream, prefill):
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"data: [DONE]" in answer
        assert answer.endswith(b"0\r\n\r\n")
    assert stream.count(b"data: ") == 92


def test_p57_a_stream_that_falls_silent_ends_with_an_error(rig: Rig) -> None:
    silent = {"kind": "stall", "unit": "event", "after": 3, "seconds": 30}
    began = time.monotonic()
    answer = rig.open(chat_body("falls silent", model="sole", stream=True, max_tokens=50), fault=silent).rest()
    assert IDLE - 0.5 < time.monotonic() - began < IDLE + 2
    assert b'"code": "upstream_timeout"' in answer
    assert b"[DONE]" not in answer
    assert not answer.endswith(b"0\r\n\r\n")
    [record] = [each for each in rig.records(rig.groups["sole"][0], bodies=True) if b"falls silent" in each.body]
    assert record.outcome == "aborted"


@pytest.mark.parametrize("coding", ["", "content-encoding: gzip\r\n"])
def test_a_stream_that_declared_its_length_is_not_made_up_to_it(rig: Rig, coding: str) -> None:
    event = 'data: {"choices": []}\n\n'
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{coding}"
    answer = f"{head}content-length: {len(event) + 20}\r\n\r\n{event}"
    if coding:
        answer = f"{head}transfer-encoding: chunked\r\n\r\n{len(event):x}\r\n{event}\r\n"
    fault = {"kind": "raw", "text": answer, "then": "close"}
    with rig.open(chat_body("short", model="sole", stream=True), fault=fault) as call:
        seen = call.rest()
    assert seen.count(b"data: ") == 1
    assert not seen.endswith(b"0\r\n\r\n")


def test_nobody_is_sent_elsewhere_for_a_stored_response(rig: Rig) -> None:
    text = "HTTP/1.1 302 Found\r\nlocation: http://elsewhere.invalid/\r\ncontent-length: 0\r\n\r\n"
    headers = {"x-sim-fault": json.dumps({"kind": "raw", "text": text})}
    rig.sent += 1
    answer = rig.http.get(f"{rig.front}/v1/responses/resp_1", headers=headers, follow_redirects=False)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_protocol_error")
    assert "location" not in answer.headers


@pytest.mark.parametrize(
    ("codings", "status"), [(("identity", "gzip"), 415), (("GZIP",), 415), (("identity",), 200), (("Identity",), 200)]
)
def test_a_compressed_body_is_refused_however_it_says_so(rig: Rig, codings: tuple[str, ...], status: int) -> None:
    rig.sent += 1
    headers = [("content-type", "application/json"), *(("content-encoding", coding) for coding in codings)]
    body = json.dumps(chat_body("plain", model="sole"))
    assert rig.http.post(rig.front + CHAT, content=body, headers=headers).status_code == status


def test_p72_the_model_list_survives_the_worker_that_is_named_first(rig: Rig) -> None:
    url = f"{rig.front}/v1/models"
    assert rig.http.get(url).json()["data"][0]["id"] == "doomed"
    rig.groups["doomed"][0].kill()
    for _ in until(5, "the list without it"):
        answer = rig.http.get(url)
        assert answer.status_code == 200
        names = {card["id"] for card in answer.json()["data"]}
        assert {"twins", "sole", "brief"} <= names
        if "doomed" not in names:
            break
    assert rig.chat("nobody has it", model="doomed").status_code in {502, 503}
    rig.groups["doomed"][0].start()
    wait_for(rig, "doomed")


def test_p74_a_worker_too_busy_for_its_probes_is_still_used(rig: Rig) -> None:
    worker = rig.groups["sole"][0]
    worker.add_faults({"path": "/health", "times": None, "action": {"kind": "status", "status": 200, "delay": 1.5}})
    try:
        deadline = time.monotonic() + 2.5
        while time.monotonic() < deadline:
            assert rig.chat("still there", model="sole").status_code == 200
        assert len(worker.requests(path="/health")) > 3
    finally:
        worker.clear_faults()
    wait_for(rig, "sole")


def test_p81_a_worker_restarted_in_place_has_forgotten_everything(rig: Rig) -> None:
    text = text_of("held before the restart", 4_000)
    body = chat_body(text, model="twins")
    warm, _ = owner_of(rig, text)
    short_id = worker_id(warm.url)
    assert rig.explain(body)["matched_blocks"] > 0
    warm.restart()
    for _ in until(10, "the new life to be noticed"):
        terms = {row["worker"]: row for row in rig.explain(body)["workers"]}
        if terms[short_id]["matched_blocks"] == 0 and terms[short_id]["state"] == "ready":
            break
    assert rig.metric("router_index_blocks", worker=short_id) == 0
    answer = rig.post(CHAT, body)
    assert answer.headers["x-router-decision"].startswith("miss; match=0/")
