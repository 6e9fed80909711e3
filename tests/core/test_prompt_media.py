"""Images and sounds in prompts enter as digests."""

from __future__ import annotations

import copy

import pytest

from router.prompt import MEDIA_BYTES, Form, Prompt
from tests.core.prompt_rig import (
    FIVE_MEGABYTES,
    Json,
    common,
    hashes,
    read,
)


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
