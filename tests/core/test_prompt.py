"""Prefix bytes of prompts: what a growing conversation keeps, what counts and what does not, in every form."""

from __future__ import annotations

import base64
import copy
import json
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.hashing import HORIZON_BYTES, block_hashes, boundaries, chain_start
from router.prompt import MEDIA_BYTES, Form, Prompt, read_prompt

Json = dict[str, Any]
few = settings(max_examples=50, deadline=None)
START = chain_start(b"", "", "m", "")

# Texts of up to some thousands of bytes from small draws, with quotes, line breaks, controls and other planes.
words = st.text(min_size=1, max_size=12) | st.sampled_from(['"quoted" \\ ', "line\nbreak\t", "é😀\u2028", "\x00\x1f"])
texts = st.builds(lambda word, times: word * times, words, st.integers(1, 120))
names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=12)


def encode(body: Json, style: str = "compact") -> bytes:
    match style:
        case "compact":
            text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        case "ascii":
            text = json.dumps(body)
        case _:
            text = json.dumps(body, ensure_ascii=False, indent=2)
    return text.encode("utf-8")


def read(form: Form, body: Json, style: str = "compact") -> Prompt:
    return read_prompt(form, encode(body, style))


def hashes(prompt: Prompt) -> list[int]:
    return block_hashes(prompt.prefix, START)


def common(first: Sequence[int], second: Sequence[int]) -> int:
    shared = 0
    for mine, theirs in zip(first, second, strict=False):
        if mine != theirs:
            break
        shared += 1
    return shared


def check_growth(prompts: list[Prompt]) -> None:
    """Every prompt adds bytes to the one before, and keeps all its hashes."""
    for earlier, later in pairwise(prompts):
        assert later.prefix.startswith(earlier.prefix)
        assert hashes(later)[: len(hashes(earlier))] == hashes(earlier)


# -- conversations ---------------------------------------------------------------------------------------------------

data_urls = st.binary(min_size=1, max_size=60).map(
    lambda data: "data:image/png;base64," + base64.b64encode(data).decode()
)
text_parts = st.builds(lambda text: {"type": "text", "text": text}, texts)
media_parts = st.one_of(
    st.builds(lambda url: {"type": "image_url", "image_url": {"url": url}}, data_urls),
    st.builds(lambda url: {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}}, data_urls),
    st.builds(lambda url: {"type": "video_url", "text": None, "video_url": {"url": url}}, data_urls),
    st.builds(lambda url: {"type": "image_embeds", "image_embeds": url}, data_urls),
    st.builds(lambda url: {"type": "file", "file": {"file_data": url}}, data_urls),
)
contents = st.one_of(
    texts, st.none(), st.lists(st.one_of(text_parts, media_parts), max_size=4), st.lists(texts, max_size=3)
)
tool_calls = st.lists(
    st.builds(
        lambda name, text: {"id": "call_" + name, "type": "function", "function": {"name": name, "arguments": text}},
        names,
        texts,
    ),
    max_size=2,
)
optional = {
    "name": st.none() | names,
    "reasoning": st.none() | texts,
    "reasoning_content": st.none() | texts,
    "refusal": st.none(),
}
chat_messages = st.one_of(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "developer", "user", "assistant", "critic", "écrivain"]),
            "content": contents,
        },
        optional=optional,
    ),
    st.fixed_dictionaries({"role": st.just("assistant"), "tool_calls": tool_calls}, optional={"content": contents}),
    st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": names, "content": contents}),
    st.fixed_dictionaries({"content": texts, "role": st.just("user")}),
)
tools = st.lists(
    st.builds(
        lambda name, text: {"type": "function", "function": {"name": name, "description": text, "parameters": {}}},
        names,
        texts,
    ),
    max_size=3,
)
styles = st.sampled_from(["compact", "ascii", "indented"])
# What may change from turn to turn without changing the prompt.
samplings = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0, 2) | st.none(),
        "top_p": st.floats(0, 1),
        "seed": st.integers(),
        "n": st.integers(1, 4),
        "stop": st.lists(texts, max_size=2),
        "max_tokens": st.integers(0, 1 << 20),
        "stream": st.booleans(),
        "stream_options": st.none() | st.builds(lambda usage: {"include_usage": usage}, st.booleans()),
        "logit_bias": st.dictionaries(names, st.integers(), max_size=2),
        "user": texts,
        "metadata": st.dictionaries(names, texts, max_size=2),
        "response_format": st.builds(lambda name: {"type": name}, names),
        "top_k": st.integers(),
        "priority": st.integers(),
        "unknown_vendor_field": st.recursive(
            st.none() | texts, lambda inner: st.lists(inner, max_size=2), max_leaves=4
        ),
    },
)


