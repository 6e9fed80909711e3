"""One entry for every form of request body.

Anything odd inside the prompt is left to the worker to judge; only what can't be routed at all is refused here. The
time is bounded by the body's size: lists nest once, and a mass of tiny objects is not taken apart.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import msgspec

from router.errors import BadRequest
from router.prompt import shapes
from router.prompt.canonical import ITEM, ROLE, Prefix, add_content, add_items, add_messages, add_prompt, is_several
from router.prompt.raws import first, given, lenient
from router.prompt.shapes import MEDIA_BYTES

# A body this large is first checked for a mass of tiny objects: each costs half a microsecond to take apart, and a
# request has its whole turn of the event loop until it is placed.
FLAT_BYTES = 128 << 10
FLAT_OBJECTS = 16_384
# Looking for them takes as long as reading, so up to a size that is common only samples of a body are looked at.
COUNTED_BYTES = 1 << 20
SAMPLES, SAMPLE_BYTES = 16, 1024
OBJECT = re.compile(rb'\{[ \t\r\n]*["}]')
# What every object begins with, and few braces in a text: in a string a quote is escaped, and so are line breaks.
OPENING = re.compile(rb'\{["} \t\r\n]')
# No engine generates more; larger numbers are only a burden to whoever adds or prints them.
MOST_TOKENS = 1 << 40
FORM_PARTS = 64
PART_HEAD_BYTES = 2048
FORM_VALUE_BYTES = 1024
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
ABSENT = (b"", b"null")
BOUNDARY = re.compile(rb'boundary=(?:"([^"]+)"|([^;\s"]+))', re.IGNORECASE)
FIELD_NAME = re.compile(rb'\bname=(?:"([^"]*)"|([^;\s"]+))', re.IGNORECASE)


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

    `prefix` holds the canonical bytes up to the horizon, `size` counts those of the whole prompt and something for
    media, `tokens` is exact where the prompt came as token ids.
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
    # Sequences that the engine is to make of one prompt: `n`, or `best_of`.
    choices: int = 1
    # What usage says of the cache is not what the prefix was worth: of several prompts in one request only the last
    # one's cached tokens are reported, and for the log probabilities of a prompt an engine does not read its cache.
    incomparable: bool = False

    # Spelt out, since a generated one is not compiled.
    def __init__(
        self,
        form: Form,
        model: str = "",
        stream: bool = False,
        salt: str = "",
        prefix: bytes = b"",
        size: int = 0,
        tokens: int | None = None,
        max_tokens: int = 0,
        wants_usage: bool = False,
        previous_response: str = "",
        choices: int = 1,
        incomparable: bool = False,
    ) -> None:
        self.form = form
        self.model = model
        self.stream = stream
        self.salt = salt
        self.prefix = prefix
        self.size = size
        self.tokens = tokens
        self.max_tokens = max_tokens
        self.wants_usage = wants_usage
        self.previous_response = previous_response
        self.choices = choices
        self.incomparable = incomparable


def read_prompt(form: Form, body: bytes, content_type: bytes = b"") -> Prompt:
    """What routing needs of a body; raises BadRequest for a body that can't be routed."""
    try:
        try:
            if len(body) > FLAT_BYTES and form in _WITH_OBJECTS and _is_mass(body):
                return _read_flat(form, body)
            return _READERS[form](body, content_type)
        except msgspec.ValidationError:
            # An odd prompt: the worker says what is wrong with it better than a router can.
            return _common(form, shapes.body.decode(body))
    except msgspec.ValidationError as error:
        raise BadRequest(f"The body can't be read: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if body.startswith(BYTE_ORDER_MARK) and not body.startswith(BYTE_ORDER_MARK, len(BYTE_ORDER_MARK)):
            return read_prompt(form, body.removeprefix(BYTE_ORDER_MARK), content_type)
        raise BadRequest(f"The body is not valid JSON: {error}") from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply.") from None


def _common(form: Form, fields: shapes.Body) -> Prompt:
    prompt = Prompt(form, fields.model or "")
    if len(fields.stream) == 4 and bytes(fields.stream) == b"true":
        prompt.stream = True
        options = bytes(fields.stream_options)
        if options not in ABSENT:
            prompt.wants_usage = lenient(shapes.options, options, shapes.Options()).include_usage is True
    if len(fields.cache_salt) > 2:
        prompt.salt = lenient(shapes.text, fields.cache_salt, "")
    for limit in (fields.max_completion_tokens, fields.max_tokens, fields.max_output_tokens):
        if len(limit) and prompt.max_tokens == 0:
            prompt.max_tokens = min(max(0, lenient(shapes.number, limit, 0)), MOST_TOKENS)
    prompt.incomparable = given(fields.prompt_logprobs)
    for count in (fields.n, fields.best_of):
        if len(count):
            prompt.choices = max(prompt.choices, min(shapes.count(count), MOST_TOKENS))
    return prompt


def _finish(prompt: Prompt, prefix: Prefix) -> Prompt:
    prompt.prefix = prefix.bytes()
    prompt.size = prefix.size
    return prompt


def _read_chat(body: bytes, _: bytes) -> Prompt:
    fields = shapes.chat.decode(body)
    prefix = Prefix()
    for raw in (fields.chat_template, fields.chat_template_kwargs, fields.reasoning_effort, fields.documents):
        prefix.add_field(raw)
    prefix.add_field(fields.tools)
    add_messages(prefix, fields.messages or ())
    return _finish(_common(Form.CHAT, fields), prefix)


def _read_messages(body: bytes, _: bytes) -> Prompt:
    fields = shapes.messages.decode(body)
    prefix = Prefix()
    prefix.add_field(fields.tools)
    if given(fields.system):
        prefix.add(ROLE, b"system")
        add_content(prefix, fields.system, system=True)
    add_messages(prefix, fields.messages or ())
    return _finish(_common(Form.MESSAGES, fields), prefix)


def _read_responses(body: bytes, _: bytes) -> Prompt:
    fields = shapes.responses.decode(body)
    prefix = Prefix()
    prefix.add_field(fields.instructions)
    prefix.add_field(fields.tools)
    if first(fields.input) == b"[":
        add_items(prefix, fields.input)
    elif given(fields.input):
        # A plain string is the same to the engine as one message of the user.
        prefix.add(ROLE, b"user")
        add_content(prefix, fields.input)
    prompt = _common(Form.RESPONSES, fields)
    if len(fields.previous_response_id) > 2:
        prompt.previous_response = lenient(shapes.text, fields.previous_response_id, "")
    return _finish(prompt, prefix)


def _read_completions(body: bytes, _: bytes) -> Prompt:
    fields = shapes.completions.decode(body)
    prompt = _common(Form.COMPLETIONS, fields)
    prefix = Prefix()
    if first(fields.prompt_embeds) in (b'"', b"["):
        prefix.add_digest(fields.prompt_embeds)
    if given(fields.prompt):
        raw = bytes(fields.prompt)
        prompt.tokens = add_prompt(prefix, raw)
        scored = bytes(fields.echo) == b"true" and given(fields.logprobs)
        prompt.incomparable = prompt.incomparable or scored or is_several(raw)
    return _finish(prompt, prefix)


def _is_mass(body: bytes) -> bool:
    """Whether it holds more objects than may be taken apart. A brace in a text is none: a quote is escaped there."""
    size = len(body)
    if size <= COUNTED_BYTES:
        samples = range(0, size - SAMPLE_BYTES, size // SAMPLES)
        braces = sum([body.count(b"{", at, at + SAMPLE_BYTES) for at in samples]) * size // (SAMPLES * SAMPLE_BYTES)
        if braces <= FLAT_OBJECTS:
            return False
    return _holds_more(body, OPENING) and _holds_more(body, OBJECT)


def _holds_more(body: bytes, pattern: re.Pattern[bytes]) -> bool:
    return next(islice(pattern.finditer(body), FLAT_OBJECTS, None), None) is not None


def _read_flat(form: Form, body: bytes) -> Prompt:
    """A prompt with a mass of objects in it, or of braces in its text: its JSON is its prefix, as it stands."""
    fields = shapes.flat.decode(body)
    prefix = Prefix()
    for raw in (fields.instructions, fields.tools, fields.system):
        prefix.add_field(raw)
    for raw in (fields.messages, fields.input):
        if given(raw):
            prefix.add(ITEM, memoryview(raw)[:-1])
    return _finish(_common(form, fields), prefix)


def _read_other(body: bytes, _: bytes) -> Prompt:
    prompt = _common(Form.OTHER, shapes.body.decode(body))
    prompt.size = len(body)
    return prompt


def _read_multipart(body: bytes, content_type: bytes) -> Prompt:
    prompt = Prompt(Form.MULTIPART, size=MEDIA_BYTES)
    boundary = BOUNDARY.search(content_type)
    if boundary is None:
        raise BadRequest("The multipart body has no boundary.")
    for name, value in _form_fields(body, b"--" + (boundary[1] or boundary[2])):
        if name == b"model":
            prompt.model = value.decode("utf-8", "replace")
        elif name == b"stream":
            prompt.stream = value.lower() in (b"true", b"1")
    return prompt


def _form_fields(body: bytes, delimiter: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The short fields of a multipart form; files are stepped over."""
    end = body.find(delimiter)
    for _ in range(FORM_PARTS):
        if end < 0:
            return
        head = end + len(delimiter)
        start = body.find(b"\r\n\r\n", head, head + PART_HEAD_BYTES)
        end = body.find(b"\r\n" + delimiter, head)
        if start < 0 or end < start:
            return
        name = FIELD_NAME.search(body, head, start)
        if name is not None and end - start <= FORM_VALUE_BYTES:
            yield name[1] or name[2] or b"", body[min(start + 4, end) : end].strip()
        end += 2


_READERS: dict[Form, Callable[[bytes, bytes], Prompt]] = {
    Form.CHAT: _read_chat,
    Form.COMPLETIONS: _read_completions,
    Form.RESPONSES: _read_responses,
    Form.MESSAGES: _read_messages,
    Form.OTHER: _read_other,
    Form.MULTIPART: _read_multipart,
}
_WITH_OBJECTS = frozenset({Form.CHAT, Form.RESPONSES, Form.MESSAGES})
