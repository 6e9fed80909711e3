"""The openai client for Python."""

from __future__ import annotations

from typing import Any

import openai

from loadtest.clients.programs.saying import KEY, MODEL, TURNS, URL, check, question, refusal

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY)
HELLO: list[Any] = [{"role": "user", "content": "Hello there."}]


def chat() -> str:
    made = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=8)
    assert made.usage is not None
    return f"{made.usage.completion_tokens} tokens, {made.choices[0].finish_reason}"


def stream() -> str:
    events = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=8, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(events)
    assert chunks[-1].usage is not None
    return f"{len(chunks)} events, usage at the end"


def responses() -> str:
    made = client.responses.create(model=MODEL, input="Hello there.", max_output_tokens=8)
    again = client.responses.create(model=MODEL, input="Go on.", previous_response_id=made.id, max_output_tokens=8)
    return f"{made.status}, continued: {again.status}"


def embeddings() -> str:
    made = client.embeddings.create(model=MODEL, input=["one", "two"])
    return f"{len(made.data)} vectors"


def headers() -> str:
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO, max_tokens=2)
    return raw.headers["x-router-decision"].partition(";")[0]


def conversation() -> str:
    messages: list[Any] = []
    cached = 0
    for turn in range(TURNS):
        messages.append({"role": "user", "content": question(turn)})
        made = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=8)
        messages.append({"role": "assistant", "content": made.choices[0].message.content})
        if made.usage is not None and made.usage.prompt_tokens_details is not None:
            cached = made.usage.prompt_tokens_details.cached_tokens or 0
    return f"{cached} tokens cached in the last turn"


def main() -> None:
    """Everything, the conversation last."""
    check("models", lambda: next(model.id for model in client.models.list()))
    check("chat", chat)
    check("stream", stream)
    check(
        "completions", lambda: client.completions.create(model=MODEL, prompt="Once", max_tokens=4).choices[0].text[:20]
    )
    check("responses", responses)
    check("embeddings", embeddings)
    check("headers", headers)
    check(
        "unknown model",
        lambda: refusal(lambda: client.chat.completions.create(model="nobody", messages=HELLO), openai.NotFoundError),
    )
    check("conversation", conversation)


if __name__ == "__main__":
    main()
