"""Request body -> what routing needs to know, without building Python objects for the prompt.

Prefix bytes are what the engine renders, in the order in which it renders it: template options, tools, then the
messages. Text enters as the bytes that stand between the quotes of the JSON string, still escaped: one client
escapes alike in every turn, and decoding would double the cost. Control bytes, which JSON text can't contain,
separate the parts, and nothing is ever appended behind the last part, so a longer conversation only adds bytes.

Anything odd inside the prompt is left to the worker to judge; only what can't be routed at all is refused here.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import Raw
from xxhash import xxh3_128_digest

from router.errors import BadRequest
from router.hashing import HORIZON_BYTES

# What an image or a sound counts for in size estimates; its data does not, whatever the encoding.
MEDIA_BYTES = 2048
EMPTY = Raw(b"")
T = TypeVar("T")
_ABSENT = (b"", b"null")
_ROLE, _TEXT, _FIELD, _MEDIA, _ITEM = b"\x01", b"\x02", b"\x03", b"\x04", b"\x05"
# A text part begins on a new line of the rendered prompt; this is the line break as JSON escapes it.
_LINE_BREAK = b"\\n"
_BILLING_HEADER = b"x-anthropic-billing-header"


class Form(enum.StrEnum):
    """The shape of a request body."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    OTHER = "other"
    MULTIPART = "multipart"


@dataclass(slots=True)
class Prompt:
    """What routing knows of one request.

    `prefix` holds the canonical bytes up to the horizon, `size` counts those of the whole prompt, `tokens` is exact
    where the prompt came as token ids.
    """

    form: Form
    model: str = ""
    stream: bool = False
    salt: str = ""
    prefix: bytes = b""
    size: int = 0
    tokens: int | None = None
    max_tokens: int = 0
    wants_usage: bool = False
    previous_response: str = ""


class _Part(msgspec.Struct, gc=False):
    type: Raw = EMPTY
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


class _Message(msgspec.Struct, gc=False):
    role: str = ""
    content: Raw = EMPTY
    name: Raw = EMPTY
    tool_calls: Raw = EMPTY
    tool_call_id: Raw = EMPTY
    reasoning: Raw = EMPTY
    reasoning_content: Raw = EMPTY
    # Items of the responses form that are not messages.
    type: Raw = EMPTY
    arguments: Raw = EMPTY
    call_id: Raw = EMPTY
    output: Raw = EMPTY
    summary: Raw = EMPTY


class _Options(msgspec.Struct, gc=False):
    include_usage: bool | None = None


class _Body(msgspec.Struct, gc=False):
    """The fields that any form may carry, all raw but for what routing itself reads."""

    model: str | None = None
    stream: Raw = EMPTY
    stream_options: Raw = EMPTY
    cache_salt: Raw = EMPTY
    max_tokens: Raw = EMPTY
    max_completion_tokens: Raw = EMPTY
    max_output_tokens: Raw = EMPTY


class _Chat(_Body, gc=False):
    messages: list[_Message] = []
    tools: Raw = EMPTY
    documents: Raw = EMPTY
    chat_template: Raw = EMPTY
    chat_template_kwargs: Raw = EMPTY
    reasoning_effort: Raw = EMPTY


class _Messages(_Body, gc=False):
    messages: list[_Message] = []
    tools: Raw = EMPTY
    system: Raw = EMPTY


class _Responses(_Body, gc=False):
    instructions: Raw = EMPTY
    tools: Raw = EMPTY
    input: Raw = EMPTY
    previous_response_id: Raw = EMPTY


class _Completions(_Body, gc=False):
    prompt: Raw = EMPTY
    prompt_embeds: Raw = EMPTY


_chat = msgspec.json.Decoder(_Chat)
_messages = msgspec.json.Decoder(_Messages)
_responses = msgspec.json.Decoder(_Responses)
_completions = msgspec.json.Decoder(_Completions)
_body = msgspec.json.Decoder(_Body)
_items = msgspec.json.Decoder(list[_Message])
_parts = msgspec.json.Decoder(list[_Part])
_raws = msgspec.json.Decoder(list[Raw])
_options = msgspec.json.Decoder(_Options)
_text = msgspec.json.Decoder(str)
_number = msgspec.json.Decoder(int)


