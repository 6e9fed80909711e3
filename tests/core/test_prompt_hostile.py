"""What read_prompt makes of odd and hostile bodies."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.errors import BadRequest
from router.prompt import Form
from router.prompt.reader import FLAT_OBJECTS
from tests.core.prompt_hostile_rig import JSON_FORMS, PROMPT_FORMS, fuzz, read, read_any, seconds

# -- what can't be routed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", JSON_FORMS)
@pytest.mark.parametrize(
    "body",
    [b"", b" ", b"{", b"[]", b"null", b'"x"', b"3", b"{}x", b"{'model':1}", b"\xff\xfe{\x00}\x00", b'{"model":"m",}'],
)
def test_what_is_no_json_object_is_refused(form: Form, body: bytes) -> None:
    with pytest.raises(BadRequest):
        read(form, body)


@pytest.mark.parametrize("form", JSON_FORMS)
@pytest.mark.parametrize("model", [b"3", b"true", b"[]", b"{}", b'["m"]', b'"\\ud800"', b'"\xff"'])
def test_a_model_that_is_no_text_is_refused(form: Form, model: bytes) -> None:
    with pytest.raises(BadRequest):
        read(form, b'{"model":' + model + b"}")


@pytest.mark.parametrize("form", JSON_FORMS)
def test_the_last_of_duplicate_keys_counts_as_it_does_for_the_engine(form: Form) -> None:
    body = b'{"model":"a","stream":true,"max_tokens":3,"model":"b","stream":false,"max_tokens":4}'
    prompt = read(form, body)
    assert (prompt.model, prompt.stream, prompt.max_tokens) == ("b", False, 4) == tuple(json.loads(body).values())


def test_the_last_of_two_prompts_counts() -> None:
    twice = b'{"messages":[{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b","content":"c"}]}'
    assert read(Form.CHAT, twice).prefix == read(Form.CHAT, {"messages": [{"role": "user", "content": "c"}]}).prefix


@pytest.mark.parametrize("form", PROMPT_FORMS)
@pytest.mark.parametrize("odd", [3, "x", {"a": 1}, [3], ["x"], [[]], [None], [{"role": 3}], [{"role": ["user"]}]])
def test_an_odd_prompt_is_left_to_the_worker(form: Form, odd: object) -> None:
    body = {"model": "m", "messages": odd, "input": odd, "prompt": odd, "system": odd, "tools": odd, "max_tokens": 3}
    prompt = read(form, body)
    assert (prompt.model, prompt.max_tokens) == ("m", 3)


@pytest.mark.parametrize("form", JSON_FORMS)
def test_a_byte_order_mark_is_no_hindrance(form: Form) -> None:
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x"}
    ).encode()
    marked = read(form, b"\xef\xbb\xbf" + body)
    assert (marked.model, marked.prefix) == ("m", read(form, body).prefix)
    with pytest.raises(BadRequest):
        read(form, b"\xef\xbb\xbf" * 1_000_000 + body)


def test_a_refusal_says_where_and_not_what() -> None:
    with pytest.raises(BadRequest) as caught:
        read(Form.CHAT, {"model": {"secret": "canary"}, "messages": [{"role": "user", "content": "canary"}]})
    assert "$.model" in caught.value.message
    assert "canary" not in caught.value.message


# -- fuzz ------------------------------------------------------------------------------------------------------------

KEYS = ["model", "messages", "input", "prompt", "prompt_embeds", "system", "tools", "instructions", "stream"]
KEYS += ["stream_options", "include_usage", "cache_salt", "max_tokens", "role", "content", "text", "type", "image_url"]
KEYS += ["source", "name", "tool_calls", "tool_call_id", "reasoning", "output", "arguments", "call_id", "summary", "x"]
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=30),
    st.sampled_from(["user", "m", "x-anthropic-billing-header"]),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=25,
)
objects = st.dictionaries(st.sampled_from(KEYS), values, max_size=8)


@fuzz
@given(st.sampled_from(list(Form)), st.binary(max_size=200))
@example(Form.CHAT, b'{"messages":[{"content":"\xff"}]}')
@example(Form.CHAT, b'{"messages":[{"content":"\\ud83d"}]}')
@example(Form.CHAT, b'{"messages":[{"role":"\xff"}]}')
@example(Form.COMPLETIONS, b'{"prompt":"\\ud83d"}')
@example(Form.COMPLETIONS, b'{"prompt":[NaN]}')
def test_any_bytes_give_a_prompt_or_a_bad_request(form: Form, body: bytes) -> None:
    read_any(form, body)


@fuzz
@given(objects, st.booleans())
def test_any_json_object_gives_a_prompt_or_a_bad_request(body: dict[str, Any], ascii_only: bool) -> None:
    raw = json.dumps(body, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    for form in Form:
        prompt = read_any(form, raw)
        if prompt is not None and form is not Form.MULTIPART:
            assert prompt.model == (body.get("model") or "")
            assert prompt.stream is (body.get("stream") is True)


@fuzz
@given(objects, st.integers(0, 2000), st.binary(min_size=1, max_size=3))
def test_a_damaged_body_gives_a_prompt_or_a_bad_request(body: dict[str, Any], at: int, damage: bytes) -> None:
    raw = json.dumps(body).encode()
    at %= len(raw)
    for damaged in (raw[:at], raw[:at] + damage + raw[at:], raw[:at] + damage + raw[at + 1 :]):
        for form in Form:
            read_any(form, damaged)


# -- masses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", JSON_FORMS)
@pytest.mark.parametrize("opening", [b"[", b'{"content":', b'[{"content":', b'[["a",'])
@pytest.mark.parametrize("key", [b"messages", b"input", b"prompt", b"system", b"tools", b"model", b"vendor"])
def test_a_hundred_thousand_levels_are_refused_at_once(form: Form, opening: bytes, key: bytes) -> None:
    for inside in (b'{"%s":' % key, b'{"%s":[{"role":"user","content":' % key):
        assert seconds(form, inside + opening * 100_000) < 0.5
        with pytest.raises(BadRequest):
            read(form, inside + opening * 100_000)


@pytest.mark.parametrize("form", PROMPT_FORMS)
def test_levels_that_json_allows_cost_no_more_than_their_bytes(form: Form) -> None:
    """A list within a list within a list is not taken apart level by level."""
    text = b'"' + b"x" * (2 << 20) + b'"'
    for opening, closing in ((b"[", b"]"), (b'[{"content":', b"}]")):
        deep = opening * 200 + text + closing * 200
        for key in (b'"prompt":', b'"input":', b'"system":', b'"messages":', b'"messages":[{"role":"user","content":'):
            end = b"}]}" if b"role" in key else b"}"
            assert seconds(form, b"{" + key + deep + end) < 0.5


# What comes before the mass, one piece of it with its comma, what comes behind it.
MASSES: dict[str, tuple[Form, bytes, bytes, bytes]] = {
    "messages": (Form.CHAT, b'{"messages":[', b"{},", b"]}"),
    "parts": (Form.CHAT, b'{"messages":[{"role":"user","content":[', b"{},", b"]}]}"),
    "nested parts": (Form.CHAT, b'{"messages":[{"content":[{"content":[', b"{},", b"]}]}]}"),
    "odd parts": (Form.CHAT, b'{"messages":[{"role":"user","content":[', b"1,", b"]}]}"),
    "bare strings": (Form.CHAT, b'{"messages":[{"role":"user","content":[', b'"",', b"]}]}"),
    "messages of parts": (Form.CHAT, b'{"messages":[', b'{"content":[{}]},', b"]}"),
    "messages of odd parts": (Form.CHAT, b'{"messages":[', b'{"content":[%s1]},' % (b"1," * 1000), b"]}"),
    "keys of a part": (Form.CHAT, b'{"messages":[{"content":[{', b'"a":1,', b"}]}]}"),
    "keys": (Form.CHAT, b"{", b'"a":1,', b"}"),
    "system": (Form.MESSAGES, b'{"system":[', b"{},", b"]}"),
    "items": (Form.RESPONSES, b'{"input":[', b"{},", b"]}"),
    "outputs": (Form.RESPONSES, b'{"input":[', b'{"output":[{}]},', b"]}"),
    "tokens": (Form.COMPLETIONS, b'{"prompt":[', b"0,", b"]}"),
    "prompts": (Form.COMPLETIONS, b'{"prompt":[', b'"",', b"]}"),
    "token lists": (Form.COMPLETIONS, b'{"prompt":[', b"[],", b"]}"),
    "mixed prompts": (Form.COMPLETIONS, b'{"prompt":[[1],', b"0,", b"]}"),
}


@pytest.mark.parametrize("name", MASSES)
@pytest.mark.parametrize("size", [1 << 20, 8 << 20])
def test_a_mass_of_tiny_things_is_read_in_bounded_time(name: str, size: int) -> None:
    form, before, piece, behind = MASSES[name]
    body = before + piece * (size // len(piece)) + piece[:-1] + behind
    start = time.process_time()
    read(form, body)
    assert time.process_time() - start < 1.0


def test_memory_does_not_grow_with_the_number_of_tiny_things() -> None:
    body = b'{"messages":[{"role":"user","content":[%s{}]}]}' % (b"{}," * 2_000_000)
    tracemalloc.start()
    try:
        prompt = read(Form.CHAT, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The prompt itself, once.
    assert peak < len(body) + (1 << 20)
    assert prompt.size > 5_000_000


def test_a_flat_prompt_still_grows_by_appending() -> None:
    """A mass of objects is as large as any other conversation, and keeps its worker."""
    messages = [{"role": "user", "content": [{"type": "text", "text": str(number)} for number in range(80_000)]}]
    grown = [*messages, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "more"}]
    for form, key in ((Form.CHAT, "messages"), (Form.MESSAGES, "messages"), (Form.RESPONSES, "input")):
        bodies = [{"model": "m", "tools": [{"name": "t"}], key: turn} for turn in (messages, grown)]
        first, second = (read(form, body) for body in bodies)
        assert len(first.prefix) == first.size > 2_000_000
        assert second.prefix.startswith(first.prefix)
        assert second.size - first.size == len(json.dumps(grown)) - len(json.dumps(messages))
        other = read(form, bodies[0] | {"tools": [{"name": "u"}]})
        assert other.prefix != first.prefix
        assert first.model == "m"


@pytest.mark.parametrize("size", [200_000, 2_000_000])
def test_braces_in_text_are_no_objects(size: int) -> None:
    """Code and tables full of them are read like any other text."""
    table = json.dumps([{"x": number} for number in range(size // 10)])
    assert table.count("{") > FLAT_OBJECTS or size < 1_000_000
    prompt = read(Form.CHAT, {"messages": [{"role": "user", "content": table}]})
    assert prompt.prefix.startswith(b"\x01user\x02[{")
    assert (
        prompt.prefix
        == read(Form.CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": table}]}]}).prefix
    )


def test_blocks_of_code_in_text_are_no_objects() -> None:
    """A brace and a blank, as programs are full of, begin an object only before a name or the end."""
    text = "if (x) { y(); } " * (FLAT_OBJECTS * 5)
    assert len(text) > 1 << 20
    prompt = read(Form.CHAT, {"messages": [{"role": "user", "content": text}]})
    assert prompt.prefix.startswith(b"\x01user\x02if (x) {")


@pytest.mark.parametrize(
    "odd", [{"type": "new", "data": "x"}, {}, {"text": None}, {"content": [1]}, {"content": {"x": 1}}]
)
def test_of_a_mass_of_odd_parts_the_first_are_looked_at(odd: Any) -> None:
    """Each is read a second time, so fewer of them than of others; what they are a part of grows all the same."""
    prompts = [read(Form.CHAT, {"messages": [{"role": "user", "content": [odd] * count}]}) for count in (1000, 4000)]
    first, second = prompts
    assert second.prefix.startswith(first.prefix)
    assert second.prefix == read(Form.CHAT, {"messages": [{"role": "user", "content": [odd] * 6000}]}).prefix
    assert 1.5 * len(first.prefix) < len(second.prefix) < 3.5 * len(first.prefix)


@pytest.mark.parametrize("size", [150_000, 400_000, 2_000_000])
@pytest.mark.parametrize("thing", ["{}", "{ }", '{ "role": "user" }', '{"content":"x"}'])
def test_no_more_objects_are_taken_apart_than_a_turn_has_time_for(size: int, thing: str) -> None:
    """However they are written; those of a smaller body, or among them, are."""
    count = size // (len(thing) + 1)
    body = b'{"messages":[%b]}' % b",".join([thing.encode()] * count)
    flat = read(Form.CHAT, body).prefix.startswith(b"\x05")
    assert flat == (count > FLAT_OBJECTS)
