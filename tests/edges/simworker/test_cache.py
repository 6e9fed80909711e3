"""The simulated worker's cache, as its answers show it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from loadtest.simworker import SimConfig, SimWorker
from tests.edges.simworker.routes_rig import TEXT, chat, events

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
