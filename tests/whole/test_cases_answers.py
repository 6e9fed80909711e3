"""Cases of passing on: what arrives at the worker, what comes back, and what the router says by itself."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator

import pytest

from loadtest.fleet import until
from tests.whole.invariants import check_invariants
from tests.whole.rig import ADMIN_KEY, CANARY, CHAT, Json, Rig, building, chat_body, group, text_of, together

CLIENT_KEY = "canary-of-a-client"
KIB = 1024
# An answer that has nothing to do with the body, however large that is.
SMALL_ANSWER = {"kind": "status", "status": 200, "body": {"ok": True}}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with building(tmp_path_factory.mktemp("answers")) as build:
        rig = build(
            group("pair", 2, models=("pair", "pair-alias"), request_id_headers=True, max_model_len=16_384),
            group("quiet", 1, enable_prompt_tokens_details=False),
            nginx=True,
        )
        yield rig


@pytest.fixture
def rig(deployment: Rig) -> Iterator[Rig]:
    yield deployment
    for worker in deployment.workers:
        worker.clear_faults()
    check_invariants(deployment)


def test_p46_the_worker_sees_its_own_name_as_host(rig: Rig) -> None:
    answer = rig.post(CHAT, chat_body("whose host", model="pair"), headers={"host": "router.example:1234"})
    worker = rig.worker(answer.headers["x-router-worker"])
    assert rig.records(worker)[-1].header("host") == worker.url.removeprefix("http://")


@pytest.mark.parametrize("via_nginx", [False, True], ids=["direct", "nginx"])
@pytest.mark.parametrize(
    "size",
    [6 * KIB + 1, 32 * KIB + 1, 128 * KIB + 1, 10 * KIB * KIB, 60 * KIB * KIB],
    ids=lambda size: f"{size >> 10}k",
)
def test_p47_bodies_of_every_size_arrive_byte_for_byte(rig: Rig, size: int, via_nginx: bool) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * (size // 4)}}
    body = json.dumps(
        chat_body("an image", model="pair") | {"messages": [{"role": "user", "content": [image]}]}
    ).encode()
    via = rig.front if via_nginx else rig.routers[0].url
    answer = rig.post(CHAT, body, via=via, fault=SMALL_ANSWER)
    assert (answer.status_code, answer.json()) == (200, {"ok": True})
    worker = rig.worker(answer.headers["x-router-worker"])
    if size > 32 << 20:  # the worker's records are not for reading that much
        assert rig.records(worker)[-1].body_bytes == len(body)
    else:
        record = rig.records(worker, bodies=True)[-1]
        assert hashlib.sha256(record.body).digest() == hashlib.sha256(body).digest()
    worker.reset()  # nor for carrying it into the next cases


@pytest.mark.parametrize(
    ("path", "mebibytes"), [("/v1/completions", 17), (CHAT, 65)], ids=["text-over-16m", "media-over-64m"]
)
def test_p47_a_body_over_its_limit_gets_413(rig: Rig, path: str, mebibytes: int) -> None:
    body = b'{"model":"pair","prompt":"' + b"x" * (mebibytes << 20) + b'"}'
    answer = rig.post(path, body, via=rig.routers[0].url)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "payload_too_large"
    assert answer.headers["x-request-id"]


def test_p48_unknown_fields_key_order_and_odd_tools_arrive_unchanged(rig: Rig) -> None:
    body = (
        b'{"top_k":7 , "zeta":{"b":1,"a":[1.0,1e2,-0]}, "model":"pair",'
        b'"chat_template_kwargs":{"enable_thinking":false},'
        b' "tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}},'
        b'"vendor":null},{"type":"web_search"}], '
        b'"messages":[{"role":"user","content":"\\u0041\xc3\xa9 \xe2\x80\xa8 canary"}],'
        b'"max_tokens":1}'
    )
    answer = rig.post(CHAT, body)
    assert answer.status_code == 200
    worker = rig.worker(answer.headers["x-router-worker"])
    assert rig.records(worker, bodies=True)[-1].body == body


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("status", "headers"), [(400, {}), (422, {}), (429, {"retry-after": "7"}), (503, {"retry-after": "3"})], ids=str
)
def test_p50_a_refusal_of_the_worker_comes_back_as_it_is(
    rig: Rig, status: int, headers: dict[str, str], stream: bool
) -> None:
    refusal = {"error": {"message": "not so", "type": "X", "param": "p", "code": status, "extra": [1]}}
    fault = {"kind": "status", "status": status, "headers": headers, "body": refusal}
    answer = rig.chat("refused", model="pair", stream=stream, fault=fault)
    assert (answer.status_code, answer.json()) == (status, refusal)
    assert answer.headers.get("retry-after") == headers.get("retry-after")
    assert answer.headers["content-type"].startswith("application/json")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", CHAT, b'{"model":', 400, "bad_request"),
        ("POST", CHAT, b'{"model":7,"messages":[]}', 400, "bad_request"),
        ("POST", "/v1/nothing/here", b"{}", 404, "unknown_route"),
        ("GET", CHAT, b"", 405, "method_not_allowed"),
        ("DELETE", "/v1/completions", b"", 405, "method_not_allowed"),
        ("PUT", "/health", b"", 405, "method_not_allowed"),
        ("POST", CHAT, b'{"model":"nobody","messages":[]}', 404, "model_not_found"),
        ("POST", "/v1/embeddings", b'{"model":"nobody","input":"x"}', 404, "model_not_found"),
    ],
    ids=[
        "bad-json",
        "bad-field",
        "unknown-path",
        "wrong-verb",
        "wrong-verb-2",
        "wrong-verb-control",
        "model",
        "model-2",
    ],
)
def test_p51_client_errors_have_their_own_status(
    rig: Rig, method: str, path: str, body: bytes, status: int, code: str
) -> None:
    rig.sent += path not in ("/v1/nothing/here", "/health")
    before = [len(rig.records(worker)) for worker in rig.workers]
    answer = rig.http.request(method, rig.front + path, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers["x-request-id"]
    assert ("allow" in answer.headers) == (status == 405)
    assert [len(rig.records(worker)) for worker in rig.workers] == before


def test_p52_prompts_that_are_too_long_do_not_trip_the_breaker(rig: Rig) -> None:
    body = {"model": "pair", "prompt": list(range(20_000)), "max_tokens": 5}
    answers = together(5, lambda _: [rig.post("/v1/completions", body) for _ in range(10)])
    assert {answer.status_code for lane in answers for answer in lane} == {400}
    assert {row["state"] for row in rig.rows("pair")} == {"ready"}
    assert rig.metric("router_ejections_total") == 0
    assert rig.chat("still there", model="pair").status_code == 200


JSON_ROUTES: dict[str, Json] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"max_tokens": 3, "messages": [{"role": "user", "content": "x"}]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/embeddings": {"input": "x"},
    "/v1/score": {"text_1": "x", "text_2": "y"},
    "/score": {"text_1": "x", "text_2": "y"},
    "/v1/rerank": {"query": "x", "documents": ["y", "z"]},
    "/rerank": {"query": "x", "documents": ["y", "z"]},
    "/v2/rerank": {"query": "x", "documents": ["y", "z"]},
    "/pooling": {"input": "x"},
    "/classify": {"input": "x"},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1, 2]},
}


@pytest.mark.parametrize("path", JSON_ROUTES)
def test_p58_every_route_of_the_worker_is_served(rig: Rig, path: str) -> None:
    answer = rig.post(path, {"model": "pair", **JSON_ROUTES[path]})
    assert answer.status_code == 200, answer.text
    worker = rig.worker(answer.headers["x-router-worker"])
    assert worker.requests(path=path)[-1].status == 200


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
def test_p58_multipart_arrives_byte_for_byte(rig: Rig, path: str) -> None:
    sound = bytes(range(256)) * 300
    edge = b"--edge\r\n"
    body = (
        edge
        + b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
        + sound
        + b"\r\n"
        + edge
        + b'Content-Disposition: form-data; name="model"\r\n\r\npair-alias\r\n--edge--\r\n'
    )
    answer = rig.post(path, body, headers={"content-type": "multipart/form-data; boundary=edge"})
    assert answer.status_code == 200, answer.text
    worker = rig.worker(answer.headers["x-router-worker"])
    assert rig.records(worker, bodies=True)[-1].body == body


def test_p60_all_served_names_and_their_windows_are_listed(rig: Rig) -> None:
    cards = {card["id"]: card for card in rig.http.get(f"{rig.front}/v1/models").json()["data"]}
    assert set(cards) == {"pair", "pair-alias", "quiet"}
    assert {cards[name]["max_model_len"] for name in ("pair", "pair-alias")} == {16_384}
    assert cards["pair-alias"]["root"] == "pair"
    assert rig.chat("by its other name", model="pair-alias").status_code == 200


def test_p62_headers_and_the_request_id_make_the_whole_way(rig: Rig) -> None:
    given = {
        "authorization": f"Bearer {CLIENT_KEY}",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "a=1",
        "x-foo": "bar",
        "x-request-id": "order-17.4",
    }
    answer = rig.post(CHAT, chat_body("traced", model="pair"), headers=given)
    worker = rig.worker(answer.headers["x-router-worker"])
    record = rig.records(worker)[-1]
    assert {name: record.header(name) for name in given} == given
    assert answer.headers.get_list("x-request-id") == ["order-17.4"]
    unnamed = rig.chat("without an id", model="pair")
    [given_id] = unnamed.headers.get_list("x-request-id")
    seen = rig.records(rig.worker(unnamed.headers["x-router-worker"]))[-1]
    assert given_id
    assert seen.header("x-request-id") == given_id


def test_p66_chunks_pass_nginx_one_by_one(rig: Rig) -> None:
    # The worker makes a token every half millisecond; the third event waits, and what came before it must be here.
    stall = {"kind": "stall", "unit": "event", "after": 3, "seconds": 0.7}
    call = rig.open(chat_body("drip", model="pair", stream=True, max_tokens=20), via=rig.front, fault=stall)
    began = time.monotonic()
    early = b""
    while early.count(b"data: ") < 3:
        early += call.first()
    first = time.monotonic() - began
    rest = early + call.rest()
    assert first < 0.5 < time.monotonic() - began
    assert b"data: [DONE]" not in early
    assert rest.count(b"data: ") == 22


def events(answer_text: str) -> list[Json]:
    lines = [line.removeprefix("data: ") for line in answer_text.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_p67_no_usage_where_none_was_asked_for(rig: Rig) -> None:
    answer = rig.chat("no usage", model="pair", stream=True)
    assert all("usage" not in event for event in events(answer.text))


def test_p67_usage_passes_unchanged_zeros_included(rig: Rig) -> None:
    text = text_of("usage with a zero", 600)
    body = chat_body(text, model="pair", stream=True, stream_options={"include_usage": True})
    first, second = (events(rig.post(CHAT, body).text)[-1] for _ in range(2))
    assert first["choices"] == []
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_p68_unreported_cached_tokens_are_unknown_not_a_miss(rig: Rig) -> None:
    text = text_of("nobody says what was cached", 4_000)
    rig.chat(text, model="quiet")
    before = rig.metric("router_reported_cached_tokens_total", model="quiet")
    answer = rig.chat(text, model="quiet")
    assert answer.json()["usage"]["prompt_tokens_details"] is None
    record = rig.decision(answer)
    assert record["reason"] == "hit"
    assert record["verdict"] == "unknown"
    assert record["reported_cached_tokens"] is None
    assert rig.metric("router_post_hit_fallbacks_total", model="quiet") == 0
    assert rig.metric("router_reported_cached_tokens_total", model="quiet") == before


def test_p92_metrics_say_why_how_deep_how_busy_and_what_the_engine_confirmed(rig: Rig) -> None:
    text = text_of("measured", 5_000)

    def numbers() -> dict[str, float]:
        return {
            "miss": rig.metric("router_affinity_decisions_total", model="pair", reason="miss"),
            "hit": rig.metric("router_affinity_decisions_total", model="pair", reason="hit"),
            "bypass": rig.metric("router_affinity_decisions_total", model="pair", reason="bypass"),
            "queried": rig.metric("router_affinity_blocks_queried_total"),
            "matched": rig.metric("router_affinity_blocks_matched_total"),
            "predicted": rig.metric("router_predicted_cached_tokens_total", model="pair"),
            "reported": rig.metric("router_reported_cached_tokens_total", model="pair"),
            "requests": rig.metric("router_requests_total", endpoint=CHAT, model="pair", status="200"),
            "decided": rig.metric("router_decision_seconds_count"),
        }

    before = numbers()
    rig.chat(text, model="pair")
    answer = rig.chat(text, model="pair")
    rig.post("/v1/embeddings", {"model": "pair", "input": "x"})
    with rig.holding(3, "pair"):
        assert rig.metric("router_in_flight") == 3
    grown = {name: value - before[name] for name, value in numbers().items()}
    cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert grown["miss"] >= 1
    assert (grown["hit"], grown["bypass"], grown["requests"]) == (1, 1, 2)
    assert grown["queried"] == 2 * grown["matched"] > 0
    assert grown["reported"] == cached > 0
    assert abs(grown["predicted"] - cached) <= 0.1 * cached + 128
    assert grown["decided"] == 6
    worker = answer.headers["x-router-worker"]
    assert rig.metric("router_index_blocks", worker=worker) > 0


def test_p95_neither_prompts_nor_keys_are_logged(rig: Rig) -> None:
    headers = {"authorization": f"Bearer {CLIENT_KEY}", "x-api-key": CLIENT_KEY}
    bodies: list[bytes] = [
        json.dumps(chat_body("fine", model="pair")).encode(),
        json.dumps(chat_body("unknown", model="nobody")).encode(),
        b'{"model":"pair","messages":[{"role":"user","content":"%b"' % CANARY.encode(),
        b'{"model":"pair","messages":"%b"}' % CANARY.encode(),
        b'{"model":"%b","messages":[]}' % CANARY.encode(),
    ]
    for body in bodies:
        rig.post(CHAT, body, headers=headers)
    reset = {"kind": "reset", "after": 2, "unit": "event"}
    rig.open(chat_body("cut off", model="pair", stream=True), fault=reset).rest()
    for _ in until(5, "lines of the log"):
        log = rig.routers[0].log.read_text()
        if "[PREFIX]" in log:
            break
    for secret in (CLIENT_KEY, CANARY, ADMIN_KEY):
        assert secret not in log


ENGINE_CONTROL = (
    "/sleep",
    "/wake_up",
    "/reset_prefix_cache",
    "/pause",
    "/resume",
    "/collective_rpc",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/server_info",
    "/invocations",
    "/abort_requests",
    "/start_profile",
    "/sim/reset",
    "/v1/../sleep",
    "/v1/responses/../../sleep",
    "//sleep",
)


@pytest.mark.parametrize("path", ENGINE_CONTROL)
def test_p96_routes_that_control_the_engine_are_not_there(rig: Rig, path: str) -> None:
    before = [len(worker.requests(path=path)) for worker in rig.workers]
    for method in ("POST", "GET"):
        answer = rig.http.request(method, rig.routers[0].url + path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_route")
    assert [len(worker.requests(path=path)) for worker in rig.workers] == before


def test_p96_the_fleet_is_changed_with_the_admin_key_alone(rig: Rig) -> None:
    worker = rig.rows("pair")[0]["id"]
    attempts = [
        ("POST", "/router/workers"),
        ("DELETE", f"/router/workers/{worker}"),
        ("POST", f"/router/workers/{worker}/drain"),
        ("POST", f"/router/workers/{worker}/resume"),
        ("POST", "/router/explain"),
        ("GET", "/router/decisions"),
    ]
    for method, path in attempts:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": ADMIN_KEY + "x"}):
            answer = rig.http.request(method, rig.front + path, json={"url": "http://127.0.0.1:1"}, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key"), (method, path)
    assert len(rig.rows("pair")) == 2
    assert not any(row["draining"] for row in rig.rows("pair"))
    assert rig.groups["pair"][0].url not in rig.http.get(f"{rig.front}/router/workers").text
