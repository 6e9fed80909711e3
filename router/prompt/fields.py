"""Single fields at the top of a body, found and added without writing the rest of it anew. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
from msgspec import Raw

from router.errors import BadRequest

MAX_FIELDS = 1_000
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLANKS = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def places_of(body: bytes, field: str) -> list[tuple[int, int]]:
    """First and last offset of the field's value, for every time that it stands at the top of a JSON object.

    A name may be written with escapes, and finding out that it stands nowhere costs more than reading all names does.
    Raises BadRequest for an object of too many fields, and for a name that is not UTF-8.
    """
    return [(start, end) for name, start, end in _fields(body) if name == field]


def inserted(body: bytes, field: str, value: bytes) -> bytes:
    """The body of a JSON object with one more field at its beginning."""
    at = body.index(b"{") + 1
    following = _BLANKS.match(body, at)
    assert following is not None
    comma = b"" if body[following.end() : following.end() + 1] == b"}" else b","
    return b"".join((body[:at], b'"', field.encode(), b'":', value, comma, body[at:]))


class _Name:
    """A field's name that equals no other, so that a dict of them keeps fields that stand twice."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class _Reader:
    """Reads the fields of one object after another."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(dict[_Name, Raw], dec_hook=self._name)
        self._count = 0

    def read(self, body: bytes) -> dict[_Name, Raw]:
        """Every field in order; raises BadRequest where there are too many, or a name is no text."""
        self._count = 0
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            # Names that routing has no use for were passed over unread until now.
            raise BadRequest(f"The body is not valid JSON: {error}") from None

    def _name(self, kind: type, text: str) -> _Name:
        self._count += 1
        if self._count > MAX_FIELDS:
            raise BadRequest(f"The body has more than {MAX_FIELDS} fields.")
        return _Name(text)


_reader = _Reader()


def _fields(body: bytes) -> Iterator[tuple[str, int, int]]:
    """Name, and first and last offset of the value, of every field at the top, those that stand twice too."""
    at = len(_BYTE_ORDER_MARK) if body.startswith(_BYTE_ORDER_MARK) else 0
    fields = _reader.read(body[at:] if at else body)
    at = body.index(b"{", at) + 1
    for name, raw in fields.items():
        # Between two fields stand only blanks and a comma, and between a name and its value blanks and a colon.
        written = _STRING.match(body, body.index(b'"', at))
        assert written is not None
        blanks = _BLANKS.match(body, body.index(b":", written.end()) + 1)
        assert blanks is not None
        start, at = blanks.end(), blanks.end() + len(raw)
        yield name.text, start, at
