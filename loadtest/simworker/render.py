"""Request bodies and their rendering into the bytes the tokenizer cuts. Pure.

Control bytes stand for special tokens: they never occur in sensible text, and each is one token.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

JsonObject = dict[str, Any]

_OPEN, _CLOSE, _BODY, _PART = b"\x01", b"\x02", b"\x03", b"\x04"
# vLLM drops such system blocks before rendering, as they change with every request.
_BILLING = "x-anthropic-billing-header"


class StreamOptions(msgspec.Struct):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class Message(msgspec.Struct):
    role: str
    content: str | list[JsonObject] | None = None
    name: str | None = None
    tool_calls: list[JsonObject] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class GenerateBody(msgspec.Struct, kw_only=True):
    """Fields that all generating routes share."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    cache_salt: str | None = None
    n: int | None = 1
    request_id: str | None = None
    sim_echo: str | None = None


class ChatBody(GenerateBody, kw_only=True):
    messages: list[Message]
    tools: list[JsonObject] | None = None
    documents: list[JsonObject] | None = None
    chat_template_kwargs: JsonObject | None = None
    max_completion_tokens: int | None = None


class CompletionBody(GenerateBody, kw_only=True):
    prompt: str | list[Any] | None = None


class ResponsesBody(GenerateBody, kw_only=True):
    input: str | list[JsonObject]
    instructions: str | None = None
    tools: list[JsonObject] | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    background: bool | None = False
    store: bool | None = True


class AnthropicMessage(msgspec.Struct):
    role: str
    content: str | list[JsonObject]


class MessagesBody(GenerateBody, kw_only=True):
    messages: list[AnthropicMessage]
    system: str | list[JsonObject] | None = None
    tools: list[JsonObject] | None = None


def chat(body: ChatBody) -> bytes:
    """The prompt of a chat request, up to where the assistant's answer begins."""
    pieces = _header(body.chat_template_kwargs, body.documents, body.tools)
    pieces += [_message(message) for message in body.messages]
    return b"".join(pieces) + _turn("assistant")


def messages(body: MessagesBody) -> bytes:
    """The prompt of a request in the Anthropic form: tools, system, messages."""
    pieces = _header(None, None, body.tools)
    if body.system:
        pieces.append(_turn("system") + content(body.system) + _CLOSE)
    pieces += [_turn(message.role) + content(message.content) + _CLOSE for message in body.messages]
    return b"".join(pieces) + _turn("assistant")


def responses(body: ResponsesBody, earlier: bytes = b"") -> bytes:
    """The prompt of a responses request; `earlier` is the conversation it continues."""
    pieces = _header(None, None, body.tools)
    if body.instructions:
        pieces.append(_turn("system") + utf8(body.instructions) + _CLOSE)
    pieces.append(earlier)
    pieces.append(conversation(body))
    return b"".join(pieces) + _turn("assistant")


def conversation(body: ResponsesBody) -> bytes:
    """The request's own input items, without tools and instructions."""
    if isinstance(body.input, str):
        return _turn("user") + utf8(body.input) + _CLOSE
    return b"".join(_item(item) for item in body.input)


def answer(text: bytes) -> bytes:
    """What follows the prompt once the assistant has said `text`."""
    return _turn("assistant") + text + _CLOSE


def content(value: str | list[JsonObject] | None) -> bytes:
    """Text as it is; parts joined, media by digest."""
    if value is None:
        return b""
    if isinstance(value, str):
        return utf8(value)
    return b"\n".join(part for part in map(_part, value) if part is not None)


def utf8(text: str) -> bytes:
    """JSON may carry half a surrogate pair; that must not fail."""
    return text.encode("utf-8", "surrogatepass")


def _part(part: JsonObject) -> bytes | None:
    text = part.get("text")
    if isinstance(text, str):
        return None if text.startswith(_BILLING) else utf8(text)
    return _PART + hashlib.blake2b(msgspec.json.encode(part), digest_size=8).hexdigest().encode()


def _turn(role: str) -> bytes:
    return _OPEN + utf8(role) + _BODY


def _message(message: Message) -> bytes:
    text = _turn(message.role) + content(message.content)
    extra = (message.name, message.tool_call_id, message.reasoning_content, message.tool_calls)
    if any(extra):
        text += _PART + msgspec.json.encode(extra)
    return text + _CLOSE


def _item(item: JsonObject) -> bytes:
    role = item.get("role")
    value = item.get("content")
    if isinstance(role, str) and isinstance(value, (str, list)):
        return _turn(role) + content(value) + _CLOSE
    return _turn("item") + msgspec.json.encode(item) + _CLOSE


def _header(*fields: JsonObject | list[JsonObject] | None) -> list[bytes]:
    return [_turn("system") + msgspec.json.encode(field) + _CLOSE for field in fields if field]
