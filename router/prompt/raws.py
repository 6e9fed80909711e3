"""Raw JSON values, looked at without being read. Apart from the shapes, which can't be compiled."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Raw

T = TypeVar("T")


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
