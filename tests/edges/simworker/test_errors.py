"""What the simulated worker refuses, and with which words."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from loadtest.simworker import SimConfig, SimWorker
from tests.edges.simworker.routes_rig import TEXT, chat

# -- errors


@pytest.mark.parametrize("path", ["/v1/models", "/v1/nope", "/v2/rerank"])
async def test_the_key_guards_v1_and_v2_only(path: str) -> None:
    async with SimWorker(SimConfig(api_key="k")) as worker, httpx.AsyncClient(base_url=worker.url) as client:
        answer = await client.get(path)
        assert (answer.status_code, answer.json()) == (401, {"error": "Unauthorized"})
        assert (await client.get(path, headers={"authorization": "Bearer wrong"})).status_code == 401
        assert (await client.get(path, headers={"authorization": "Bearer k"})).status_code != 401
        assert (await client.get("/health")).status_code == 200
        assert (await client.post("/tokenize", json={"prompt": "x"})).status_code == 200


async def test_an_unknown_model_is_404(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/chat/completions", json=chat(model="other"))
    error = answer.json()["error"]
    assert answer.status_code == 404
    assert (error["type"], error["param"], error["code"]) == ("NotFoundError", "model", 404)
    answer = await client.post("/v1/messages", json=chat(model="other"))
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "NotFoundError"


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b'{"messages": 3}', b'{"messages": []}', b"\xff\xff", b'{"messages": [{"content": "no role"}]}'],
)
async def test_a_bad_body_is_400(client: httpx.AsyncClient, content: bytes) -> None:
    answer = await client.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == 400


async def test_the_content_type_must_be_json(client: httpx.AsyncClient) -> None:
    body = json.dumps(chat()).encode()
    for declared, status in (("text/plain", 400), ("application/json; charset=utf-8", 200), ("", 400)):
        answer = await client.post("/v1/chat/completions", content=body, headers={"content-type": declared})
        assert answer.status_code == status


@pytest.mark.parametrize(
    "fields",
    [
        {"stream_options": {"include_usage": True}},
        {"n": 0},
        {"n": 20_000},
        {"max_tokens": -1},
        {"cache_salt": "a/b"},
        {"cache_salt": "x" * 129},
    ],
)
async def test_refused_fields(client: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    assert (await client.post("/v1/chat/completions", json=chat(**fields))).status_code == 400


async def test_an_over_long_prompt_is_400() -> None:
    config = SimConfig(models=("base",), max_model_len=100, time_scale=0.0)
    async with SimWorker(config) as worker, httpx.AsyncClient(base_url=worker.url) as client:
        for body in (chat(TEXT * 20), chat(max_tokens=99)):
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 400
            assert "maximum context length is 100" in answer.json()["error"]["message"]
        assert (await client.post("/v1/chat/completions", json=chat(max_tokens=50))).status_code == 200
        assert (await client.get("/v1/models")).json()["data"][0]["max_model_len"] == 100