class _Prefix:
    """Collects canonical bytes up to the horizon and counts the rest."""

    __slots__ = ("parts", "room", "size")

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = []
        self.room = HORIZON_BYTES
        self.size = 0

    def add(self, mark: bytes, raw: bytes | memoryview) -> None:
        length = len(raw)
        self.size += length
        if self.room > 0:
            self.parts.append(mark)
            self.parts.append(raw)
            self.room -= length + 1

    def add_media(self, raw: bytes | memoryview) -> None:
        self.add(_MEDIA, xxh3_128_digest(raw))
        self.size += MEDIA_BYTES

    def bytes(self) -> bytes:
        joined = b"".join(self.parts)
        return joined if len(joined) <= HORIZON_BYTES else joined[:HORIZON_BYTES]


def read_prompt(form: Form, body: bytes, content_type: bytes = b"") -> Prompt:
    """What routing needs of a body; raises BadRequest for a body that can't be routed."""
    try:
        try:
            return _READERS[form](body, content_type)
        except msgspec.ValidationError:
            # An odd prompt: the worker says what is wrong with it better than a router can.
            return _common(form, _body.decode(body))
    except msgspec.ValidationError as error:
        raise BadRequest(f"The body can't be read: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"The body is not valid JSON: {error}") from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply.") from None


def _common(form: Form, fields: _Body) -> Prompt:
    prompt = Prompt(form, fields.model or "")
    if len(fields.stream) == 4 and bytes(fields.stream) == b"true":
        prompt.stream = True
        options = bytes(fields.stream_options)
        if options not in _ABSENT:
            prompt.wants_usage = _lenient(_options, options, _Options()).include_usage is True
    if len(fields.cache_salt) > 2:
        prompt.salt = _lenient(_text, fields.cache_salt, "")
    for limit in (fields.max_completion_tokens, fields.max_tokens, fields.max_output_tokens):
        if len(limit):
            prompt.max_tokens = max(prompt.max_tokens, _lenient(_number, limit, 0))
    return prompt


def _lenient(decoder: msgspec.json.Decoder[T], raw: Raw | bytes, default: T) -> T:
    try:
        return decoder.decode(raw)
    except msgspec.DecodeError:
        return default


def _finish(prompt: Prompt, prefix: _Prefix) -> Prompt:
    prompt.prefix = prefix.bytes()
    prompt.size = prefix.size
    return prompt


def _read_chat(body: bytes, _: bytes) -> Prompt:
    fields = _chat.decode(body)
    prefix = _Prefix()
    for raw in (fields.chat_template, fields.chat_template_kwargs, fields.reasoning_effort, fields.documents):
        _add_field(prefix, raw)
    _add_field(prefix, fields.tools)
    _add_messages(prefix, fields.messages)
    return _finish(_common(Form.CHAT, fields), prefix)


def _read_messages(body: bytes, _: bytes) -> Prompt:
    fields = _messages.decode(body)
    prefix = _Prefix()
    _add_field(prefix, fields.tools)
    if len(fields.system) and bytes(fields.system) != b"null":
        prefix.add(_ROLE, b"system")
        _add_content(prefix, fields.system)
    _add_messages(prefix, fields.messages)
    return _finish(_common(Form.MESSAGES, fields), prefix)


def _read_responses(body: bytes, _: bytes) -> Prompt:
    fields = _responses.decode(body)
    prefix = _Prefix()
    if len(fields.instructions):
        _add_field(prefix, fields.instructions)
    _add_field(prefix, fields.tools)
    given = fields.input
    if _first(given) == b"[":
        _add_messages(prefix, _items.decode(given))
    elif len(given):
        # A plain string is the same to the engine as one message of the user.
        prefix.add(_ROLE, b"user")
        _add_content(prefix, given)
    prompt = _common(Form.RESPONSES, fields)
    if len(fields.previous_response_id) > 2:
        prompt.previous_response = _lenient(_text, fields.previous_response_id, "")
    return _finish(prompt, prefix)


def _read_completions(body: bytes, _: bytes) -> Prompt:
    fields = _completions.decode(body)
    prompt = _common(Form.COMPLETIONS, fields)
    prefix = _Prefix()
    if _first(fields.prompt_embeds) in (b'"', b"["):
        prefix.add_media(memoryview(fields.prompt_embeds))
    if len(fields.prompt):
        prompt.tokens = _add_prompt(prefix, bytes(fields.prompt))
    return _finish(prompt, prefix)


def _read_other(body: bytes, _: bytes) -> Prompt:
    prompt = _common(Form.OTHER, _body.decode(body))
    prompt.size = len(body)
    return prompt


def _read_multipart(body: bytes, content_type: bytes) -> Prompt:
    prompt = Prompt(Form.MULTIPART, size=MEDIA_BYTES)
    _, _, boundary = content_type.partition(b"boundary=")
    boundary = boundary.split(b";", 1)[0].strip().strip(b'"')
    if not boundary:
        raise BadRequest("The multipart body has no boundary.")
    prompt.model = _form_field(body, boundary, b"model").decode("utf-8", "replace")
    prompt.stream = _form_field(body, boundary, b"stream").lower() in (b"true", b"1")
    return prompt


