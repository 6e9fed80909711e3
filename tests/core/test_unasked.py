"""Usage that the router asks for: the body keeps its bytes, and the client's stream is what it would have been."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.dataplane.unasked import HELD_BYTES, Unasked
from router.prompt import Form, read_prompt, with_usage
from router.prompt.fields import MAX_FIELDS

Json = dict[str, Any]
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}


# -- the body --------------------------------------------------------------------------------------------------


def asked(body: bytes, form: Form = Form.CHAT) -> bytes | None:
    return with_usage(read_prompt(form, body), body)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
BLANKS = st.text(" \t\r\n", max_size=3)


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=4), BLANKS, BLANKS, st.booleans())
def test_a_body_gains_the_wish_and_keeps_every_byte(fields: Json, before: str, after: str, ascii_only: bool) -> None:
    fields = {**fields, "messages": [{"role": "user", "content": "stream_options"}], "stream": True}
    fields.pop("stream_options", None)
    text = json.dumps(fields, ensure_ascii=ascii_only)
    body = f"{before}{text[:1]}{after}{text[1:]}{before}".encode("utf-8", "surrogatepass")
    with_wish = asked(body)
    assert with_wish is not None
    wish = re.compile(rb'"stream_options":\{"include_usage":true\},')
    assert wish.sub(b"", with_wish, count=1) == body
    assert json.loads(with_wish)["stream_options"] == {"include_usage": True}
    assert read_prompt(Form.CHAT, with_wish).wants_usage


@pytest.mark.parametrize(
    ("form", "fields"),
    [
        (Form.CHAT, {"stream": False}),
        (Form.CHAT, {}),
        (Form.CHAT, {"stream": True, "stream_options": {"include_usage": True}}),
        (Form.CHAT, {"stream": True, "stream_options": {"include_usage": False}}),
        (Form.CHAT, {"stream": True, "stream_options": {}}),
        (Form.CHAT, {"stream": True, "stream_options": "odd"}),
        (Form.RESPONSES, {"stream": True}),
        (Form.MESSAGES, {"stream": True}),
    ],
    ids=str,
)
def test_nothing_is_wished_for_where_it_is_of_no_use_or_the_client_has_said(form: Form, fields: Json) -> None:
    assert asked(json.dumps({"messages": [], "input": "x", **fields}).encode(), form) is None


def test_null_says_nothing_and_an_escaped_name_is_a_name() -> None:
    body = b'{"stream_options" : null, "prompt": "x", "stream":true,"stream_options":null }'
    wish = b'{"include_usage":true}'
    assert asked(body, Form.COMPLETIONS) == body.replace(b"null", wish)
    assert asked(b'{"prompt":"x","stream":true,"stream\\u005foptions":{}}', Form.COMPLETIONS) is None
    # Which of two counts is the worker's affair.
    for one, two in ((b"null", b"{}"), (b"{}", b"null")):
        twice = b'{"prompt":"x","stream":true,"stream_options":%b,"stream_options":%b}' % (one, two)
        assert asked(twice, Form.COMPLETIONS) is None


@pytest.mark.parametrize("odd", [b'"\xff":1', b",".join(b'"%d":1' % number for number in range(MAX_FIELDS))])
def test_a_body_that_is_odd_passes_without_a_wish(odd: bytes) -> None:
    assert asked(b'{"prompt":"x","stream":true,%b}' % odd, Form.COMPLETIONS) is None


# -- the stream ------------------------------------------------------------------------------------------------


def event(body: Json | str, end: str, *, comment: bool = False) -> bytes:
    data = body if isinstance(body, str) else json.dumps(body, separators=(",", ":"))
    return ((f": keep-alive{end}" if comment else "") + f"data: {data}{end}{end}").encode()


def text_event(text: str, end: str, **more: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}}], **more}, end)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(bounds)]


def passed(pieces: list[bytes]) -> bytes:
    unasked = Unasked()
    return b"".join([*map(unasked.feed, pieces), unasked.end()])


WORDS = st.sampled_from(["word", '"usage":{"prompt_tokens":1}', 'data: "usage"', "\n\ndata: x", "é\r", '{"choices":[]'])


@given(
    st.lists(WORDS, max_size=4),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 2_000), max_size=12),
)
@example(["word"], "\r\n", True, False, [])
def test_a_stream_loses_one_event_wherever_it_is_cut(
    words: list[str], end: str, done: bool, comment: bool, places: list[int]
) -> None:
    before = b"".join(text_event(word, end) for word in words)
    if comment:
        before += f": keep-alive{end}{end}".encode()
    after = event("[DONE]", end) if done else b""
    usage = event({"id": "x", "choices": [], "usage": USAGE}, end)
    whole = before + usage + after
    assert passed(cut(whole, [place % (len(whole) + 1) for place in places])) == before + after


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_single_cut_and_every_byte_alone(end: str) -> None:
    before, after = text_event("one", end) + text_event('"usage"', end), event("[DONE]", end)
    whole = before + event({"choices": [], "usage": USAGE}, end) + after
    for place in range(len(whole) + 1):
        assert passed(cut(whole, [place])) == before + after
    assert passed([bytes([byte]) for byte in whole]) == before + after


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_what_is_no_usage_passes_whole(pieces: list[bytes]) -> None:
    assert passed(pieces) == b"".join(pieces)


def test_whole_events_pass_at_once() -> None:
    unasked = Unasked()
    for word in ("one", '"usage"', "three"):
        assert unasked.feed(text_event(word, "\n")) == text_event(word, "\n")
    half = text_event("four", "\n")
    assert unasked.feed(half[:-5]) == b""
    assert unasked.feed(half[-5:]) == half


def test_a_worker_that_reports_usage_to_everybody_is_left_alone() -> None:
    whole = text_event("one", "\n", usage=USAGE) + event({"choices": [], "usage": USAGE}, "\n") + b"data: [DONE]\n\n"
    assert passed([whole]) == whole
    assert passed([bytes([byte]) for byte in whole]) == whole


def test_only_one_event_is_taken_out_and_null_is_no_usage() -> None:
    usage = event({"choices": [], "usage": USAGE}, "\n")
    nothing = event({"choices": [], "usage": None}, "\n")
    assert passed([nothing, usage, usage]) == nothing + usage


@pytest.mark.parametrize("size", [HELD_BYTES - 50, HELD_BYTES, 3 * HELD_BYTES])
def test_a_long_event_is_not_held_back_for_ever(size: int) -> None:
    long = text_event("x" * size, "\r\n")
    whole = long + event({"choices": [], "usage": USAGE}, "\r\n") + event("[DONE]", "\r\n")
    unasked = Unasked()
    out = b""
    for start in range(0, len(whole), 1_000):
        out += unasked.feed(whole[start : start + 1_000])
        assert min(start + 1_000, len(long)) - len(out) <= HELD_BYTES
    assert out + unasked.end() == long + event("[DONE]", "\r\n")


def test_a_stream_that_is_cut_off_ends_where_it_ended() -> None:
    whole = text_event("one", "\n") + b'data: {"choices":[],"usage":{"prompt'
    assert passed([whole]) == whole
