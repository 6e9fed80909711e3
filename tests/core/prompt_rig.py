"""Prompts for tests: bodies from small draws, read and hashed, and how far two of them share."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from router.hashing import block_hashes, chain_start
from router.prompt import Form, Prompt, read_prompt

Json = dict[str, Any]
few = settings(max_examples=50)
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


FIVE_MEGABYTES = base64.b64encode(bytes(range(256)) * (5 << 20 >> 8)).decode()