def _form_field(body: bytes, boundary: bytes, name: bytes) -> bytes:
    """The value of a small text field of a multipart form, or nothing."""
    at = body.find(b'name="' + name + b'"')
    if at < 0:
        return b""
    start = body.find(b"\r\n\r\n", at)
    end = body.find(b"\r\n--" + boundary, start)
    if start < 0 or end < 0 or end - start > 1024:
        return b""
    return body[start + 4 : end].strip()


_READERS: dict[Form, Callable[[bytes, bytes], Prompt]] = {
    Form.CHAT: _read_chat,
    Form.COMPLETIONS: _read_completions,
    Form.RESPONSES: _read_responses,
    Form.MESSAGES: _read_messages,
    Form.OTHER: _read_other,
    Form.MULTIPART: _read_multipart,
}


def _add_field(prefix: _Prefix, raw: Raw) -> None:
    if len(raw) and (len(raw) != 4 or bytes(raw) != b"null"):
        prefix.add(_FIELD, memoryview(raw))


def _add_messages(prefix: _Prefix, messages: Iterable[_Message]) -> None:
    for message in messages:
        prefix.add(_ROLE, message.role.encode("utf-8", "replace"))
        _add_content(prefix, message.content)
        if message.name:
            _add_field(prefix, message.name)
        if message.tool_calls:
            _add_field(prefix, message.tool_calls)
        if message.tool_call_id:
            _add_field(prefix, message.tool_call_id)
        if message.reasoning:
            _add_field(prefix, message.reasoning)
        if message.reasoning_content:
            _add_field(prefix, message.reasoning_content)
        if message.call_id or message.summary:
            _add_item(prefix, message)


def _add_item(prefix: _Prefix, item: _Message) -> None:
    for raw in (item.type, item.call_id, item.arguments, item.output, item.summary):
        _add_field(prefix, raw)


def _add_content(prefix: _Prefix, raw: Raw) -> None:
    if not raw:
        return
    view = memoryview(raw)
    if view[0] == 0x22:  # a string
        prefix.add(_TEXT, view[1:-1])
    elif view[0] == 0x5B:  # a list of parts
        _add_parts(prefix, raw)
    else:
        _add_field(prefix, raw)


def _add_parts(prefix: _Prefix, raw: Raw) -> None:
    try:
        parts = _parts.decode(raw)
    except msgspec.DecodeError:
        _add_field(prefix, raw)
        return
    mark = _TEXT
    for part in parts:
        if len(part.text):
            text = _unquoted(part.text)
            if text[: len(_BILLING_HEADER)] == _BILLING_HEADER:
                continue
            prefix.add(mark, text)
            mark = _LINE_BREAK
        else:
            _add_other_part(prefix, part)
            mark = _TEXT


def _add_other_part(prefix: _Prefix, part: _Part) -> None:
    media = (part.image_url, part.input_audio, part.audio_url, part.video_url, part.image, part.source)
    for raw in (*media, part.file, part.file_data):
        if len(raw):
            prefix.add_media(memoryview(raw))
    for raw in (part.id, part.name, part.input, part.tool_use_id, part.thinking, part.refusal):
        _add_field(prefix, raw)
    if len(part.content):
        _add_content(prefix, part.content)


def _add_prompt(prefix: _Prefix, raw: bytes) -> int | None:
    """A completions prompt: text, token ids, or a list of either. Returns the token count where it is exact."""
    if raw[:1] == b'"':
        prefix.add(_TEXT, memoryview(raw)[1:-1])
        return None
    inner = raw[1:].lstrip()[:1] if raw[:1] == b"[" else b""
    if inner in (b'"', b"["):
        tokens = 0
        exact = False
        for element in _raws.decode(raw):
            prefix.add(_ITEM, b"")
            count = _add_prompt(prefix, bytes(element))
            exact = count is not None
            tokens += count or 0
        return tokens if exact else None
    if inner:
        prefix.add(_ITEM, memoryview(raw)[1:-1])
        return raw.count(b",") + 1 if inner != b"]" else 0
    return None


def _first(raw: Raw) -> bytes:
    return bytes(memoryview(raw)[:1])


def _unquoted(raw: Raw) -> memoryview:
    view = memoryview(raw)
    return view[1:-1] if len(view) > 1 and view[0] == 0x22 else view
