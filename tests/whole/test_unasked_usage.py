"""The router asks for a stream's usage and keeps it: the client can't tell, and hits are compared all the same."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import httpx
import pytest

from tests.whole.conftest import FAST, MODEL, Builder, Rig
from tests.whole.rig import total

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEXT = "say the same thing to everybody who asks " * 60


@pytest.fixture(scope="module")
def rig(build_shared: Builder) -> Rig:
    return build_shared(workers=1, config=FAST, environment={"ROUTER_CALIBRATION__ASK_USAGE": "true"})


def stream(url: str, path: str, body: bytes, name: str, headers: dict[str, str] | None = None) -> httpx.Response:
    sent = {"content-type": "application/json", "x-request-id": name, **(headers or {})}
    answer = httpx.post(url + path, content=body, headers=sent, trust_env=False, timeout=30)
    assert answer.status_code == 200
    return answer


def timeless(data: bytes) -> bytes:
    return re.sub(rb'"created":\d+', b'"created":0', data)


def body_of(path: str, **fields: Any) -> bytes:
    asked = {"messages": [{"role": "user", "content": TEXT}]} if path == CHAT else {"prompt": TEXT}
    return json.dumps({"model": MODEL, "stream": True, "max_tokens": 5, **asked, **fields}, indent=1).encode()


def record(rig: Rig, name: str) -> dict[str, Any]:
    found: dict[str, Any] = rig.routers[0].get(f"/router/decisions?request_id={name}")["decisions"][0]
    return found


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_the_client_gets_what_it_would_have_got(rig: Rig, path: str) -> None:
    body = body_of(path)
    for _ in range(2):
        name = str(uuid.uuid4())
        plain = stream(rig.workers[0].url, path, body, name)
        routed = stream(rig.routers[0].url, path, body, name, {"accept-encoding": "gzip"})
        assert timeless(routed.content) == timeless(plain.content)
        assert b"usage" not in routed.content
        assert routed.content.endswith(b"data: [DONE]\n\n")
    # The second time all of it is in the cache, and the worker said so.
    decision = record(rig, name)
    assert decision["reported_cached_tokens"] > 100
    assert decision["verdict"] in ("confirmed", "better")
    seen = rig.workers[0].requests(bodies=True, path=path)[-1]
    assert seen.body is not None
    assert seen.body.replace(b'"stream_options":{"include_usage":true},', b"", 1) == body
    lengths = [value for key, value in seen.headers if key.lower() == b"content-length"]
    assert lengths == [str(len(seen.body)).encode()]
    assert b"accept-encoding" not in dict(seen.headers)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_client_that_asks_is_answered(rig: Rig, path: str) -> None:
    name = str(uuid.uuid4())
    body = body_of(path, stream_options={"include_usage": True})
    routed = stream(rig.routers[0].url, path, body, name)
    assert routed.content.count(b'"choices":[],"usage":{') == 1
    assert rig.workers[0].requests(bodies=True, path=path)[-1].body == body


def test_a_client_that_does_not_want_it_is_not_asked_for(rig: Rig) -> None:
    name = str(uuid.uuid4())
    body = body_of(CHAT, stream_options={"include_usage": False})
    stream(rig.routers[0].url, CHAT, body, name)
    assert rig.workers[0].requests(bodies=True, path=CHAT)[-1].body == body
    assert record(rig, name)["reported_prompt_tokens"] is None


def test_answers_in_one_piece_and_errors_pass_as_they_are(rig: Rig) -> None:
    router, worker = rig.routers[0], rig.workers[0]
    whole = stream(router.url, CHAT, body_of(CHAT, stream=False), str(uuid.uuid4()))
    assert whole.json()["usage"]["prompt_tokens"] > 100
    broken = body_of(CHAT, cache_salt="@")
    refused, direct = (
        httpx.post(
            url + CHAT, content=broken, headers={"content-type": "application/json"}, trust_env=False, timeout=30
        )
        for url in (router.url, worker.url)
    )
    assert refused.status_code == direct.status_code == 400
    assert refused.content == direct.content
    assert total(router.metrics(), "router_outcomes_total", outcome="midstream_abort") == 0


def test_a_declared_length_gives_way(build: Builder) -> None:
    rig = build(workers=1, config=FAST, environment={"ROUTER_CALIBRATION__ASK_USAGE": "true"})
    kept = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":400,"completion_tokens":1}}\n\n'
    whole = kept + usage + b"data: [DONE]\n\n"
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {len(whole)}\r\n\r\n"
    action = {"kind": "raw", "text": head + whole.decode(), "then": "keep"}
    rig.workers[0].add_faults({"action": action, "times": None})
    name = str(uuid.uuid4())
    answer = stream(rig.routers[0].url, CHAT, body_of(CHAT), name)
    assert answer.content == kept + b"data: [DONE]\n\n"
    assert "content-length" not in answer.headers
    assert record(rig, name)["reported_prompt_tokens"] == 400
