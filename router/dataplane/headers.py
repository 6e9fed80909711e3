"""Header rules in both directions (RFC 9110 section 7.6.1), on raw pairs with lower-case names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

Headers = list[tuple[bytes, bytes]]

# Names of headers as most clients write them, since to look one up costs less than to write it anew.
USUAL_NAMES: Final = {
    spelling: name
    for name in (
        b"accept",
        b"accept-encoding",
        b"accept-language",
        b"authorization",
        b"connection",
        b"content-length",
        b"content-type",
        b"forwarded",
        b"host",
        b"openai-organization",
        b"openai-project",
        b"traceparent",
        b"transfer-encoding",
        b"user-agent",
        b"via",
        b"x-api-key",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
        b"x-real-ip",
        b"x-request-id",
        b"x-stainless-arch",
        b"x-stainless-async",
        b"x-stainless-lang",
        b"x-stainless-os",
        b"x-stainless-package-version",
        b"x-stainless-retry-count",
        b"x-stainless-runtime",
        b"x-stainless-runtime-version",
    )
    for spelling in (name, name.title())
}

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# The router writes these itself, or they concern only the hop to it.
_NOT_FORWARDED = HOP_BY_HOP | {b"host", b"content-length", b"expect", b"x-request-id"}
# Where a client may show its key.
_CLIENT_KEYS = frozenset({b"authorization", b"x-api-key"})
# Instructions to a reverse proxy and cookies are not a worker's business; framing is ours.
_NOT_RETURNED = HOP_BY_HOP | {
    b"set-cookie",
    b"content-length",
    b"x-request-id",
    b"x-router-worker",
    b"x-router-decision",
}
_ACCEL = b"x-accel-"


def upstream_head(
    method: bytes,
    target: bytes,
    authority: bytes,
    headers: Iterable[tuple[bytes, bytes]],
    length: int | None,
    request_id: bytes,
    authorization: bytes | None,
) -> bytes:
    """The request head for a worker; `authorization` replaces the client's key, and takes it away if it is empty."""
    dropped = _NOT_FORWARDED
    nominated = _nominated(headers)
    if nominated:
        dropped = dropped | nominated
    if authorization is not None:
        dropped = dropped | _CLIENT_KEYS
    lines = [b"%b: %b\r\n" % pair for pair in headers if pair[0] not in dropped]
    if authorization:
        lines.append(b"authorization: %b\r\n" % authorization)
    if length is not None:
        lines.append(b"content-length: %d\r\n" % length)
    fields = b"".join(lines)
    return b"%b %b HTTP/1.1\r\nhost: %b\r\n%bx-request-id: %b\r\n\r\n" % (
        method,
        target,
        authority,
        fields,
        request_id,
    )


def returned_lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A worker's response header as a client may see it, framing left out: lines with their ends."""
    lines = b""
    for name, value in headers:
        begin = _BEGINNINGS.get(name)
        if begin is None:
            begin = _beginning(name)
        if begin:
            lines += begin + value + b"\r\n"
        elif name == b"connection" and (nominated := _nominated(headers)):
            return returned_lines([header for header in headers if header[0] not in nominated | {b"connection"}])
    return lines


# By name, how its line begins, or nothing if it is not returned. Workers use few names.
_BEGINNINGS: dict[bytes, bytes] = {}
_MOST_BEGINNINGS = 1_000


def _beginning(name: bytes) -> bytes:
    begin = b"" if name in _NOT_RETURNED or name.startswith(_ACCEL) else name + b": "
    if len(_BEGINNINGS) < _MOST_BEGINNINGS:
        _BEGINNINGS[name] = begin
    return begin


def _nominated(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Names that `Connection` declares to concern this hop only."""
    lines = [value for name, value in headers if name == b"connection"]
    if not lines:
        return frozenset()
    return frozenset(part.strip().lower() for line in lines for part in line.split(b",")) - {
        b"close",
        b"keep-alive",
        b"",
    }


def first(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """The first value of a header."""
    for key, value in headers:
        if key == name:
            return value
    return None
