"""The simulated worker's routes, over real sockets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadtest.simworker import Adapter, SimConfig, SimWorker

TEXT = "the worker that has seen the beginning of a prompt answers its continuation much sooner than any other "
CONFIG = SimConfig(
    models=("base", "alias"),
    adapters=(Adapter("tuned", "base"),),
    time_scale=0.0,
    enable_prompt_tokens_details=True,
    dev_mode=True,
)


@pytest.fixture
async def worker() -> AsyncIterator[SimWorker]:
    async with SimWorker(CONFIG) as made:
        yield made


@pytest.fixture
async def client(worker: SimWorker) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=worker.url) as made:
        yield made


def chat(text: str = TEXT, **fields: Any) -> dict[str, object]:
    return {"model": "base", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}


def events(text: str) -> list[Any]:
    """The data of an event stream, in order; [DONE] as a string."""
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


# -- about the worker


async def test_models_lists_aliases_and_adapters(client: httpx.AsyncClient) -> None:
    first = (await client.get("/v1/models")).json()["data"]
    assert [(card["id"], card["root"], card["parent"], card["max_model_len"]) for card in first] == [
        ("base", "base", None, 32768),
        ("alias", "base", None, 32768),
        ("tuned", "/adapters/tuned", "base", None),
    ]
    second = (await client.get("/v1/models")).json()["data"]
    assert first[0]["permission"][0]["id"] != second[0]["permission"][0]["id"]


async def test_health_version_load(client: httpx.AsyncClient) -> None:
    for path in ("/health", "/ping"):
        answer = await client.get(path)
        assert (answer.status_code, answer.content) == (200, b"")
    assert (await client.post("/ping")).status_code == 200
    assert (await client.get("/version")).json() == {"version": "0.33.0"}
    assert (await client.get("/load")).json() == {"server_load": 0}


async def test_unknown_routes_and_methods(client: httpx.AsyncClient) -> None:
    answer = await client.get("/nope")
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})
    answer = await client.get("/v1/completions")
    assert (answer.status_code, answer.json()) == (405, {"detail": "Method Not Allowed"})
    assert answer.headers["allow"] == "POST"
    answer = await client.post("/v1/completions/", json={})
    assert (answer.status_code, answer.headers["location"]) == (307, "/v1/completions")


async def test_a_head_answer_has_no_body(client: httpx.AsyncClient) -> None:
    answer = await client.head("/health")
    assert (answer.status_code, answer.content) == (405, b"")
    assert (await client.get("/health")).status_code == 200


async def test_metrics_are_prometheus_text(client: httpx.AsyncClient) -> None:
    for _ in range(2):
        await client.post("/v1/chat/completions", json=chat(TEXT * 10))
    families = {f.name: f for f in text_string_to_metric_families((await client.get("/metrics")).text)}
    samples = {s.name: s for family in families.values() for s in family.samples}
    assert samples["vllm:prefix_cache_queries_total"].labels == {"model_name": "base", "engine": "0"}
    hits, queries = samples["vllm:prefix_cache_hits_total"].value, samples["vllm:prefix_cache_queries_total"].value
    assert queries / 2 - 16 <= hits < queries / 2
    assert samples["vllm:prompt_tokens_total"].value == queries
    assert samples["vllm:generation_tokens_total"].value == 8
    assert samples["vllm:num_requests_running"].value == samples["vllm:num_requests_waiting"].value == 0
    assert samples["process_start_time_seconds"].value > 1e9
    info = samples["vllm:cache_config_info"].labels
    assert (info["block_size"], info["num_gpu_blocks"], info["enable_prefix_caching"]) == ("16", "8192", "True")
    assert (info["prefix_match_unit"], info["kv_cache_size_tokens"]) == ("None", "131072")
    ended = {s.labels["finished_reason"]: s.value for s in families["vllm:request_success"].samples}
    assert ended["length"] == 2


async def test_a_restart_is_a_new_life(worker: SimWorker) -> None:
    born = worker.started_at
    for _ in range(2):
        async with httpx.AsyncClient(base_url=worker.url) as client:
            answer = await client.post("/v1/chat/completions", json=chat(TEXT * 10))
            assert answer.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
            worker.restart()
            with pytest.raises(httpx.ReadError):
                await client.get("/health")
    assert worker.started_at > born


@pytest.mark.parametrize(
    ("config", "path"),
    [
        (SimConfig(metrics=False), "/metrics"),
        (SimConfig(health=False), "/health"),
        (SimConfig(), "/reset_prefix_cache"),
        (SimConfig(), "/is_sleeping"),
    ],
)
async def test_routes_that_are_switched_off(config: SimConfig, path: str) -> None:
    async with SimWorker(config) as worker, httpx.AsyncClient(base_url=worker.url) as client:
        assert (await client.get(path)).status_code == 404


async def test_several_api_processes_hide_the_start_time() -> None:
    async with SimWorker(SimConfig(process_metrics=False)) as worker, httpx.AsyncClient(base_url=worker.url) as client:
        assert "process_start_time" not in (await client.get("/metrics")).text


async def test_reset_and_sleep_empty_the_cache(client: httpx.AsyncClient) -> None:
    async def cached() -> int:
        usage = (await client.post("/v1/chat/completions", json=chat(TEXT * 10))).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert await cached() == 0
    assert await cached() > 0
    assert (await client.post("/reset_prefix_cache")).json() == {"success": True}
    assert await cached() == 0
    assert (await client.post("/sleep?level=1")).status_code == 200
    assert (await client.get("/is_sleeping")).json() == {"is_sleeping": True}
    assert 'sleep_state="weights_offloaded"} 1.0' in (await client.get("/metrics")).text
    assert (await client.post("/wake_up")).status_code == 200
    assert await cached() == 0
    info = (await client.get("/server_info?config_format=json")).json()
    assert info["vllm_config"]["cache_config"]["block_size"] == "16"


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


# -- chat and completions


async def test_chat_answers_with_the_first_name(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/v1/chat/completions", json=chat(model="alias"))).json()
    assert answer["model"] == "base"
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert len(answer["choices"][0]["message"]["content"].split()) == 4
    assert answer["usage"]["completion_tokens"] == 4
    adapter = (await client.post("/v1/chat/completions", json=chat(model="tuned"))).json()
    assert adapter["model"] == "tuned"


async def test_text_is_the_same_for_the_same_prompt(client: httpx.AsyncClient) -> None:
    bodies = [chat(), chat(), chat(TEXT + "other")]
    answers = [(await client.post("/v1/chat/completions", json=body)).json() for body in bodies]
    texts = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert texts[0] == texts[1] != texts[2]


async def test_the_request_id_becomes_the_answers(client: httpx.AsyncClient) -> None:
    headers = {"x-request-id": "abc"}
    answer = await client.post("/v1/chat/completions", json=chat(request_id="body"), headers=headers)
    assert answer.json()["id"] == "chatcmpl-abc"
    assert "x-request-id" not in answer.headers
    answer = await client.post("/v1/completions", json={"prompt": "x", "request_id": "body"})
    assert answer.json()["id"] == "cmpl-body"


async def test_a_token_of_the_request_is_echoed(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/v1/chat/completions", json=chat(sim_echo="token-1", max_tokens=1))).json()
    assert answer["choices"][0]["message"]["content"] == "token-1"
    streamed = await client.post("/v1/chat/completions", json=chat(stream=True), headers={"x-sim-echo": "token-2"})
    text = "".join(e["choices"][0]["delta"]["content"] for e in events(streamed.text)[:-1])
    assert text.startswith("token-2 ")


async def test_a_stream_has_usage_only_when_asked(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/chat/completions", json=chat(stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    plain = events(answer.text)
    assert plain[-1] == "[DONE]"
    assert plain[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [e["choices"][0]["finish_reason"] for e in plain[:-1]] == [None, None, None, None, "length"]
    assert not any("usage" in e for e in plain[:-1])
    body = chat(stream=True, stream_options={"include_usage": True})
    asked = events((await client.post("/v1/chat/completions", json=body)).text)
    assert asked[-2]["choices"] == []
    assert asked[-2]["usage"]["completion_tokens"] == 4
    assert set(asked[-2]["usage"]["prompt_tokens_details"]) == {"cached_tokens"}
    assert not any("usage" in e for e in asked[:-2])


async def test_continuous_usage_has_no_details(client: httpx.AsyncClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    got = events((await client.post("/v1/chat/completions", json=chat(stream=True, stream_options=options))).text)
    assert [e["usage"]["completion_tokens"] for e in got[1:-2]] == [1, 2, 3, 4]
    assert all(e["usage"]["prompt_tokens_details"] is None for e in got[1:-2])
    assert got[-2]["usage"]["prompt_tokens_details"] is not None


async def test_details_are_null_without_the_switch() -> None:
    async with (
        SimWorker(SimConfig(time_scale=0, models=("base",))) as worker,
        httpx.AsyncClient(base_url=worker.url) as client,
    ):
        usage = (await client.post("/v1/chat/completions", json=chat())).json()["usage"]
        assert usage["prompt_tokens_details"] is None
        usage = (await client.post("/v1/responses", json={"input": "never seen before"})).json()["usage"]
        assert usage["input_tokens_details"]["cached_tokens"] == 0


async def test_several_choices(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/v1/chat/completions", json=chat(n=3))).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == 12
    streamed = events((await client.post("/v1/chat/completions", json=chat(n=3, stream=True))).text)
    assert sorted(e["choices"][0]["index"] for e in streamed[:-1]) == sorted([0, 1, 2] * 5)


@pytest.mark.parametrize(
    ("prompt", "choices", "tokens"),
    [("one two", 1, 2), (["one two", "three"], 2, 3), ([1, 2, 3], 1, 3), ([[1, 2], [3]], 2, 3)],
)
async def test_all_forms_of_prompt(client: httpx.AsyncClient, prompt: object, choices: int, tokens: int) -> None:
    answer = (await client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2})).json()
    assert answer["object"] == "text_completion"
    assert len(answer["choices"]) == choices
    assert answer["usage"]["prompt_tokens"] == tokens
    body = {"prompt": prompt, "max_tokens": 2, "stream": True}
    streamed = events((await client.post("/v1/completions", json=body)).text)
    assert len(streamed) == choices * 2 + 1


@pytest.mark.parametrize("prompt", [None, [], {}, [None], [[1], "x"], [-1], [1.5]])
async def test_prompts_that_are_none(client: httpx.AsyncClient, prompt: object) -> None:
    assert (await client.post("/v1/completions", json={"prompt": prompt})).status_code == 400


async def test_a_prompt_of_many_tokens_takes_the_default_length(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/v1/completions", json={"prompt": TEXT})).json()
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_the_answer_to_a_long_request_is_all_there(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/chat/completions", json=chat(max_tokens=6000))
    assert len(answer.json()["choices"][0]["message"]["content"].split()) == 6000
    streamed = events((await client.post("/v1/chat/completions", json=chat(max_tokens=6000, stream=True))).text)
    assert len(streamed) == 6002


# -- the cache, as answers show it


async def cached_of(client: httpx.AsyncClient, body: dict[str, object]) -> tuple[int, int]:
    usage = (await client.post("/v1/chat/completions", json=body)).json()["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


async def test_an_identical_prompt_hits_its_whole_blocks(client: httpx.AsyncClient) -> None:
    tokens, cached = await cached_of(client, chat(TEXT * 20))
    assert cached == 0
    assert await cached_of(client, chat(TEXT * 20)) == (tokens, (tokens - 1) // 16 * 16)


async def test_an_aligned_identical_prompt_recomputes_its_last_block(client: httpx.AsyncClient) -> None:
    body = {"prompt": list(range(160)), "max_tokens": 1}
    for expected in (0, 144):
        usage = (await client.post("/v1/completions", json=body)).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == expected


async def test_a_conversation_resumes_with_what_was_generated(client: httpx.AsyncClient) -> None:
    messages: list[dict[str, str]] = []
    resumed = 0
    for turn in range(4):
        messages.append({"role": "user", "content": f"{TEXT * 10} turn {turn}"})
        body = {"messages": messages, "max_tokens": 40}
        answer = (await client.post("/v1/chat/completions", json=body)).json()
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == resumed
        # All but the last token generated, which was never fed back.
        resumed = (answer["usage"]["prompt_tokens"] + 39) // 16 * 16
        messages.append(answer["choices"][0]["message"])


async def test_salt_and_adapter_keep_prompts_apart(client: httpx.AsyncClient) -> None:
    variants: list[dict[str, Any]] = [{}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"model": "tuned"}]
    for fields in variants:
        assert (await cached_of(client, chat(TEXT * 20, **fields)))[1] == 0
    for fields in variants:
        assert (await cached_of(client, chat(TEXT * 20, **fields)))[1] > 0


async def test_the_oldest_prompt_is_evicted() -> None:
    config = SimConfig(time_scale=0, num_gpu_blocks=64, enable_prompt_tokens_details=True, models=("base",))
    async with SimWorker(config) as worker, httpx.AsyncClient(base_url=worker.url) as client:
        texts = [f"{letter} " * 400 for letter in "abc"]  # 26 blocks each
        for text in (texts[0], texts[1], texts[0], texts[2]):
            await cached_of(client, chat(text))
        assert (await cached_of(client, chat(texts[0])))[1] == 400
        assert (await cached_of(client, chat(texts[1])))[1] < 400
        assert worker.engine.cache.resident <= 64


async def test_no_caching() -> None:
    config = SimConfig(time_scale=0, enable_prefix_caching=False, enable_prompt_tokens_details=True, models=("base",))
    async with SimWorker(config) as worker, httpx.AsyncClient(base_url=worker.url) as client:
        for _ in range(2):
            assert (await cached_of(client, chat(TEXT * 20)))[1] == 0
        text = (await client.get("/metrics")).text
        assert 'enable_prefix_caching="False"' in text
        assert 'vllm:prefix_cache_queries_total{model_name="base",engine="0"} 0.0' in text


async def test_time_comes_from_uncached_tokens(worker: SimWorker, client: httpx.AsyncClient) -> None:
    for text in (TEXT * 20, TEXT * 20 + "and one more turn"):
        await client.post("/v1/chat/completions", json=chat(text))
    cold, warm = worker.calls
    assert cold.prompt_tokens is not None
    assert cold.prefill_seconds is not None
    assert cold.prefill_seconds == pytest.approx(cold.prompt_tokens / 2000)
    assert warm.prompt_tokens is not None
    assert warm.cached_tokens is not None
    assert warm.prefill_seconds is not None
    assert warm.prefill_seconds == pytest.approx((warm.prompt_tokens - warm.cached_tokens) / 2000)
    assert warm.prefill_seconds * 5 < cold.prefill_seconds


async def test_the_fixed_cost_mode_counts_bytes() -> None:
    async with (
        SimWorker(SimConfig(fixed_cost=True, models=("base",))) as worker,
        httpx.AsyncClient(base_url=worker.url) as client,
    ):
        body = json.dumps(chat(TEXT * 50)).encode()
        answer = await client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
        assert answer.json()["usage"]["prompt_tokens"] == len(body) // 4
        streamed = await client.post("/v1/chat/completions", json=chat(stream=True))
        assert events(streamed.text)[-1] == "[DONE]"
        assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code == 200
