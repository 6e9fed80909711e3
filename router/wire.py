"""Bytes that the router itself puts on the wire: error bodies, error events, whole small responses, request ids."""

from __future__ import annotations

import json
from http import HTTPStatus

from router.errors import MethodNotAllowed, RouterError, Unauthorized

JSON_TYPE = b"application/json"


def error_body(error: RouterError) -> bytes:
    """The OpenAI form; the outer `type` lets Anthropic clients read it too."""
    inner = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return json.dumps({"type": "error", "error": inner}, ensure_ascii=False).encode("utf-8", "replace")


def error_event(error: RouterError) -> bytes:
    """An event that clients of a begun stream understand as its failure."""
    return b"data: " + error_body(error) + b"\n\n"


def error_headers(error: RouterError) -> list[tuple[bytes, bytes]]:
    """The headers that go with an error, content length and request id apart."""
    headers = [(b"content-type", JSON_TYPE)]
    if error.retry_after is not None:
        headers.append((b"retry-after", str(error.retry_after).encode()))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allow.encode()))
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def plain_error(error: RouterError, request_id: str) -> bytes:
    """A whole HTTP/1.1 response that closes its connection, for requests that never became one."""
    try:
        phrase = HTTPStatus(error.status).phrase
    except ValueError:
        phrase = "Error"
    body = error_body(error)
    fields = b"".join(b"%b: %b\r\n" % pair for pair in error_headers(error))
    head = f"content-length: {len(body)}\r\nx-request-id: {request_id}\r\nconnection: close\r\n\r\n"
    return f"HTTP/1.1 {error.status} {phrase}\r\n".encode() + fields + head.encode() + body


_REQUEST_ID_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/+=")


def usable_request_id(value: bytes | None) -> bool:
    """A client's request id is kept if it is short and harmless in headers, logs and labels."""
    return value is not None and 0 < len(value) <= 128 and not frozenset(value) - _REQUEST_ID_BYTES
