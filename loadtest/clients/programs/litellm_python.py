"""LiteLLM as a library."""

from __future__ import annotations

from typing import Any

import litellm

from loadtest.clients.programs.saying import KEY, MODEL, TURNS, URL, check, question, refusal

PLACE: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": KEY}
HELLO = [{"role": "user", "content": "Hello there."}]


def chat() -> str:
    made = litellm.completion(messages=HELLO, max_tokens=8, **PLACE)
    return f"{made.usage.completion_tokens} tokens, {made.choices[0].finish_reason}"


def stream() -> str:
    options = {"include_usage": True}
    chunks = list(litellm.completion(messages=HELLO, max_tokens=8, stream=True, stream_options=options, **PLACE))
    assert chunks[-1].usage is not None
    return f"{len(chunks)} chunks, usage at the end"


def conversation() -> str:
    messages: list[Any] = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": question(turn)})
        made = litellm.completion(messages=messages, max_tokens=8, **PLACE)
        messages.append({"role": "assistant", "content": made.choices[0].message.content})
    return f"{made.usage.prompt_tokens_details.cached_tokens} tokens cached in the last turn"


def main() -> None:
    """Everything, the conversation last."""
    check("chat", chat)
    check("stream", stream)
    check("embeddings", lambda: f"{len(litellm.embedding(input=['one', 'two'], **PLACE).data)} vectors")
    check(
        "unknown model",
        lambda: refusal(
            lambda: litellm.completion(messages=HELLO, **{**PLACE, "model": "openai/nobody"}), litellm.NotFoundError
        ),
    )
    check("conversation", conversation)


if __name__ == "__main__":
    main()
