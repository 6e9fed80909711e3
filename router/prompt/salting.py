"""A tenant's own cache salt, put into a body without writing the rest of it anew.

Engines share a prefix among requests of equal salt alone, so a salt that no client can guess keeps tenants from
learning each other's prompts by the time that an answer takes. Pure.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterator

import msgspec
from msgspec import Raw

from router.errors import BadRequest

FIELD = "cache_salt"
MAX_FIELDS = 1_000
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLANKS = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def tenant_salt(secret: bytes, tenant: str, own: str | None) -> str:
    """64 hex digits: HMAC-SHA256 of the tenant and, if there is one, the client's own salt."""
    name = tenant.encode()
    message = len(name).to_bytes(4, "big") + name
    if own is not None:
        message += b"\x01" + own.encode("utf-8", "surrogatepass")
    return hmac.new(secret, message, "sha256").hexdigest()


def with_salt(body: bytes, salt_for: Callable[[str | None], str]) -> tuple[bytes, str]:
    """The body of a JSON object with another `cache_salt` at its top, and that salt; all other bytes are as before.

    `salt_for` is given the client's own salt, the last one where there are several, as engines take it; each of them
    is replaced. Raises BadRequest for a salt that is no text and for an object of too many fields.
    """
    if b"cache_salt" not in body and b"\\u" not in body:
        return _inserted(body, salt_for(None))
    places = [(start, end) for name, start, end in _fields(body) if name == FIELD]
    if not places:
        return _inserted(body, salt_for(None))
    start, end = places[-1]
    salt = salt_for(_own(body[start:end]))
    pieces = []
    at = 0
    for start, end in places:
        pieces += [body[at:start], b'"', salt.encode(), b'"']
        at = end
    pieces.append(body[at:])
    return b"".join(pieces), salt


def _inserted(body: bytes, salt: str) -> tuple[bytes, str]:
    at = body.index(b"{") + 1
    following = _BLANKS.match(body, at)
    assert following is not None
    comma = b"" if body[following.end() : following.end() + 1] == b"}" else b","
    return b"".join((body[:at], b'"', FIELD.encode(), b'":"', salt.encode(), b'"', comma, body[at:])), salt


def _own(raw: bytes) -> str | None:
    if raw == b"null":
        return None
    try:
        own = msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        own = ""
    if not own:
        raise BadRequest("cache_salt must be a string that is not empty, or null.", param=FIELD)
    return own


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
        """Every field in order; raises BadRequest where there are too many, or what msgspec raises."""
        self._count = 0
        return self._decoder.decode(body)

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
