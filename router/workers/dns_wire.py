"""Questions to a name server and its answers, in bytes (RFC 1035, with the larger datagrams of RFC 6891). Pure."""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass
from typing import Final

A: Final = 1
AAAA: Final = 28
_IN: Final = 1
_OPT: Final = 41
NOERROR: Final = 0
NXDOMAIN: Final = 3
# What most networks carry in one piece; a longer answer is asked for over TCP.
DATAGRAM_BYTES: Final = 1232
MAX_ADDRESSES: Final = 1_000
_HEADER: Final = struct.Struct("!HHHHHH")
_RECORD: Final = struct.Struct("!HHIH")
_MAX_LABEL: Final = 63
_MAX_NAME: Final = 253
# No name has more labels, so more jumps than that go in circles.
_MAX_JUMPS: Final = 128


class Malformed(ValueError):
    """What came is no answer to what was asked."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`code` is the server's (NOERROR, NXDOMAIN, ...); `truncated` means that the rest has to be asked for over TCP."""

    code: int
    truncated: bool
    addresses: tuple[str, ...]


def question(number: int, name: str, kind: int) -> bytes:
    """A recursive query for the records of one kind; raises ValueError for what is no name."""
    header = _HEADER.pack(number, 0x0100, 1, 0, 0, 1)
    options = b"\0" + _RECORD.pack(_OPT, DATAGRAM_BYTES, 0, 0)
    return header + _encoded(name) + struct.pack("!HH", kind, _IN) + options


def answer(data: bytes, number: int, name: str, kind: int) -> Answer:
    """The addresses of an answer, those behind aliases too; raises Malformed if it answers something else."""
    try:
        return _answer(data, number, name, kind)
    except (struct.error, IndexError):
        raise Malformed("cut off") from None


def _answer(data: bytes, number: int, name: str, kind: int) -> Answer:
    given, flags, questions, answers, _, _ = _HEADER.unpack_from(data)
    if given != number or not flags & 0x8000 or questions != 1:
        raise Malformed("not the answer to this question")
    asked, at = _name(data, _HEADER.size)
    if asked != name.rstrip(".").lower() or struct.unpack_from("!HH", data, at) != (kind, _IN):
        raise Malformed("the answer to another question")
    at += 4
    addresses: dict[str, None] = {}
    truncated = bool(flags & 0x0200)
    for _ in range(0 if truncated else answers):
        _, at = _name(data, at)
        record, group, _, size = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        if at + size > len(data):
            raise Malformed("cut off")
        if record == kind and group == _IN and size == (4 if kind == A else 16):
            addresses[str(ipaddress.ip_address(data[at : at + size]))] = None
            if len(addresses) > MAX_ADDRESSES:
                raise Malformed(f"more than {MAX_ADDRESSES} addresses")
        at += size
    return Answer(flags & 0x000F, truncated, tuple(addresses))


def _encoded(name: str) -> bytes:
    bare = name.rstrip(".")
    labels = bare.encode("ascii").split(b".")
    if len(bare) > _MAX_NAME or not all(0 < len(label) <= _MAX_LABEL for label in labels):
        raise ValueError(f"not a host name: {name[:80]}")
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def _name(data: bytes, at: int) -> tuple[str, int]:
    """The name at an offset, and where the next field begins; pointers are followed."""
    labels: list[bytes] = []
    after = -1
    for _ in range(_MAX_JUMPS):
        length = data[at]
        if length & 0xC0 == 0xC0:
            after = at + 2 if after < 0 else after
            at = (length & 0x3F) << 8 | data[at + 1]
        elif length & 0xC0:
            raise Malformed("a label of an unknown kind")
        elif length == 0:
            return b".".join(labels).decode("ascii", "replace").lower(), at + 1 if after < 0 else after
        else:
            labels.append(data[at + 1 : at + 1 + length])
            at += 1 + length
    raise Malformed("a name without an end")
