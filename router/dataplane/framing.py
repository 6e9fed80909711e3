"""What the parser leaves open and a proxy must not: heads that two readers could take for different requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.errors import BadRequest, PayloadTooLarge


def check_framing(
    headers: Sequence[tuple[bytes, bytes]], fields: Mapping[bytes, bytes], version: str, body_bytes: int
) -> bool:
    """Whether the client waits for leave to send its body; raises BadRequest, PayloadTooLarge.

    `headers` are raw pairs with lower-case names, `fields` the first value of each.
    """
    usual = len(fields) == len(headers) and b"transfer-encoding" not in fields and b"expect" not in fields
    if usual and b"host" in fields and version == "1.1":
        length = fields.get(b"content-length")
        if length is not None:
            _check_length(length.strip(), body_bytes)
        return False
    return _check_unusual(headers, version, body_bytes)


def head_without_upgrade(method: bytes, target: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A request's head as it would be if its client had not wished for another protocol."""
    lines = [b"%b %b HTTP/%b" % (method, target, version.encode())]
    for name, value in headers:
        if name == b"connection":
            value = b"close" if b"close" in value.lower() else b""
        elif name in (b"upgrade", b"http2-settings"):
            continue
        lines.append(name + b": " + value)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _check_unusual(headers: Sequence[tuple[bytes, bytes]], version: str, body_bytes: int) -> bool:
    hosts = lengths = codings = 0
    expects = False
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            lengths += 1
            _check_length(value.strip(), body_bytes)
        elif name == b"transfer-encoding":
            codings += 1
            if value.strip().lower() != b"chunked":
                raise BadRequest("Only one transfer coding, chunked, is understood.")
        elif name == b"expect":
            expects = value.strip().lower() == b"100-continue"
    if lengths + codings > 1:
        raise BadRequest("The length of the body is given more than once.")
    _check_version(version, hosts, codings)
    return expects


def _check_version(version: str, hosts: int, codings: int) -> None:
    old = version == "1.0"
    if not old and version != "1.1":
        raise BadRequest("Only HTTP/1.1 and HTTP/1.0 are spoken here.")
    if codings and old:
        raise BadRequest("HTTP/1.0 has no chunked bodies.")
    if hosts > 1 or (hosts == 0 and not old):
        raise BadRequest("A request has exactly one Host header.")


def _check_length(value: bytes, body_bytes: int) -> None:
    if not value.isdigit():
        raise BadRequest("Content-Length is not a number.")
    if len(value) > 18 or int(value) > body_bytes:
        raise PayloadTooLarge(f"The body is larger than {body_bytes} bytes.")
