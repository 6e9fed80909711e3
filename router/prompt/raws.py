"""Raw JSON values, looked at without being read. Apart from the shapes, which can't be compiled."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Raw

T = TypeVar("T")
QUOTE = b'"'
# Up to this size a copy costs less than a view, which is two objects that the garbage collector follows.
COPIED_BYTES = 1024


def lenient(decoder: msgspec.json.Decoder[T], raw: Raw | bytes, default: T) -> T:
    """What the decoder makes of the value, or the default where it can't make anything of it."""
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return default


def given(raw: Raw) -> bool:
    """Whether a field is there and not null."""
    return len(raw) > 0 and (len(raw) != 4 or bytes(raw) != b"null")


def first(raw: Raw) -> bytes:
    """The first byte of a value, which tells its JSON type."""
    return bytes(memoryview(raw)[:1])


def inner(raw: Raw) -> bytes | memoryview | None:
    """What stands between the quotes of a string, as it is written; None for any other value, and for none."""
    if len(raw) <= COPIED_BYTES:
        copy = bytes(raw)
        return copy[1:-1] if copy.startswith(QUOTE) else None
    view = memoryview(raw)
    return view[1:-1] if view[0] == QUOTE[0] else None
