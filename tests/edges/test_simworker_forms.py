"""The other request forms of the simulated worker, and the real client library against it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from loadtest.simworker import SimConfig, SimWorker

TEXT = "the worker that has seen the beginning of a prompt answers its continuation much sooner than any other "


@pytest.fixture
async def worker() -> AsyncIterator[SimWorker]:
    config = SimConfig(models=("base",), time_scale=0.0, enable_prompt_tokens_details=True, api_key="secret")
    async with SimWorker(config) as made:
        yield made


@pytest.fixture
async def client(worker: SimWorker) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=worker.url, headers={"authorization": "Bearer secret"}) as made:
        yield made


@pytest.fixture
async def sdk(worker: SimWorker) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{worker.url}/v1", api_key="secret", max_retries=0) as made:
        yield made


def named(text: str) -> list[tuple[str, Any]]:
    """The (name, data) pairs of an event stream with names."""
    pairs = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        pairs.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return pairs


# -- the client library


async def test_sdk_chat(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(
        model="base", messages=[{"role": "user", "content": TEXT * 10}], max_completion_tokens=5
    )
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def test_sdk_chat_stream(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model="base",
        messages=[{"role": "user", "content": TEXT}],
        max_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    words = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert len("".join(words).split()) == 5
    assert chunks[-1].usage is not None


async def test_sdk_completions(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.completions.create(model="base", prompt=[TEXT, "other"], max_tokens=3)
    assert len(answer.choices) == 2
    stream = await sdk.completions.create(model="base", prompt=TEXT, max_tokens=3, stream=True)
    assert len([chunk async for chunk in stream]) == 3


async def test_sdk_responses(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.responses.create(model="base", input=TEXT * 10, max_output_tokens=5)
    assert len(answer.output_text.split()) == 5
    assert answer.usage is not None
    assert answer.usage.input_tokens_details.cached_tokens == 0
    kept = await sdk.responses.retrieve(answer.id)
    assert kept.output_text == answer.output_text
    more = await sdk.responses.create(model="base", input="go on", previous_response_id=answer.id)
    assert more.usage is not None
    assert more.usage.input_tokens_details.cached_tokens >= answer.usage.input_tokens // 16 * 16


async def test_sdk_responses_stream(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.responses.create(model="base", input=TEXT, max_output_tokens=5, stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].response.output_text == text


@pytest.mark.parametrize("form", ["float", "base64"])
async def test_sdk_embeddings(sdk: openai.AsyncOpenAI, form: Any) -> None:
    first = await sdk.embeddings.create(model="base", input=[TEXT, "other", TEXT], encoding_format=form)
    default = await sdk.embeddings.create(model="base", input=TEXT)
    assert len(first.data) == 3
    assert first.data[0].embedding == first.data[2].embedding != first.data[1].embedding
    assert len(default.data[0].embedding) == 8
    assert first.usage.prompt_tokens > 0


async def test_sdk_errors(sdk: openai.AsyncOpenAI, worker: SimWorker) -> None:
    with pytest.raises(openai.NotFoundError):
        await sdk.chat.completions.create(model="other", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.BadRequestError):
        await sdk.chat.completions.create(model="base", messages=[{"role": "user", "content": TEXT * 9000}])
    worker.faults.add({"action": {"kind": "stream_error", "unit": "event", "after": 3}})
    stream = await sdk.chat.completions.create(model="base", messages=[{"role": "user", "content": "x"}], stream=True)
    with pytest.raises(openai.APIError, match="scripted failure"):
        [chunk async for chunk in stream]


async def test_sdk_models_and_audio(sdk: openai.AsyncOpenAI, client: httpx.AsyncClient) -> None:
    assert [model.id async for model in sdk.models.list()] == ["base"]
    sound = ("a.wav", b"RIFF" + bytes(64_000), "audio/wav")
    heard = await sdk.audio.transcriptions.create(model="base", file=sound)
    assert heard.text
    stream = await sdk.audio.transcriptions.create(model="base", file=sound, stream=True)
    assert len([event async for event in stream]) == 16
    translated = await client.post("/v1/audio/translations", data={"model": "base"}, files={"file": sound})
    assert set(translated.json()) == {"text"}


# -- responses


async def test_responses_stream_has_no_done(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/responses", json={"input": TEXT, "stream": True, "max_output_tokens": 2})
    names = [name for name, _ in named(answer.text)]
    assert names[:2] == ["response.created", "response.in_progress"]
    assert names.count("response.output_text.delta") == 2
    assert names[-1] == "response.completed"
    assert "[DONE]" not in answer.text


async def test_a_background_response_can_be_cancelled() -> None:
    async with SimWorker(SimConfig()) as worker, httpx.AsyncClient(base_url=worker.url) as client:
        body = {"input": TEXT, "background": True, "max_output_tokens": 10_000}
        queued = (await client.post("/v1/responses", json=body)).json()
        assert queued["status"] == "queued"
        assert worker.engine.running == 1
        cancelled = (await client.post(f"/v1/responses/{queued['id']}/cancel")).json()
        assert cancelled["status"] == "cancelled"
        assert worker.engine.running == 0
        assert (await client.get(f"/v1/responses/{queued['id']}")).json()["status"] == "cancelled"


async def test_a_background_response_completes_without_its_client(worker: SimWorker, client: httpx.AsyncClient) -> None:
    queued = (await client.post("/v1/responses", json={"input": TEXT, "background": True})).json()
    for _ in range(100):
        answer = (await client.get(f"/v1/responses/{queued['id']}")).json()
        if answer["status"] == "completed":
            break
        await asyncio.sleep(0.01)
    assert answer["output"][0]["content"][0]["text"]


async def test_unknown_responses(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/responses/resp_no")).status_code == 404
    assert (await client.post("/v1/responses/resp_no/cancel")).status_code == 404
    body = {"input": "x", "previous_response_id": "resp_no"}
    assert (await client.post("/v1/responses", json=body)).status_code == 404
    assert (await client.get("/v1/responses/a/b/c")).json() == {"detail": "Not Found"}


async def test_responses_take_items(client: httpx.AsyncClient) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "function_call_output", "call_id": "c", "output": "42"},
    ]
    answer = await client.post("/v1/responses", json={"input": items, "instructions": "be brief", "tools": []})
    assert answer.status_code == 200
    assert answer.json()["usage"]["input_tokens"] > 10


# -- messages


async def test_messages(client: httpx.AsyncClient) -> None:
    body = {"model": "base", "max_tokens": 5, "messages": [{"role": "user", "content": TEXT * 10}], "system": "brief"}
    first = (await client.post("/v1/messages", json=body)).json()
    assert (first["type"], first["role"], first["stop_reason"]) == ("message", "assistant", "max_tokens")
    assert len(first["content"][0]["text"].split()) == 5
    second = (await client.post("/v1/messages", json=body)).json()["usage"]
    assert first["usage"]["cache_read_input_tokens"] == 0
    assert second["cache_read_input_tokens"] > 100
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    counted = (await client.post("/v1/messages/count_tokens", json=body)).json()["input_tokens"]
    assert sum(first["usage"][part] for part in parts) == sum(second[part] for part in parts) == counted


async def test_messages_stream(client: httpx.AsyncClient) -> None:
    body = {"max_tokens": 3, "messages": [{"role": "user", "content": TEXT}], "stream": True}
    got = named((await client.post("/v1/messages", json=body)).text)
    assert [name for name, _ in got] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert all(data["type"] == name for name, data in got)
    assert "cache_read_input_tokens" in got[-2][1]["usage"]


async def test_messages_hide_the_cache_without_the_switch() -> None:
    async with SimWorker(SimConfig(time_scale=0)) as worker, httpx.AsyncClient(base_url=worker.url) as client:
        body = {"max_tokens": 3, "messages": [{"role": "user", "content": TEXT}]}
        usage = (await client.post("/v1/messages", json=body)).json()["usage"]
        assert set(usage) == {"input_tokens", "output_tokens"}


# -- pooling and the tokenizer


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
async def test_score(client: httpx.AsyncClient, path: str) -> None:
    body = {"text_1": "question", "text_2": ["good", "bad", "good"]}
    data = (await client.post(path, json=body)).json()["data"]
    assert [entry["index"] for entry in data] == [0, 1, 2]
    assert data[0]["score"] == data[2]["score"] != data[1]["score"]
    assert (await client.post(path, json={"text_1": ["a", "b"], "text_2": ["c"]})).status_code == 400


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_rerank(client: httpx.AsyncClient, path: str) -> None:
    body = {"query": "question", "documents": ["a", "b", "c"], "top_n": 2}
    results = (await client.post(path, json=body)).json()["results"]
    assert len(results) == 2
    assert results[0]["relevance_score"] >= results[1]["relevance_score"]
    assert results[0]["document"]["text"] == "abc"[results[0]["index"]]


async def test_pooling_and_classify(client: httpx.AsyncClient) -> None:
    pooled = (await client.post("/pooling", json={"input": ["a", "b"]})).json()
    assert [entry["object"] for entry in pooled["data"]] == ["pooling", "pooling"]
    chat = {"messages": [{"role": "user", "content": "x"}]}
    assert (await client.post("/pooling", json=chat)).status_code == 200
    classified = (await client.post("/classify", json={"input": "a"})).json()["data"][0]
    assert sum(classified["probs"]) == pytest.approx(1)
    assert (await client.post("/classify", json={})).status_code == 400


async def test_tokenize_and_back(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/tokenize", json={"prompt": TEXT, "return_token_strs": True})).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 32768
    assert (await client.post("/detokenize", json={"tokens": answer["tokens"]})).json() == {"prompt": TEXT}
    chat = {"messages": [{"role": "user", "content": "x"}]}
    assert (await client.post("/tokenize", json=chat)).json()["count"] > 3
    assert (await client.post("/tokenize", json={})).status_code == 400


async def test_the_multipart_body_is_kept_as_it_came(worker: SimWorker, client: httpx.AsyncClient) -> None:
    body = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n\x00\r\n--\xff\r\n--B--\r\n'
    headers = {"content-type": 'multipart/form-data; boundary="B"'}
    answer = await client.post("/v1/audio/transcriptions", content=body, headers=headers)
    assert answer.json()["usage"] == {"type": "duration", "seconds": 1}
    assert worker.calls[-1].body == body
    for broken in (b"", b"--B\r\n\r\nx", b"--B--\r\n"):
        answer = await client.post("/v1/audio/transcriptions", content=broken, headers=headers)
        assert answer.status_code == 400
