"""The fields of a request body that routing reads; everything that it need not understand stays raw JSON.

Decoding raw fields costs little more than finding their ends, however long the prompt.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Raw

from router.prompt.raws import lenient

# What an image or a sound counts for in size estimates; its data does not, whatever the encoding.
MEDIA_BYTES = 2048
# No number that means anything is written longer.
NUMBER_BYTES = 64
EMPTY = Raw(b"")
T = TypeVar("T")


class Part(msgspec.Struct, gc=False):
    """One part of a message's content, in any of the forms."""

    text: Raw = EMPTY
    refusal: Raw = EMPTY
    id: Raw = EMPTY
    name: Raw = EMPTY
    input: Raw = EMPTY
    tool_use_id: Raw = EMPTY
    content: Raw = EMPTY
    thinking: Raw = EMPTY
    image_url: Raw = EMPTY
    input_audio: Raw = EMPTY
    audio_url: Raw = EMPTY
    video_url: Raw = EMPTY
    image: Raw = EMPTY
    source: Raw = EMPTY
    file: Raw = EMPTY
    file_data: Raw = EMPTY


class Message(msgspec.Struct, gc=False):
    """One message of the chat and Anthropic forms."""

    role: str | None = ""
    content: Raw = EMPTY
    name: Raw = EMPTY
    tools: Raw = EMPTY
    tool_calls: Raw = EMPTY
    tool_call_id: Raw = EMPTY
    reasoning: Raw = EMPTY
    reasoning_content: Raw = EMPTY


class Item(Message, gc=False):
    """An element of the responses form's input: a message, or a call, its output, a piece of reasoning."""

    type: Raw = EMPTY
    call_id: Raw = EMPTY
    arguments: Raw = EMPTY
    output: Raw = EMPTY
    summary: Raw = EMPTY


class Options(msgspec.Struct, gc=False):
    """What `stream_options` holds."""

    include_usage: bool | None = None


class Body(msgspec.Struct, gc=False):
    """The fields that any form may carry, all raw but for what routing itself reads."""

    model: str | None = None
    stream: Raw = EMPTY
    stream_options: Raw = EMPTY
    cache_salt: Raw = EMPTY
    max_tokens: Raw = EMPTY
    max_completion_tokens: Raw = EMPTY
    max_output_tokens: Raw = EMPTY
    n: Raw = EMPTY
    best_of: Raw = EMPTY
    prompt_logprobs: Raw = EMPTY


class Chat(Body, gc=False):
    messages: list[Message] | None = None
    tools: Raw = EMPTY
    documents: Raw = EMPTY
    chat_template: Raw = EMPTY
    chat_template_kwargs: Raw = EMPTY
    reasoning_effort: Raw = EMPTY


class Messages(Body, gc=False):
    messages: list[Message] | None = None
    tools: Raw = EMPTY
    system: Raw = EMPTY


class Responses(Body, gc=False):
    instructions: Raw = EMPTY
    tools: Raw = EMPTY
    input: Raw = EMPTY
    previous_response_id: Raw = EMPTY


class Completions(Body, gc=False):
    prompt: Raw = EMPTY
    prompt_embeds: Raw = EMPTY
    echo: Raw = EMPTY
    logprobs: Raw = EMPTY


class Flat(Body, gc=False):
    """Any form with messages, none of them taken apart."""

    instructions: Raw = EMPTY
    tools: Raw = EMPTY
    system: Raw = EMPTY
    messages: Raw = EMPTY
    input: Raw = EMPTY


chat = msgspec.json.Decoder(Chat)
messages = msgspec.json.Decoder(Messages)
responses = msgspec.json.Decoder(Responses)
completions = msgspec.json.Decoder(Completions)
flat = msgspec.json.Decoder(Flat)
body = msgspec.json.Decoder(Body)
items = msgspec.json.Decoder(list[Item])
parts = msgspec.json.Decoder(list[Part])
raws = msgspec.json.Decoder(list[Raw])
fields = msgspec.json.Decoder(dict[str, Raw])
options = msgspec.json.Decoder(Options)
text = msgspec.json.Decoder(str)
number = msgspec.json.Decoder(int)
anything: msgspec.json.Decoder[object] = msgspec.json.Decoder(object)


def count(raw: Raw) -> int:
    """A number as engines read it: they take `4.0` and `"4"` for 4. What is no number is for them to refuse: 0."""
    if len(raw) > NUMBER_BYTES:
        return 0
    value = lenient(anything, raw, None)
    try:
        return int(float(value)) if isinstance(value, int | float | str) else 0
    except (ValueError, OverflowError):
        return 0
