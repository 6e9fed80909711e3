"""The downstream protocol on raw sockets. What is refused, and how."""

from __future__ import annotations

import asyncio

import pytest

from tests.edges.server.rig import CHUNKED, Rig, error_of, post

SMUGGLED = b"0\r\n\r\nGET /v1/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
FRAMING: dict[str, bytes] = {
    "length-and-chunked": post(headers=CHUNKED + b"Content-Length: 4\r\n", length=False) + SMUGGLED,
    "chunked-and-length": post(headers=b"Content-Length: 4\r\n" + CHUNKED, length=False) + SMUGGLED,
    "two-lengths": post(headers=b"Content-Length: 3\r\nContent-Length: 4\r\n", length=False) + b"abcd",
    "two-equal-lengths": post(headers=b"Content-Length: 3\r\nContent-Length: 3\r\n", length=False) + b"abc",
    "length-list": post(headers=b"Content-Length: 2, 2\r\n", length=False) + b"ab",
    "signed-length": post(headers=b"Content-Length: +2\r\n", length=False) + b"ab",
    "negative-length": post(headers=b"Content-Length: -2\r\n", length=False) + b"ab",
    "hex-length": post(headers=b"Content-Length: 0x2\r\n", length=False) + b"ab",
    "empty-length": post(headers=b"Content-Length: \r\n", length=False),
    "two-codings": post(headers=CHUNKED + CHUNKED, length=False) + SMUGGLED,
    "gzip-chunked": post(headers=b"Transfer-Encoding: gzip, chunked\r\n", length=False) + SMUGGLED,
    "identity": post(headers=b"Transfer-Encoding: identity\r\n", length=False),
    "xchunked": post(headers=b"Transfer-Encoding: xchunked\r\n", length=False) + SMUGGLED,
    "chunked-in-1.0": b"POST /v1/x HTTP/1.0\r\nHost: a\r\n" + CHUNKED + b"\r\n" + SMUGGLED,
    "no-host": b"POST /v1/x HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "two-hosts": post(headers=b"Host: other\r\n"),
    "obs-fold": post(headers=b"X-A: 1\r\n 2\r\n"),
    "space-before-colon": post(headers=b"X-A : 1\r\n"),
    "nul-in-value": post(headers=b"X-A: a\0b\r\n"),
    "bare-cr": post(headers=b"X-A: a\rb\r\n"),
    "no-colon": post(headers=b"nonsense\r\n"),
    "bad-chunk-size": post(headers=CHUNKED, length=False) + b"-1\r\nx\r\n0\r\n\r\n",
    "huge-chunk-size": post(headers=CHUNKED, length=False) + b"11111111111111111\r\n",
    "bad-chunk-end": post(headers=CHUNKED, length=False) + b"1\r\nxyz0\r\n\r\n",
    "not-http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "http-2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "version-2.5": b"POST /v1/x HTTP/2.5\r\nHost: a\r\n\r\n",
    "version-2.0": b"POST /v1/x HTTP/2.0\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    "version-0.9": b"POST /v1/x HTTP/0.9\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    "chunked-in-0.9": b"POST /v1/x HTTP/0.9\r\nHost: a\r\n" + CHUNKED + b"\r\n" + SMUGGLED,
    "connect": b"CONNECT other:443 HTTP/1.1\r\nHost: other\r\n\r\n",
    "space-in-path": b"POST /v1/x y HTTP/1.1\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("case", FRAMING)
async def test_framing_that_can_be_read_in_two_ways_is_refused(rig: Rig, case: str) -> None:
    answer = await rig.exchange(FRAMING[case])
    assert error_of(answer) == (400, "bad_request")
    assert rig.gate.seen == []
    assert len(rig.gate.rejections) == 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"X-Long: %b\r\n" % (b"x" * 33 * 1024), 431),
        (b"X-Long: %b\r\n" % (b"x" * 31 * 1024), 200),
        (b"".join(b"X-%d: %b\r\n" % (number, b"x" * 1024) for number in range(33)), 431),
        (b"".join(b"X-%d: 1\r\n" % number for number in range(98)), 431),
        (b"".join(b"X-%d: 1\r\n" % number for number in range(97)), 200),
    ],
    ids=["one-of-33k", "one-of-31k", "33-of-1k", "101-fields", "100-fields"],
)
async def test_header_sections_have_a_size_and_a_number(rig: Rig, headers: bytes, status: int) -> None:
    answer = await rig.exchange(post(headers=headers + b"Connection: close\r\n"))
    assert int(answer.split(b" ")[1]) == status
    if status != 200:
        assert error_of(answer) == (431, "headers_too_large")


async def test_a_request_line_counts_as_header_bytes(rig: Rig) -> None:
    assert error_of(await rig.exchange(post(b"/v1/x?" + b"q" * 33 * 1024)))[0] == 431


async def test_a_header_field_that_never_ends_is_not_collected(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(b"POST /v1/x HTTP/1.1\r\nX-Endless: ")
        sent = 0
        while not rig.gate.rejections and sent < 4 << 20:
            await raw.send(b"x" * 65536)
            sent += 65536
            await asyncio.sleep(0)
        assert sent < 1 << 20
        assert error_of(await raw.rest())[0] == 431
