"""The simulated worker's chats and completions, in one piece and as streams."""

from __future__ import annotations

import httpx
import pytest

from loadtest.simworker import SimConfig, SimWorker
from tests.edges.simworker.routes_rig import TEXT, chat, events

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
