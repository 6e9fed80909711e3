"""What read_prompt takes from a body beside the prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.prompt import Form
from tests.core.prompt_hostile_rig import JSON_FORMS, read


@pytest.mark.parametrize("form", JSON_FORMS)
def test_every_form_says_what_routing_needs(form: Form) -> None:
    prompt = read(
        form,
        {
            "model": "m",
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_salt": "pepper",
            "max_tokens": 17,
            "previous_response_id": "resp_1",
        },
    )
    assert (prompt.form, prompt.model, prompt.stream, prompt.wants_usage) == (form, "m", True, True)
    assert (prompt.salt, prompt.max_tokens) == ("pepper", 17)
    assert prompt.previous_response == ("resp_1" if form is Form.RESPONSES else "")


@pytest.mark.parametrize("form", JSON_FORMS)
@pytest.mark.parametrize("body", [{}, dict.fromkeys(["model", "stream", "stream_options", "cache_salt", "max_tokens"])])
def test_what_is_absent_or_null_has_its_plain_value(form: Form, body: dict[str, None]) -> None:
    prompt = read(form, body)
    assert (prompt.model, prompt.stream, prompt.wants_usage, prompt.salt, prompt.max_tokens) == (
        "",
        False,
        False,
        "",
        0,
    )
    assert (prompt.prefix, prompt.previous_response) == (b"", "")


@pytest.mark.parametrize(
    ("body", "stream", "usage"),
    [
        ({"stream": False, "stream_options": {"include_usage": True}}, False, False),
        ({"stream": True}, True, False),
        ({"stream": True, "stream_options": None}, True, False),
        ({"stream": True, "stream_options": {}}, True, False),
        ({"stream": True, "stream_options": {"include_usage": False}}, True, False),
        ({"stream": True, "stream_options": {"include_usage": None}}, True, False),
        ({"stream": True, "stream_options": {"include_usage": "yes"}}, True, False),
        ({"stream": True, "stream_options": ["include_usage"]}, True, False),
        ({"stream": True, "stream_options": {"include_usage": True, "x": 1}}, True, True),
        ({"stream": "true"}, False, False),
        ({"stream": [True]}, False, False),
    ],
)
def test_streams_and_their_usage(body: dict[str, Any], stream: bool, usage: bool) -> None:
    prompt = read(Form.CHAT, body)
    assert (prompt.stream, prompt.wants_usage) == (stream, usage)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (b'"max_tokens":5', 5),
        (b'"max_completion_tokens":6', 6),
        (b'"max_output_tokens":7', 7),
        (b'"max_tokens":500,"max_completion_tokens":6', 6),
        (b'"max_tokens":5,"max_completion_tokens":null', 5),
        (b'"max_tokens":-5', 0),
        (b'"max_tokens":1e400', 0),
        (b'"max_tokens":"16"', 0),
        (b'"max_tokens":true', 0),
        (b'"max_tokens":[1]', 0),
        (b'"max_tokens":' + b"9" * 30, 1 << 40),
        (b'"max_tokens":' + b"9" * 10_000, 0),
        (b'"max_tokens":-' + b"9" * 400, 0),
    ],
)
def test_the_tokens_asked_for(limits: bytes, expected: int) -> None:
    assert read(Form.CHAT, b"{" + limits + b"}").max_tokens == expected


@pytest.mark.parametrize("salt", [3, ["x"], {"a": 1}, "", True])
def test_a_salt_that_is_no_text_is_none(salt: object) -> None:
    assert read(Form.CHAT, {"cache_salt": salt}).salt == ""


def test_other_forms_have_a_size_but_no_prefix() -> None:
    body = json.dumps(
        {"model": "m", "input": ["a" * 5000, "b"], "messages": [{"role": "user", "content": "x"}]}
    ).encode()
    prompt = read(Form.OTHER, body)
    assert (prompt.prefix, prompt.size, prompt.model) == (b"", len(body), "m")


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("text", None),
        (["a", "b"], None),
        ([1, 2, 3], 3),
        ([[1, 2], [3]], 3),
        ([], 0),
        ([[]], 0),
        (None, None),
        ({}, None),
    ],
)
def test_every_shape_of_a_completions_prompt(prompt: object, tokens: int | None) -> None:
    assert read(Form.COMPLETIONS, {"prompt": prompt}).tokens == tokens
