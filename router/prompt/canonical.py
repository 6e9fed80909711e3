"""Fields of a prompt -> its canonical bytes, in the order in which the engine renders them.

Text enters as the bytes that stand between the quotes of the JSON string, still escaped: one client escapes alike in
every turn, and decoding would double the cost. Control bytes, which JSON text can't contain, mark where a part begins,
and nothing is ever appended behind the last part, so a longer conversation only adds bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw
from xxhash import xxh3_128, xxh3_128_digest

from router.hashing import HORIZON_BYTES
from router.prompt import shapes
from router.prompt.raws import first, given, inner, lenient
from router.prompt.shapes import EMPTY, MEDIA_BYTES, Item, Message, Part

ROLE, TEXT, FIELD, MEDIA, ITEM = b"\x01", b"\x02", b"\x03", b"\x04", b"\x05"
# A text part begins on a new line of the rendered prompt; this is the line break as JSON escapes it.
LINE_BREAK = b"\\n"
# vLLM drops system blocks that begin so.
BILLING_HEADER = b"x-anthropic-billing-header"
# What each piece of a prompt takes of the horizon beside its bytes, so that the work stays bounded where a body is
# nothing but tiny pieces: 16,384 of them at most are looked at.
PIECE_COST = 512
# What is not of the usual shape takes so much more, as it is read a second time,
ODD_COST = 4 * PIECE_COST
# and is looked into up to this size.
ODD_BYTES = 64 * 1024
_NOTHING = Part()
OPENINGS = {role: ROLE + role.encode() for role in ("system", "developer", "user", "assistant", "tool")}
# What begins a message that is one string.
STARTS: dict[str | None, bytes] = {role: opening + TEXT for role, opening in OPENINGS.items()}


class Prefix:
    """Collects canonical bytes up to the horizon and counts the rest; where it ends depends on what comes before."""

    __slots__ = ("parts", "room", "size")

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview | Raw] = []
        self.room = HORIZON_BYTES
        self.size = 0

    def add(self, mark: bytes, raw: bytes | memoryview | Raw) -> None:
        length = len(mark) + len(raw)
        self.size += length
        if self.room > 0:
            self.parts.append(mark)
            self.parts.append(raw if length <= self.room else memoryview(raw)[: self.room])
            self.room -= length + PIECE_COST

    def add_field(self, raw: Raw) -> None:
        """A value that enters as its JSON, if it is there at all."""
        if given(raw):
            self.add(FIELD, raw)

    def add_digest(self, raw: Raw) -> None:
        """Data that enters as its digest."""
        self.add(MEDIA, xxh3_128_digest(memoryview(raw)) if self.room > 0 else b"")
        self.size += MEDIA_BYTES

    def add_opaque(self, raw: Raw) -> None:
        """Something of unknown shape, which may be large: equal only to itself."""
        if self.room > 0:
            self.room -= ODD_COST
            digest = xxh3_128()
            fields = lenient(shapes.fields, raw, {}) if len(raw) <= ODD_BYTES else {}
            # A marker that clients move from turn to turn.
            fields.pop("cache_control", None)
            for name, value in fields.items():
                digest.update(name.encode())
                digest.update(memoryview(value))
            self.add(MEDIA, digest.digest() if fields else xxh3_128_digest(memoryview(raw)))
        self.size += min(len(raw), MEDIA_BYTES)

    def bytes(self) -> bytes:
        joined = b"".join(self.parts)
        return joined if len(joined) <= HORIZON_BYTES else joined[:HORIZON_BYTES]


def add_messages(prefix: Prefix, messages: Sequence[Message]) -> None:
    """Role, content, name, tools and calls, reasoning of each message."""
    add = prefix.parts.append
    empty = EMPTY
    for position, message in enumerate(messages):
        if prefix.room <= 0:
            _count_messages(prefix, messages[position:])
            return
        text = inner(message.content)
        start = STARTS.get(message.role)
        if start is not None and text is not None and (length := len(start) + len(text)) <= prefix.room:
            # Nearly all messages are a string of a known role: as `Prefix.add`, without the call.
            add(start)
            add(text)
            prefix.size += length
            prefix.room -= length + PIECE_COST
        else:
            _add_message(prefix, message, text)
        if message.name is not empty:
            prefix.add_field(message.name)
        if message.tools is not empty:
            prefix.add_field(message.tools)
        if message.tool_calls is not empty:
            prefix.add_field(message.tool_calls)
        if message.tool_call_id is not empty:
            prefix.add_field(message.tool_call_id)
        if message.reasoning is not empty:
            prefix.add_field(message.reasoning)
        if message.reasoning_content is not empty:
            prefix.add_field(message.reasoning_content)


def _add_message(prefix: Prefix, message: Message, text: bytes | memoryview | None) -> None:
    """Role and content, whatever they are; the text of a content that is a string."""
    role = message.role or ""
    opening = OPENINGS.get(role) or ROLE + role.encode("utf-8", "replace")
    if text is not None:
        prefix.add(opening + TEXT, text)
    else:
        prefix.add(opening, b"")
        add_content(prefix, message.content)


def add_items(prefix: Prefix, raw: Raw) -> None:
    """The list form of the responses input: messages, calls, outputs, reasoning, and whatever else there is."""
    items = shapes.items.decode(raw)
    raws: list[Raw] = []
    for position, item in enumerate(items):
        if prefix.room <= 0:
            _count_messages(prefix, items[position:])
            return
        if item.role:
            add_messages(prefix, (item,))
            continue
        before = prefix.size
        for field in (item.call_id, item.name, item.arguments, item.summary):
            prefix.add_field(field)
        add_content(prefix, item.content)
        add_content(prefix, item.output)
        if prefix.size == before:
            raws = raws or shapes.raws.decode(raw)
            prefix.add_opaque(raws[position])
        else:
            prefix.add_field(item.type)


def _count_messages(prefix: Prefix, messages: Sequence[Message]) -> None:
    """Beyond the horizon only sizes count, and only lists that are large enough to hold media are looked into."""
    for message in messages:
        content = message.content
        if len(content) > MEDIA_BYTES and first(content) != b'"':
            add_content(prefix, content)
            content = EMPTY
        size = len(content) + len(message.tool_calls) + len(message.reasoning) + len(message.reasoning_content)
        if isinstance(message, Item):
            size += len(message.arguments) + len(message.summary)
            add_content(prefix, message.output)
        prefix.size += size


def add_content(prefix: Prefix, raw: Raw, *, system: bool = False) -> None:
    """What a message says: a string, or a list of parts."""
    if not given(raw):
        return
    text = inner(raw)
    if text is not None:
        prefix.add(TEXT, text)
    elif first(raw) == b"[":
        _add_parts(prefix, raw, system, 1)
    else:
        prefix.add_opaque(raw)


def add_prompt(prefix: Prefix, raw: bytes) -> int | None:
    """A completions prompt: text, token ids, or a list of either. Returns the token count where it is exact."""
    # Without the outer brackets a list of one prompt is the same as the prompt, and a longer one only adds bytes.
    inner = raw.strip(b"[] \t\r\n")
    if inner[:1] == b'"':
        prefix.add(TEXT, memoryview(inner)[1:-1])
        return None
    prefix.add(ITEM, inner)
    if inner[:1].isdigit():
        return inner.count(b",") + 1
    return None if inner else 0


def is_several(raw: bytes) -> bool:
    """Whether a completions prompt is a list of more than one text, or of more than one list of token ids."""
    if raw[:1] != b"[":
        return False
    inner = raw[1:].lstrip()
    if inner[:1] == b'"':
        return len(lenient(shapes.raws, raw, [])) > 1
    return inner[:1] == b"[" and b"]" in inner.strip(b"[] \t\r\n")


def _add_parts(prefix: Prefix, raw: Raw, system: bool, may_nest: int) -> None:
    try:
        parts = shapes.parts.decode(raw)
    except msgspec.ValidationError:
        _add_odd_parts(prefix, raw)
        return
    raws: list[Raw] = []
    mark = TEXT
    for position, part in enumerate(parts):
        if prefix.room <= 0:
            _count_parts(prefix, parts[position:])
            return
        text = inner(part.text)
        if text is not None:
            if system and text[: len(BILLING_HEADER)] == BILLING_HEADER:
                continue
            prefix.add(mark, text)
            mark = LINE_BREAK
            continue
        before = prefix.size
        _add_other_part(prefix, part, may_nest)
        if prefix.size == before:
            raws = raws or shapes.raws.decode(raw)
            prefix.add_opaque(raws[position])
        mark = TEXT


def _count_parts(prefix: Prefix, parts: Sequence[Part]) -> None:
    for part in parts:
        if part.text is EMPTY and part != _NOTHING:
            _add_other_part(prefix, part, 1)
        prefix.size += len(part.text)


def _add_odd_parts(prefix: Prefix, raw: Raw) -> None:
    """A list of bare strings, which vLLM takes for a list of text parts, or of anything else."""
    prefix.room -= ODD_COST
    if prefix.room > 0 and len(raw) <= ODD_BYTES:
        elements = shapes.raws.decode(raw)
        texts = [text for element in elements if (text := inner(element)) is not None]
        if len(texts) == len(elements):
            mark = TEXT
            for text in texts:
                prefix.add(mark, text)
                mark = LINE_BREAK
            return
    prefix.add_opaque(raw)


def _add_other_part(prefix: Prefix, part: Part, may_nest: int) -> None:
    media = (part.image_url, part.input_audio, part.audio_url, part.video_url, part.image, part.source)
    for raw in (*media, part.file, part.file_data):
        if raw is not EMPTY and given(raw):
            prefix.add_digest(raw)
    for raw in (part.id, part.name, part.input, part.tool_use_id, part.thinking, part.refusal):
        if raw is not EMPTY:
            prefix.add_field(raw)
    if part.content is not EMPTY:
        # The result of a tool holds parts of its own; nothing nests deeper.
        if first(part.content) != b"[":
            add_content(prefix, part.content)
        elif may_nest:
            _add_parts(prefix, part.content, False, may_nest - 1)
        else:
            prefix.add_opaque(part.content)
