"""HTTP/1.1 pieces: a parsed request, response heads, chunk framing. No sockets here."""

from __future__ import annotations

import time
from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import parse_qsl

JSON = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"
LAST_CHUNK = b"0\r\n\r\n"
Headers = Iterable[tuple[bytes, bytes]]

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    for status in HTTPStatus
    if status.value >= 200
}


class Request:
    """One request as it was read. Header names and values are the client's bytes."""

    __slots__ = ("body", "headers", "http10", "keep_alive", "method", "path", "query", "target")

    def __init__(self, method: str, target: str, headers: list[tuple[bytes, bytes]]) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.body = b""
        self.keep_alive = True
        self.http10 = False
        path = target
        if not target.startswith("/"):
            # absolute form: the path is what follows the authority
            path = "/" + target.partition("://")[2].partition("/")[2]
        self.path, _, self.query = path.partition("?")

    def header(self, name: bytes) -> str | None:
        """The first header of that lower-case name."""
        size = len(name)
        for key, value in self.headers:
            if len(key) == size and key.lower() == name:
                return value.decode("latin-1")
        return None

    def parameter(self, name: str) -> str | None:
        """The first query parameter of that name."""
        for key, value in parse_qsl(self.query, keep_blank_values=True):
            if key == name:
                return value
        return None


class _Date:
    """The date header's text, made once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._line = b"date: " + formatdate(second, usegmt=True).encode() + b"\r\nserver: uvicorn\r\n"
        return self._line


_date = _Date()


def response_head(
    status: int, content_type: bytes, headers: Headers, *, length: int | None, chunked: bool, keep_alive: bool
) -> bytes:
    """The head of a response; a body that has no length and is not chunked ends with the connection."""
    parts = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d Scripted\r\n" % status, _date.line()]
    if length is not None:
        parts.append(b"content-length: %d\r\n" % length)
    parts.append(b"content-type: %b\r\n" % content_type)
    parts += [b"%b: %b\r\n" % header for header in headers]
    if chunked:
        parts.append(b"transfer-encoding: chunked\r\n")
    if not keep_alive:
        parts.append(b"connection: close\r\n")
    parts.append(b"\r\n")
    return b"".join(parts)


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)
