"""Heads that two readers could take for different requests are refused, whatever the parser before has let through."""

from __future__ import annotations

import itertools

import pytest

from router.dataplane.framing import check_framing, head_without_upgrade
from router.errors import BadRequest, PayloadTooLarge

HOST = (b"host", b"r")
LENGTH = (b"content-length", b"5")
CHUNKED = (b"transfer-encoding", b"chunked")
EXPECT = (b"expect", b"100-continue")
Headers = tuple[tuple[bytes, bytes], ...]


def check(headers: Headers, version: str = "1.1") -> bool:
    fields: dict[bytes, bytes] = {}
    for name, value in headers:
        fields.setdefault(name, value)
    return check_framing(headers, fields, version, 1_000)


@pytest.mark.parametrize(
    ("headers", "version"),
    [
        ((HOST,), "1.1"),
        ((HOST, LENGTH), "1.1"),
        ((HOST, (b"content-length", b" 1000 ")), "1.1"),
        ((HOST, CHUNKED), "1.1"),
        ((HOST, (b"transfer-encoding", b" Chunked ")), "1.1"),
        ((HOST, (b"accept", b"a"), (b"accept", b"b")), "1.1"),
        ((), "1.0"),
        ((LENGTH,), "1.0"),
        ((HOST, LENGTH), "1.0"),
    ],
)
def test_one_length_and_one_host_are_fine_in_any_order(headers: Headers, version: str) -> None:
    for order in itertools.permutations(headers):
        assert check(order, version) is False


@pytest.mark.parametrize(
    ("headers", "version", "words"),
    [
        ((HOST, LENGTH, LENGTH), "1.1", "more than once"),
        ((HOST, LENGTH, CHUNKED), "1.1", "more than once"),
        ((HOST, CHUNKED, CHUNKED), "1.1", "more than once"),
        ((HOST, CHUNKED, CHUNKED, LENGTH), "1.1", "more than once"),
        ((HOST, LENGTH, LENGTH), "1.0", "more than once"),
        ((HOST, (b"transfer-encoding", b"gzip, chunked")), "1.1", "Only one transfer coding"),
        ((HOST, (b"transfer-encoding", b"identity")), "1.1", "Only one transfer coding"),
        ((HOST, (b"transfer-encoding", b"")), "1.1", "Only one transfer coding"),
        ((HOST, CHUNKED), "1.0", "no chunked bodies"),
        ((HOST, HOST), "1.1", "exactly one Host"),
        ((HOST, HOST), "1.0", "exactly one Host"),
        ((), "1.1", "exactly one Host"),
        ((LENGTH,), "1.1", "exactly one Host"),
        ((HOST,), "1.2", "HTTP/1.1 and HTTP/1.0"),
        ((HOST,), "2.0", "HTTP/1.1 and HTTP/1.0"),
        *(((HOST, (b"content-length", odd)), "1.1", "not a number") for odd in (b"", b"+5", b"-5", b"5, 5", b"0x5")),
    ],
)
def test_what_can_be_taken_in_two_ways_is_refused_in_any_order(headers: Headers, version: str, words: str) -> None:
    for order in itertools.permutations(headers):
        with pytest.raises(BadRequest, match=words):
            check(order, version)


@pytest.mark.parametrize("more", [(), (EXPECT,), ((b"accept", b"a"), (b"accept", b"b"))])
@pytest.mark.parametrize("length", [b"1001", b"9" * 19, b"9" * 5_000, b"0" * 19])
def test_a_length_beyond_the_bound_is_refused_at_once(length: bytes, more: Headers) -> None:
    with pytest.raises(PayloadTooLarge, match="larger than 1000 bytes"):
        check((HOST, (b"content-length", length), *more))


@pytest.mark.parametrize("value", [b"100-continue", b" 100-Continue "])
def test_a_client_that_waits_for_leave_is_told_apart(value: bytes) -> None:
    assert check((HOST, LENGTH, (b"expect", value)))
    assert check((HOST, CHUNKED, (b"expect", value)))
    assert not check((HOST, LENGTH, (b"expect", b"something else")))


def test_a_wish_for_another_protocol_is_taken_out_and_nothing_else() -> None:
    headers = [
        HOST,
        (b"connection", b"Upgrade, HTTP2-Settings"),
        (b"upgrade", b"h2c"),
        (b"http2-settings", b"x"),
        LENGTH,
    ]
    assert head_without_upgrade(b"POST", b"/v1/x?y", "1.1", headers) == (
        b"POST /v1/x?y HTTP/1.1\r\nhost: r\r\nconnection: \r\ncontent-length: 5\r\n\r\n"
    )
    closing = [HOST, (b"connection", b"Close, upgrade"), (b"upgrade", b"websocket")]
    assert b"connection: close\r\n" in head_without_upgrade(b"GET", b"/", "1.1", closing)
