"""The control plane's routes: what they answer, to whom, and in which form they refuse."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.cachemodel import CacheProfile
from router.control import workers as workers_module
from router.workers.health import Event
from router.workers.registry import Lease, Worker
from tests.edges.control_rig import ADMIN, AS_ADMIN, HOST, READ, Rig, code_of

EJECTED = (Event.UP, Event.STRUCK_OUT)
PROBATION = (*EJECTED, Event.COOLED)
DOWN = (Event.UP, Event.DOWN)


# -- alive, ready, metrics -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_health_says_that_the_process_lives_whatever_its_workers_do(method: str) -> None:
    rig = Rig()
    rig.draining = True
    response = await rig.call(method, "/health")
    assert response.status_code == 200
    assert response.text == ('{"status":"ok"}' if method == "GET" else "")


@pytest.mark.parametrize(
    ("events", "status"),
    [((), 503), ((Event.UP,), 200), (EJECTED, 503), (PROBATION, 200), (DOWN, 503)],
)
async def test_ready_as_long_as_a_worker_can_serve(events: tuple[Event, ...], status: int) -> None:
    rig = Rig()
    rig.worker("a", events=())
    rig.worker("b", events=events)
    assert (await rig.call("GET", "/ready")).status_code == status


async def test_a_busy_probation_does_not_make_readiness_flap() -> None:
    rig = Rig()
    lease = Lease(rig.registry, rig.worker("a", events=PROBATION))
    assert (await rig.call("GET", "/ready")).json() == {"status": "ready", "workers": 1}
    lease.end()


async def test_not_ready_says_why_and_when_to_come_back() -> None:
    rig = Rig()
    none = await rig.call("GET", "/ready")
    rig.worker("a", events=DOWN)
    rig.registry.set_draining(rig.worker("b"), True)
    down = await rig.call("GET", "/ready")
    rig.worker("c")
    rig.draining = True
    leaving = await rig.call("GET", "/ready")
    assert [code_of(response) for response in (none, down, leaving)] == ["no_worker_available"] * 2 + ["draining"]
    assert none.json()["error"]["message"] == "No worker is configured."
    assert "1 draining, 1 unready" in down.json()["error"]["message"]
    assert all(int(response.headers["retry-after"]) > 0 for response in (none, down, leaving))


async def test_a_replica_that_is_still_learning_is_not_ready_and_says_so() -> None:
    rig = Rig()
    rig.worker("a")
    rig.sync.warming = True
    learning = await rig.call("GET", "/ready")
    assert (learning.status_code, code_of(learning)) == (503, "warming")
    assert learning.headers["retry-after"] == "1"
    rig.sync.warming = False
    assert (await rig.call("GET", "/ready")).status_code == 200


async def test_metrics_are_prometheus_text() -> None:
    rig = Rig()
    rig.metrics.decisions.inc(("m", "hit"), 3)
    response = await rig.call("GET", "/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    assert families["router_affinity_decisions"].samples[0].value == 3


# -- /v1/models ----------------------------------------------------------------------------------------


async def test_model_cards_keep_every_byte() -> None:
    rig = Rig()
    first = b'{ "id":"m", "max_model_len" : 32768.0, "zeta":1.50,"\\u00e4":[ ], "x":1e400}'
    second = '{"id":"m-alias","root":"ä/ß","permission":[{"id":"p"}]}'.encode()
    rig.worker("a", ("m", "m-alias"), cards=(first, second))
    rig.worker("b", ("m",), cards=(b'{"id":"m","other":true}',))
    response = await rig.call("GET", "/v1/models")
    assert response.content == b'{"object":"list","data":[' + first + b"," + second + b"]}"


async def test_the_first_worker_down_leaves_the_models_of_the_rest() -> None:
    rig = Rig()
    rig.worker("a", ("shared", "lost"), events=DOWN, cards=(b'{"id":"shared","of":"a"}', b'{"id":"lost"}'))
    rig.worker("b", ("shared", "own"), cards=(b'{"id":"shared","of":"b"}', b'{"id":"own"}'))
    rig.worker("c", ("resting",), events=EJECTED)
    response = await rig.call("GET", "/v1/models")
    assert [card["id"] for card in response.json()["data"]] == ["shared", "own", "resting"]
    assert response.json()["data"][0]["of"] == "b"


async def test_no_list_is_better_than_an_empty_one() -> None:
    rig = Rig()
    rig.worker("a", events=DOWN)
    response = await rig.call("GET", "/v1/models")
    assert response.status_code == 503
    assert code_of(response) == "no_worker_available"
    assert response.headers["retry-after"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer nope"}, 401),
        ({"authorization": "Basic one"}, 401),
        ({"authorization": "bearer two"}, 200),
        ({"x-api-key": "one"}, 200),
    ],
)
async def test_models_ask_for_the_key_that_inference_asks_for(headers: dict[str, str], status: int) -> None:
    rig = Rig(auth={"api_keys": ["one", "two"]})
    rig.worker("a")
    response = await rig.call("GET", "/v1/models", headers=headers)
    assert response.status_code == status
    if status == 401:
        assert code_of(response) == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"


# -- the fleet -----------------------------------------------------------------------------------------


async def test_a_worker_is_shown_with_all_that_is_known_of_it() -> None:
    rig = Rig()
    worker = rig.worker("a", profile=CacheProfile(enabled=True, block_size=32, capacity_tokens=4096))
    rig.registry.set_epoch(worker, time.time() - 100)
    rig.index.record(worker.id, worker.epoch, [1, 2, 3], rig.now)
    rig.registry.set_remote(worker, "other", 2)
    lease = Lease(rig.registry, worker)
    row = (await rig.call("GET", "/router/workers")).json()["workers"][0]
    lease.end()
    assert 99 <= row.pop("epoch_age_seconds") <= 110
    assert row == {
        "id": worker.id,
        "state": "ready",
        "draining": False,
        "asleep": False,
        "in_flight": {"local": 1, "all": 3},
        "slots": 8,
        "models": [{"name": "m", "window": 32_000, "parent": None}],
        "epoch": worker.epoch,
        "epoch_from": "seen",
        "emptied": 0,
        "cache": {
            "enabled": True,
            "block_size": 32,
            "hit_unit": 32,
            "floor_tokens": 33,
            "capacity_tokens": 4096,
            "learned_capacity_tokens": None,
        },
        "hits": {
            "confirmed": 0,
            "fell_short": 0,
            "better": 0,
            "unknown": 0,
            "precision": None,
            "recall": None,
        },
        "blocks": 3,
        "ejections": 0,
        "engine": {"running": None, "waiting": None},
    }


@pytest.mark.parametrize(("admin", "headers"), [(False, {}), (True, {}), (True, {"authorization": "Bearer no"})])
async def test_only_the_admin_sees_where_workers_listen(admin: bool, headers: dict[str, str]) -> None:
    rig = Rig(admin=admin)
    rig.worker("a")
    rig.worker("b", events=DOWN)
    rig.decided()
    async with rig.client(**headers) as client:
        for path in ("/router/workers", "/v1/models", "/metrics", "/ready", *READ):
            assert HOST not in (await client.get(path)).text
        explained = await client.post("/router/explain", json={"model": "m", "messages": []})
        assert HOST not in explained.text
    shown = await rig.call("GET", "/router/workers", headers=AS_ADMIN)
    assert (HOST in shown.text) is admin


CHANGES = [
    ("POST", "/router/workers"),
    ("DELETE", "/router/workers/{id}"),
    ("POST", "/router/workers/{id}/drain"),
    ("POST", "/router/workers/{id}/resume"),
]


@pytest.mark.parametrize(("method", "path"), CHANGES)
async def test_without_an_admin_key_nobody_changes_the_fleet(method: str, path: str) -> None:
    for admin_key in (None, ""):
        rig = Rig(auth={"admin_key": admin_key})
        worker = rig.worker("a")
        for headers in ({}, {"authorization": "Bearer "}, {"authorization": "Bearer None"}):
            response = await rig.call(method, path.format(id=worker.id), headers=headers, json={"url": "http://b"})
            assert response.status_code == 403
            assert code_of(response) == "forbidden"
        assert list(rig.registry) == [worker]
        assert not worker.draining


@pytest.mark.parametrize(("method", "path"), CHANGES)
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer sesam"}, {"x-api-key": ADMIN}])
async def test_a_wrong_admin_key_changes_nothing(method: str, path: str, headers: dict[str, str]) -> None:
    rig = Rig(admin=True, auth={"api_keys": ["client"]})
    worker = rig.worker("a")
    response = await rig.call(method, path.format(id=worker.id), headers=headers, json={"url": "http://b"})
    assert response.status_code == 401
    assert list(rig.registry) == [worker]


async def test_a_worker_is_added_once() -> None:
    rig = Rig(admin=True)
    added: list[Worker] = []
    rig.registry.hooks.added.append(added.append)
    body = {"url": "HTTP://GPU7:8000/", "slots": 3, "api_key": "secret-of-gpu7"}
    async with rig.client(**AS_ADMIN) as client:
        first = await client.post("/router/workers", json=body)
        again = await client.post("/router/workers", json={"url": "http://gpu7:8000"})
        other = await client.post("/router/workers", json={"url": "http://gpu7:8000", "slots": 4})
        default = await client.post("/router/workers", json={"url": "http://gpu8"})
    assert [response.status_code for response in (first, again, other, default)] == [201, 200, 409, 201]
    assert code_of(other) == "conflict"
    assert first.json() == again.json()
    assert (first.json()["url"], first.json()["slots"]) == ("http://gpu7:8000", 3)
    assert default.json()["slots"] == rig.settings.limits.default_slots
    assert [worker.api_key for worker in added] == ["secret-of-gpu7", None]
    assert "secret" not in first.text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"url": "http://a"',
        b"{}",
        b'{"url": 7}',
        b'{"url": "ftp://a"}',
        b'{"url": "http://user:pw@a"}',
        b'{"url": "http://169.254.169.254/"}',
        b'{"url": "http://a:99999"}',
        b'{"url": "http://a?x=1"}',
        b'{"url": "http://a", "slots": 0}',
        b'{"url": "http://a", "slot": 1}',
        b'{"url": "http://[::1"}',
        b"\xff\xfe",
    ],
)
async def test_a_worker_that_can_not_be_is_refused(body: bytes) -> None:
    rig = Rig(admin=True)
    response = await rig.call("POST", "/router/workers", headers=AS_ADMIN, content=body)
    assert response.status_code == 400
    assert code_of(response) == "bad_request"
    assert "pw" not in response.text
    assert len(rig.registry) == 0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "url: is required"),
        ({"url": 5}, "url: must be text: put it in quotes"),
        ({"url": "http://a", "slots": "many"}, "slots: must be a whole number"),
        ({"url": "http://a", "slots": 0}, "slots: must be more than 0"),
        ({"url": "http://a", "weight": 1}, "weight: there is no such field"),
        ([], "must be an object"),
    ],
)
async def test_what_is_wrong_with_a_worker_is_said_plainly(body: object, said: str) -> None:
    response = await Rig(admin=True).call("POST", "/router/workers", headers=AS_ADMIN, json=body)
    assert response.json()["error"]["message"] == said


async def test_bodies_are_bounded_whether_announced_or_not() -> None:
    rig = Rig(admin=True)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 16_384

    announced = await rig.call("POST", "/router/workers", headers=AS_ADMIN, content=b" " * 70_000)
    unannounced = await rig.call("POST", "/router/workers", headers=AS_ADMIN, content=endless())
    packed = {**AS_ADMIN, "content-encoding": "gzip"}
    compressed = await rig.call("POST", "/router/workers", headers=packed, content=b"x")
    assert [response.status_code for response in (announced, unannounced, compressed)] == [413, 413, 415]
    assert announced.headers["connection"] == "close"


async def test_the_fleet_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "MAX_WORKERS", 1)
    rig = Rig(admin=True)
    rig.worker("a")
    response = await rig.call("POST", "/router/workers", headers=AS_ADMIN, json={"url": "http://b"})
    assert (response.status_code, len(rig.registry)) == (409, 1)


async def test_drain_resume_and_remove() -> None:
    rig = Rig(admin=True)
    worker = rig.worker("a")
    freed: list[Worker] = []
    rig.registry.hooks.freed.append(freed.append)
    async with rig.client(**AS_ADMIN) as client:
        path = f"/router/workers/{worker.id}"
        assert (await client.post(f"{path}/drain")).json()["draining"] is True
        assert (worker.draining, freed) == (True, [])
        assert (await client.post(f"{path}/resume")).json()["draining"] is False
        # Requests that wait for a slot are told.
        assert (worker.draining, freed) == (False, [worker])
        assert (await client.delete(path)).json()["id"] == worker.id
        assert (worker.removed, len(rig.registry)) == (True, 0)
        for response in (await client.delete(path), await client.post(f"{path}/drain")):
            assert (response.status_code, code_of(response)) == (404, "not_found")


# -- everything else -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/docs", "/redoc", "/openapi.json", "/health/", "/HEALTH", "//health", "/v1/models/m", "/router", "/v1"),
        *("/sleep", "/wake_up", "/pause", "/resume", "/reset_prefix_cache", "/load_lora_adapter", "/invocations"),
        *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/collective_rpc", "/server_info", "/abort_requests"),
        *("/version", "/load", "/ping", "/is_sleeping", "/start_profile", "/é"),
    ],
)
async def test_what_is_not_served_does_not_exist(path: str) -> None:
    rig = Rig(admin=True)
    for method in ("GET", "POST"):
        response = await rig.call(method, path, headers=AS_ADMIN)
        assert (response.status_code, code_of(response)) == (404, "unknown_route")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/sleep", "The router does not serve /sleep."),
        ("/chat/completions", "The router does not serve /chat/completions. Did you mean /v1/chat/completions?"),
        ("/v1/v1/responses", "The router does not serve /v1/v1/responses. Did you mean /v1/responses?"),
        ("/v1/tokenize", "The router does not serve /v1/tokenize. Did you mean /tokenize?"),
        ("/models", "The router does not serve /models. Did you mean /v1/models?"),
        ("/v1/metrics/", "The router does not serve /v1/metrics/. Did you mean /metrics?"),
        ("/health/", "The router does not serve /health/. Did you mean /health?"),
        ("/", "The router does not serve /. Its dashboard is at /router/dashboard."),
        ("/router/", "The router does not serve /router/. Its dashboard is at /router/dashboard."),
        ("/a%0Ab%1B%C3%A9%20", "The router does not serve /a?b???."),
        ("/" + "x" * 200, f"The router does not serve /{'x' * 99}...."),
    ],
)
async def test_an_unknown_path_is_named_as_far_as_it_is_fit_to_be_shown(path: str, message: str) -> None:
    response = await Rig().call("GET", path)
    assert response.json()["error"]["message"] == message


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/health", "GET, HEAD"),
        ("DELETE", "/v1/models", "GET"),
        ("PUT", "/router/workers", "GET, POST"),
        ("GET", "/router/workers/905487f1", "DELETE"),
        ("GET", "/router/workers/905487f1/drain", "POST"),
        ("GET", "/router/explain", "POST"),
        ("OPTIONS", "/metrics", "GET"),
    ],
)
async def test_a_wrong_verb_is_told_the_right_ones(method: str, path: str, allow: str) -> None:
    response = await Rig().call(method, path)
    assert (response.status_code, code_of(response)) == (405, "method_not_allowed")
    assert response.headers["allow"] == allow


@pytest.mark.parametrize("path", ["/health", "/ready", "/nowhere", "/router/dashboard", "/router/decisions?limit=0"])
async def test_every_answer_has_one_request_id(path: str) -> None:
    rig = Rig()
    async with rig.client() as client:
        made = [(await client.get(path)).headers.get_list("x-request-id") for _ in range(2)]
        kept = await client.get(path, headers={"x-request-id": "mine-1"})
        replaced = await client.get(path, headers={"x-request-id": "no good"})
    assert [len(ids) for ids in made] == [1, 1]
    assert made[0] != made[1]
    assert kept.headers.get_list("x-request-id") == ["mine-1"]
    assert replaced.headers["x-request-id"] != "no good"


@pytest.mark.interpreted
async def test_a_failure_of_the_router_itself_is_an_error_like_any_other(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.worker("a").facts = None  # type: ignore[assignment]
    with caplog.at_level(logging.ERROR):
        response = await rig.call("GET", "/router/workers")
    assert (response.status_code, code_of(response)) == (500, "internal_error")
    assert "facts" not in response.text
    assert [record.message for record in caplog.records if record.name == "router"] == ["internal error"]


async def test_answers_are_not_kept_by_caches() -> None:
    rig = Rig()
    rig.worker("a")
    for path in ("/health", "/ready", "/metrics", "/v1/models", "/router/workers", *READ, "/nowhere"):
        assert (await rig.call("GET", path)).headers["cache-control"] == "no-store"


def test_rows_are_json() -> None:
    rig = Rig()
    json.dumps(workers_module.describe(rig.context, rig.worker("a")), allow_nan=False)
