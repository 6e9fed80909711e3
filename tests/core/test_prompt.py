"""Prefix bytes of prompts: how far two share, what counts and what does not, and sizes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.hashing import HORIZON_BYTES, boundaries
from router.prompt import MEDIA_BYTES, Form, read_prompt
from tests.core.prompt_rig import (
    FIVE_MEGABYTES,
    Json,
    chat_messages,
    common,
    few,
    hashes,
    read,
    samplings,
    styles,
    text_parts,
    texts,
    tools,
)

# -- how far two prompts share ---------------------------------------------------------------------------------------


@few
@given(
    st.lists(chat_messages, min_size=1, max_size=5),
    st.lists(chat_messages, max_size=3),
    st.lists(chat_messages, max_size=3),
)
def test_a_partially_shared_prompt_matches_exactly_as_far_as_it_shares(
    shared: list[Json], mine: list[Json], theirs: list[Json]
) -> None:
    both = read(Form.CHAT, {"messages": shared})
    first, second = (read(Form.CHAT, {"messages": shared + rest}) for rest in (mine, theirs))
    bytes_shared = common(first.prefix, second.prefix)
    assert bytes_shared >= len(both.prefix)
    assert common(hashes(first), hashes(second)) == len(boundaries(bytes_shared))


def chat(**fields: Any) -> Json:
    system = {"role": "system", "content": "s" * 600}
    return {"messages": [system, {"role": "user", "content": "question", **fields}, {"role": "user", "content": "go"}]}


def part(**fields: Any) -> Json:
    return chat(content=[fields])


def item(**fields: Any) -> Json:
    return {"input": [fields]}


RENDERED: list[tuple[Form, Json, Json]] = [
    (Form.CHAT, chat(role="user"), chat(role="tool")),
    (Form.CHAT, chat(content="a"), chat(content="b")),
    (Form.CHAT, chat(content="a"), chat(content=None)),
    (Form.CHAT, chat(content=["a", "b"]), chat(content=["a", "c"])),
    (Form.CHAT, chat(content={"odd": 1}), chat(content={"odd": 2})),
    (Form.CHAT, chat(content=[1]), chat(content=[2])),
    (Form.CHAT, part(type="new", data=1), part(type="new", data=2)),
    (Form.CHAT, part(type="new", data=1), part(type="new", other=1)),
    (Form.CHAT, chat(name="a"), chat(name="b")),
    (Form.CHAT, chat(tools=[{"name": "a"}]), chat(tools=[{"name": "b"}])),
    (Form.CHAT, chat(tool_call_id="a"), chat(tool_call_id="b")),
    (Form.CHAT, chat(tool_calls=[{"id": "a"}]), chat(tool_calls=[{"id": "b"}])),
    (Form.CHAT, chat(reasoning="a"), chat(reasoning="b")),
    (Form.CHAT, chat(reasoning_content="a"), chat(reasoning_content="b")),
    (Form.CHAT, chat() | {"tools": [{"name": "a"}]}, chat() | {"tools": [{"name": "b"}]}),
    (Form.CHAT, chat() | {"documents": ["a"]}, chat() | {"documents": ["b"]}),
    (Form.CHAT, chat() | {"chat_template": "a"}, chat() | {"chat_template": "b"}),
    (Form.CHAT, chat() | {"chat_template_kwargs": {"a": 1}}, chat() | {"chat_template_kwargs": {"a": 2}}),
    (Form.CHAT, chat() | {"reasoning_effort": "low"}, chat() | {"reasoning_effort": "high"}),
    (Form.MESSAGES, chat() | {"system": "a"}, chat() | {"system": "b"}),
    (Form.MESSAGES, part(type="tool_result", content=["a"]), part(type="tool_result", content=["b"])),
    (Form.MESSAGES, part(type="tool_result", content="a"), part(type="tool_result", content="b")),
    (Form.MESSAGES, part(content=[{"content": ["a"]}]), part(content=[{"content": ["b"]}])),
    (
        Form.MESSAGES,
        part(content=[{"tool_use_id": "t", "content": ["a"]}]),
        part(content=[{"tool_use_id": "t", "content": ["b"]}]),
    ),
    (Form.MESSAGES, part(type="tool_use", input={"a": 1}), part(type="tool_use", input={"a": 2})),
    (Form.MESSAGES, part(type="thinking", thinking="a"), part(type="thinking", thinking="b")),
    (Form.RESPONSES, {"input": "x", "instructions": "a"}, {"input": "x", "instructions": "b"}),
    (Form.RESPONSES, {"input": "a"}, {"input": "b"}),
    (Form.RESPONSES, item(type="mcp_call", output="a"), item(type="mcp_call", output="b")),
    (Form.RESPONSES, item(type="new", data="a"), item(type="new", data="b")),
    (Form.RESPONSES, item(call_id="a"), item(call_id="b")),
    (Form.RESPONSES, item(arguments="a"), item(arguments="b")),
    (Form.RESPONSES, item(summary=["a"]), item(summary=["b"])),
    (Form.COMPLETIONS, {"prompt": [[1], [2]]}, {"prompt": [[1], [3]]}),
    (Form.COMPLETIONS, {"prompt": ["a", "b"]}, {"prompt": ["a", "c"]}),
    (Form.COMPLETIONS, {"prompt_embeds": "aa"}, {"prompt_embeds": "bb"}),
]


@pytest.mark.parametrize(("form", "first", "second"), RENDERED)
def test_whatever_the_engine_renders_counts(form: Form, first: Json, second: Json) -> None:
    assert read(form, first).prefix != read(form, second).prefix


def test_a_difference_in_one_message_leaves_those_before_it_shared() -> None:
    first, second = read(Form.CHAT, chat(content="a")), read(Form.CHAT, chat(content="b"))
    before = read(Form.CHAT, {"messages": chat()["messages"][:1]})
    assert common(first.prefix, second.prefix) > len(before.prefix)
    assert common(hashes(first), hashes(second)) == 1


# -- what makes no difference ----------------------------------------------------------------------------------------


@few
@given(texts, styles)
def test_a_string_and_a_list_with_one_text_part_are_the_same(text: str, style: str) -> None:
    def both(make: Callable[[Any], Json], form: Form, kind: str = "text") -> None:
        plain, listed = read(form, make(text), style), read(form, make([{"type": kind, "text": text}]), style)
        assert plain.prefix == listed.prefix
        assert plain.size == listed.size

    both(lambda content: {"messages": [{"role": "user", "content": content}]}, Form.CHAT)
    both(lambda content: {"messages": [{"role": "user", "content": content}]}, Form.MESSAGES)
    both(lambda content: {"system": content, "messages": []}, Form.MESSAGES)
    both(lambda content: {"input": [{"role": "user", "content": content}]}, Form.RESPONSES, "input_text")
    plain, listed = (read(Form.COMPLETIONS, {"prompt": prompt}, style) for prompt in (text, [text]))
    assert plain.prefix == listed.prefix


@pytest.mark.parametrize("size", [0, 1, 1021, 1022, 1023, 1024, 5000])
def test_texts_of_any_size_are_read_alike(size: int) -> None:
    """Small ones are copied and large ones are not."""
    text = "x" * size
    for content in (text, [{"type": "text", "text": text}], [text]):
        prompt = read(Form.CHAT, {"messages": [{"role": "critic", "content": content}]})
        assert prompt.prefix == b"\x01critic\x02" + text.encode()
        assert prompt.size == len(prompt.prefix)
    header = {"type": "text", "text": "x-anthropic-billing-header" + text}
    billed = read(Form.MESSAGES, {"system": [header, {"type": "text", "text": text}], "messages": []})
    assert billed.prefix == b"\x01system\x02" + text.encode()


@few
@given(texts, texts)
def test_text_parts_stand_on_lines_of_their_own(first: str, second: str) -> None:
    parts = [{"type": "text", "text": first}, {"type": "text", "text": second}]
    prompts = [
        read(Form.CHAT, {"messages": [{"role": "user", "content": content}]})
        for content in (parts, f"{first}\n{second}", [first, second])
    ]
    assert prompts[0].prefix == prompts[1].prefix == prompts[2].prefix


@few
@given(st.lists(chat_messages, min_size=1, max_size=4), samplings, samplings)
def test_sampling_fields_never_matter(messages: list[Json], first: Json, second: Json) -> None:
    prompts = [read(Form.CHAT, {**sampling, "model": "m", "messages": messages}) for sampling in (first, second)]
    assert prompts[0].prefix == prompts[1].prefix
    assert prompts[0].size == prompts[1].size


@few
@given(st.lists(chat_messages, min_size=1, max_size=4))
def test_fields_that_are_null_are_as_if_absent(messages: list[Json]) -> None:
    nulls = dict.fromkeys(["name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content", "content", "audio"])
    padded = [{**nulls, **message} for message in messages]
    body = {"tools": None, "documents": None, "chat_template": None, "chat_template_kwargs": None, "messages": padded}
    assert read(Form.CHAT, body).prefix == read(Form.CHAT, {"messages": messages}).prefix


def test_null_fields_of_parts_are_as_if_absent() -> None:
    image: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    padded = {**dict.fromkeys(["text", "refusal", "input_audio", "source", "file", "content"]), **image}
    both: list[list[Json]] = [
        [{"type": "text", "text": "x"}, image],
        [{"type": "text", "text": "x", "image_url": None}, padded],
    ]
    plain, null = (read(Form.CHAT, {"messages": [{"role": "user", "content": parts}]}) for parts in both)
    assert (plain.prefix, plain.size) == (null.prefix, null.size)


def test_a_message_may_have_no_role() -> None:
    absent, null = (read(Form.CHAT, {"messages": [m]}) for m in ({"content": "x"}, {"role": None, "content": "x"}))
    assert absent.prefix == null.prefix != b""


@few
@given(texts, st.lists(text_parts, min_size=1, max_size=3), st.integers(0, 3))
def test_billing_header_blocks_are_skipped(bill: str, system: list[Json], at: int) -> None:
    billed = [*system[:at], {"type": "text", "text": "x-anthropic-billing-header" + bill}, *system[at:]]
    first, second = (read(Form.MESSAGES, {"system": blocks, "messages": []}) for blocks in (system, billed))
    assert first.prefix == second.prefix
    assert first.size == second.size


def test_only_system_blocks_can_be_billing_headers() -> None:
    bill = {"type": "text", "text": "x-anthropic-billing-header: 1"}
    for form in (Form.CHAT, Form.MESSAGES):
        assert b"billing" in read(form, {"messages": [{"role": "user", "content": [bill]}]}).prefix
    assert b"billing" in read(Form.CHAT, {"messages": [{"role": "system", "content": [bill]}]}).prefix
    assert b"billing" in read(Form.MESSAGES, {"system": bill["text"], "messages": []}).prefix


# -- sizes -----------------------------------------------------------------------------------------------------------


@few
@given(st.lists(chat_messages, max_size=4), tools)
def test_the_size_is_that_of_the_canonical_bytes_and_the_media(messages: list[Json], tools: list[Json]) -> None:
    prompt = read(Form.CHAT, {"messages": messages, "tools": tools})
    if len(prompt.prefix) < HORIZON_BYTES:
        assert len(prompt.prefix) <= prompt.size <= len(prompt.prefix) + 4 * 4 * MEDIA_BYTES
    else:
        assert prompt.size >= HORIZON_BYTES


@pytest.mark.parametrize("before", [0, HORIZON_BYTES])
def test_something_unknown_counts_with_its_bytes_to_a_bound(before: int) -> None:
    """Within the horizon, where its digest enters too, and beyond."""

    def size(odd: Json) -> int:
        beginning = {"role": "user", "content": "x" * before}
        return read(Form.CHAT, {"messages": [beginning, {"role": "user", "content": [odd]}]}).size

    assert size({"new": "y" * 100}) - size({"new": "y" * 50}) == 50
    assert size({"new": "y" * 2 * MEDIA_BYTES}) == size({"new": "y" * 9 * MEDIA_BYTES})


def test_beyond_the_horizon_only_the_size_grows() -> None:
    messages = [{"role": "user", "content": "x" * 100_000} for _ in range(100)]
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": FIVE_MEGABYTES}}]}
    listed = {"role": "user", "content": [{"type": "text", "text": "x" * 5000}] * 2}
    call = {"role": "assistant", "tool_calls": [{"id": "t", "function": {"arguments": "x" * 5000}}]}
    plain = read(Form.CHAT, {"messages": messages})
    assert 10_000_000 <= plain.size <= 10_001_000
    assert len(plain.prefix) < plain.size
    for more, least, most in ((image, MEDIA_BYTES, MEDIA_BYTES + 100), (listed, 10_000, 10_100), (call, 5_000, 5_100)):
        grown = read(Form.CHAT, {"messages": [*messages, more]})
        assert grown.prefix == plain.prefix
        assert least <= grown.size - plain.size <= most
    items = [*messages, {"type": "function_call_output", "call_id": "c", "output": "x" * 5000}]
    assert 5_000 <= read(Form.RESPONSES, {"input": items}).size - plain.size <= 5_100


def test_the_horizon_cuts_the_prefix_exactly() -> None:
    for size in (1 << 20, HORIZON_BYTES - 10, HORIZON_BYTES, HORIZON_BYTES + 10, 9 << 20):
        prompt = read(Form.COMPLETIONS, {"prompt": "x" * size})
        assert len(prompt.prefix) == min(HORIZON_BYTES, size + 1)
        assert prompt.size == size + 1


def test_a_mass_of_tiny_messages_reaches_the_horizon_early_and_grows_all_the_same() -> None:
    messages = [{"role": "user", "name": "me", "content": "word"}] * 5_000
    before, at, after = (read(Form.CHAT, {"messages": messages * times}) for times in (1, 2, 3))
    assert len(before.prefix) == before.size
    assert before.size < len(at.prefix) < at.size
    assert at.prefix.startswith(before.prefix)
    assert after.prefix == at.prefix


def test_a_deep_conversation_keeps_every_hash_when_it_goes_on() -> None:
    """Over the whole prompt, not only where blocks are small: each turn only adds hashes."""
    rng = random.Random(1)
    said: list[Json] = [{"role": "system", "content": "rules " * 9_000}]
    seen: list[int] = []
    for turn in range(24):
        call = [{"id": f"c{turn}", "type": "function", "function": {"name": "look", "arguments": '{"at": "x"}'}}]
        said.append({"role": "user", "content": f"{turn} " + "".join(rng.choices('wor d"\n\\é', k=2_000))})
        said.append({"role": "assistant", "content": None, "tool_calls": call})
        said.append({"role": "tool", "tool_call_id": f"c{turn}", "content": [{"type": "text", "text": "y" * 9_000}]})
        found = hashes(read(Form.CHAT, {"messages": said}))
        assert found[: len(seen)] == seen
        assert len(found) == len(boundaries(len(read(Form.CHAT, {"messages": said}).prefix)))
        seen = found
    assert len(seen) > 64 + 3 * 8


@pytest.mark.parametrize(
    ("fields", "incomparable"),
    [
        ('"prompt": "one, \\"two\\""', False),
        ('"prompt": ["one"]', False),
        ('"prompt": [ "one", "two"]', True),
        ('"prompt": [1, 2, 3]', False),
        ('"prompt": [[1, 2, 3]]', False),
        ('"prompt": [[1, 2], [3]]', True),
        ('"prompt": []', False),
        ('"prompt": "one", "echo": true', False),
        ('"prompt": "one", "echo": true, "logprobs": 1', True),
        ('"prompt": "one", "echo": false, "logprobs": 1', False),
        ('"prompt": "one", "prompt_logprobs": 0', True),
        ('"prompt": "one", "prompt_logprobs": null', False),
    ],
)
def test_requests_whose_usage_says_nothing_of_their_prefix_are_seen(fields: str, incomparable: bool) -> None:
    body = f'{{"model": "m", {fields}}}'.encode()
    assert read_prompt(Form.COMPLETIONS, body).incomparable == incomparable


def test_log_probabilities_of_a_chat_prompt_are_seen() -> None:
    body = b'{"model": "m", "messages": [], "prompt_logprobs": 1}'
    assert read_prompt(Form.CHAT, body).incomparable