def turns(form: Form, fixed: Json, key: str, items: list[Any], samplings: list[Json], style: str) -> list[Prompt]:
    """The same conversation with one item more each time, and other sampling fields before and behind it."""
    prompts = []
    for number in range(1, len(items) + 1):
        sampling = samplings[number % len(samplings)]
        body = {**sampling, "model": "m", **fixed, key: items[:number]}
        if number % 2:
            body = dict(reversed(body.items()))
        prompts.append(read(form, body, style))
    return prompts


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


# -- images and sounds -----------------------------------------------------------------------------------------------

FIVE_MEGABYTES = base64.b64encode(bytes(range(256)) * (5 << 20 >> 8)).decode()


def media(kind: str, data: str) -> tuple[Form, Json]:
    """A body whose second message holds the data, in the way of each form."""
    question: Json = {"role": "user", "content": "what is this? " + "x" * 1200}
    chat_parts: dict[str, Json] = {
        "image": {"type": "image_url", "image_url": {"url": data}},
        "bare image": {"type": "image_url", "image_url": data},
        "audio": {"type": "input_audio", "input_audio": {"data": data}},
        "audio url": {"type": "audio_url", "audio_url": {"url": data}},
        "video": {"type": "video_url", "video_url": {"url": data}},
        "embeddings": {"type": "image_embeds", "image_embeds": data},
        "file": {"type": "file", "file": {"file_data": data}},
    }
    if kind in chat_parts:
        return Form.CHAT, {"messages": [question, {"role": "user", "content": [chat_parts[kind]]}]}
    if kind == "source":
        part = {"type": "image", "source": {"type": "base64", "data": data}}
        return Form.MESSAGES, {"messages": [question, {"role": "user", "content": [part]}]}
    if kind == "tool result":
        image = {"type": "image", "source": {"type": "base64", "data": data}}
        result: Json = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
        return Form.MESSAGES, {"messages": [question, {"role": "user", "content": [result]}]}
    if kind == "prompt_embeds":
        return Form.COMPLETIONS, {"prompt_embeds": data, "prompt": "x" * 1200}
    items: dict[str, Json] = {
        "input image": {"role": "user", "content": [{"type": "input_image", "image_url": data}]},
        "input file": {"role": "user", "content": [{"type": "input_file", "file_data": data}]},
        "call output": {"type": "function_call_output", "output": [{"type": "input_image", "image_url": data}]},
        "screenshot": {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": data}},
        "generated": {"type": "image_generation_call", "result": data},
    }
    return Form.RESPONSES, {"input": [question, items[kind]]}


MEDIA = ["image", "bare image", "audio", "audio url", "video", "embeddings", "file", "source", "tool result"]
MEDIA += ["prompt_embeds", "input image", "input file", "call output", "screenshot", "generated"]


@pytest.mark.parametrize("kind", MEDIA)
def test_media_enter_as_digests(kind: str) -> None:
    form, body = media(kind, "data:image/png;base64,AAAA")
    _, changed = media(kind, "data:image/png;base64,AAAB")
    first, again, other = (read(form, each) for each in (body, copy.deepcopy(body), changed))
    assert first.prefix == again.prefix != other.prefix
    assert b"base64" not in first.prefix
    assert len(first.prefix) < 1400
    assert first.size <= len(first.prefix) + MEDIA_BYTES


@pytest.mark.parametrize("kind", MEDIA)
def test_a_large_image_grows_neither_the_prefix_nor_the_size(kind: str) -> None:
    form, body = media(kind, FIVE_MEGABYTES)
    prompt = read(form, body)
    assert len(prompt.prefix) < 1400
    assert prompt.size < 1400 + MEDIA_BYTES


def test_a_changed_image_leaves_the_hashes_before_it_alone() -> None:
    def prompt(image: str) -> Prompt:
        part = {"type": "image_url", "image_url": {"url": image}}
        messages = [{"role": "user", "content": "x" * 2000}, {"role": "user", "content": [part]}]
        return read(Form.CHAT, {"messages": [*messages, {"role": "user", "content": "y" * 2000}]})

    first, second = hashes(prompt("AAAA")), hashes(prompt("BBBB"))
    assert len(first) == len(second) == 7
    assert common(first, second) == 3
    assert not set(first[3:]) & set(second[3:])


# -- sizes -----------------------------------------------------------------------------------------------------------


@few
@given(st.lists(chat_messages, max_size=4), tools)
def test_the_size_is_that_of_the_canonical_bytes_and_the_media(messages: list[Json], tools: list[Json]) -> None:
    prompt = read(Form.CHAT, {"messages": messages, "tools": tools})
    if len(prompt.prefix) < HORIZON_BYTES:
        assert len(prompt.prefix) <= prompt.size <= len(prompt.prefix) + 4 * 4 * MEDIA_BYTES
    else:
        assert prompt.size >= HORIZON_BYTES


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
