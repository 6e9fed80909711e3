"""Prefix bytes of prompts: a growing conversation keeps its hashes, in every form."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from router.prompt import Form
from tests.core.prompt_rig import (
    Json,
    chat_messages,
    check_growth,
    data_urls,
    few,
    names,
    read,
    samplings,
    styles,
    text_parts,
    texts,
    tools,
    turns,
)


@few
@given(
    st.lists(chat_messages, min_size=1, max_size=7),
    st.fixed_dictionaries(
        {},
        optional={
            "tools": tools,
            "documents": st.none(),
            "chat_template_kwargs": st.dictionaries(names, texts, max_size=1),
        },
    ),
    st.lists(samplings, min_size=1, max_size=3),
    styles,
)
def test_a_growing_chat_keeps_its_earlier_hashes(
    messages: list[Json], fixed: Json, samplings: list[Json], style: str
) -> None:
    check_growth(turns(Form.CHAT, fixed, "messages", messages, samplings, style))


anthropic_parts = st.one_of(
    text_parts,
    st.builds(lambda url: {"type": "image", "source": {"type": "base64", "data": url}}, data_urls),
    st.builds(lambda name, text: {"type": "tool_use", "id": name, "name": name, "input": {"q": text}}, names, texts),
    st.builds(lambda name, text: {"type": "tool_result", "tool_use_id": name, "content": text}, names, texts),
    st.builds(
        lambda name, parts: {"type": "tool_result", "tool_use_id": name, "content": parts},
        names,
        st.lists(text_parts, max_size=2),
    ),
    st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "s"}, texts),
    st.builds(lambda text: {"type": "redacted_thinking", "data": text}, texts),
)
anthropic_messages = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant"]),
        "content": texts | st.lists(anthropic_parts, min_size=1, max_size=3),
    }
)
MARK = {"cache_control": {"type": "ephemeral"}}


def with_marker(messages: list[Json]) -> list[Json]:
    """As clients do: the last part of the last message carries the marker, and so it is a list."""
    marked = copy.deepcopy(messages)
    last = marked[-1]
    if isinstance(last["content"], str):
        last["content"] = [{"type": "text", "text": last["content"]}]
    last["content"][-1].update(MARK)
    return marked


@few
@given(
    st.lists(anthropic_messages, min_size=1, max_size=6),
    st.lists(text_parts, min_size=1, max_size=2),
    st.none() | tools,
    st.lists(texts, min_size=1, max_size=3),
    styles,
)
def test_a_growing_anthropic_conversation_keeps_its_earlier_hashes(
    messages: list[Json], system: list[Json], tools: list[Json] | None, bills: list[str], style: str
) -> None:
    prompts = []
    for number in range(1, len(messages) + 1):
        bill = "x-anthropic-billing-header: " + bills[number % len(bills)]
        blocks = [{"type": "text", "text": bill}, *system[:-1], {**system[-1], **MARK}]
        body = {"model": "m", "max_tokens": number, "system": blocks, "messages": with_marker(messages[:number])}
        if tools is not None:
            body["tools"] = tools
        prompts.append(read(Form.MESSAGES, body, style))
    check_growth(prompts)


response_items = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "developer"]), "content": texts}),
    st.builds(
        lambda text: {
            "type": "message",
            "id": "msg",
            "role": "assistant",
            "content": [{"type": "output_text", "text": text}],
        },
        texts,
    ),
    st.builds(lambda url: {"role": "user", "content": [{"type": "input_image", "image_url": url}]}, data_urls),
    st.builds(
        lambda name, text: {"type": "function_call", "call_id": name, "name": name, "arguments": text, "status": None},
        names,
        texts,
    ),
    st.builds(lambda name, text: {"type": "function_call_output", "call_id": name, "output": text}, names, texts),
    st.builds(lambda text: {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}, texts),
    st.builds(lambda text: {"type": "web_search_call", "action": {"query": text}}, texts),
)


@few
@given(
    texts, st.lists(response_items, max_size=6), st.none() | texts, st.lists(samplings, min_size=1, max_size=3), styles
)
def test_a_growing_responses_conversation_keeps_its_earlier_hashes(
    question: str, items: list[Json], instructions: str | None, samplings: list[Json], style: str
) -> None:
    """It begins with a plain string, and goes on with a list."""
    fixed: Json = {"instructions": instructions, "tools": []}
    first = read(Form.RESPONSES, {"model": "m", **fixed, "input": question}, style)
    conversation = [{"role": "user", "content": question}, *items]
    check_growth([first, *turns(Form.RESPONSES, fixed, "input", conversation, samplings, style)])


@few
@given(st.lists(texts, min_size=1, max_size=5), styles)
def test_a_growing_completions_text_keeps_its_earlier_hashes(pieces: list[str], style: str) -> None:
    grown = ["".join(pieces[: number + 1]) for number in range(len(pieces))]
    check_growth([read(Form.COMPLETIONS, {"prompt": text}, style) for text in grown])
    check_growth([read(Form.COMPLETIONS, {"prompt": [text]}, style) for text in grown])


@few
@given(st.lists(st.integers(0, 150_000), min_size=1, max_size=600), st.lists(st.integers(1, 600), max_size=3), styles)
def test_growing_token_ids_keep_their_earlier_hashes_and_are_counted(
    tokens: list[int], ends: list[int], style: str
) -> None:
    lists = [tokens[:end] for end in sorted(ends)] + [tokens]
    for wrap in (lambda ids: ids, lambda ids: [ids]):
        prompts = [read(Form.COMPLETIONS, {"prompt": wrap(ids)}, style) for ids in lists]
        check_growth(prompts)
        assert [prompt.tokens for prompt in prompts] == [len(ids) for ids in lists]
