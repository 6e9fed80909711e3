"""The anthropic client for Python, on `/v1/messages`."""

from __future__ import annotations

from typing import Any

import anthropic

from loadtest.clients.programs.saying import KEY, MODEL, TURNS, URL, check, question, refusal

client = anthropic.Anthropic(base_url=URL, api_key=KEY)
HELLO: list[Any] = [{"role": "user", "content": "Hello there."}]


def messages() -> str:
    made = client.messages.create(model=MODEL, max_tokens=8, system="Be brief.", messages=HELLO)
    return f"{made.usage.output_tokens} tokens, {made.stop_reason}"


def stream() -> str:
    with client.messages.stream(model=MODEL, max_tokens=8, messages=HELLO) as events:
        kinds = [event.type for event in events]
        final = events.get_final_message()
    assert kinds[-1] == "message_stop"
    return f"{len(kinds)} events, {final.usage.output_tokens} tokens"


def count() -> str:
    return f"{client.messages.count_tokens(model=MODEL, messages=HELLO).input_tokens} tokens"


def conversation() -> str:
    said: list[Any] = []
    cached = 0
    for turn in range(TURNS):
        said.append({"role": "user", "content": question(turn)})
        made = client.messages.create(model=MODEL, max_tokens=8, messages=said)
        said.append({"role": "assistant", "content": made.content})
        cached = made.usage.cache_read_input_tokens or 0
    return f"{cached} tokens cached in the last turn"


def main() -> None:
    """Everything, the conversation last."""
    check("messages", messages)
    check("stream", stream)
    check("count tokens", count)
    check(
        "unknown model",
        lambda: refusal(
            lambda: client.messages.create(model="nobody", max_tokens=8, messages=HELLO), anthropic.NotFoundError
        ),
    )
    check("conversation", conversation)


if __name__ == "__main__":
    main()
