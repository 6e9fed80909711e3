"""Answers of workers, well-formed and not, and what the parser makes of them. Shared by tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from router import errors
from router.dataplane.upstream_parser import ResponseParser
from router.dataplane.upstream_types import UpstreamLimits

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
DEFAULTS = UpstreamLimits()
EMPTY = OK + b"Content-Length: 0\r\n\r\n"

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """End is `complete`, `truncated` (the bytes stopped) or `refused`; head and body count when complete."""

    end: str
    status: int = 0
    headers: Headers = ()
    body: bytes = b""
    reusable: bool = False


def read_answer(
    pieces: Iterable[bytes], *, method: bytes = b"POST", limits: UpstreamLimits = DEFAULTS, plain: bool = False
) -> Outcome:
    """What the parser makes of these pieces followed by the end of the connection.

    With `plain` whole chunks are taken past the engine, as a connection does that has a sink.
    """
    parser = ResponseParser(limits)
    parser.start(bodyless=method == b"HEAD")
    surplus = False
    for piece in pieces:
        if parser.done:
            # The connection takes any byte behind an answer as surplus; inside one piece a blank line is not seen.
            surplus = surplus or bool(piece.strip(b"\r\n"))
            continue
        if plain and (start := parser.plain_chunk(piece)):
            parser.pieces.append(piece[start:-2])
            continue
        try:
            parser.feed(piece)
        except errors.UpstreamProtocolError:
            return Outcome("refused")
    clean_so_far = parser.done
    if not parser.eof():
        return Outcome("truncated")
    reusable = clean_so_far and parser.keep_alive and not parser.surplus and not surplus
    return Outcome("complete", parser.status, tuple(parser.headers), b"".join(parser.pieces), reusable)


def bytewise(data: bytes) -> Iterator[bytes]:
    return (data[at : at + 1] for at in range(len(data)))


def cut(data: bytes, points: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(points), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges) if a < b]


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    data: bytes
    expected: Outcome
    method: bytes = b"POST"


def complete(status: int, headers: Headers, body: bytes = b"", *, reusable: bool = True) -> Outcome:
    return Outcome("complete", status, headers, body, reusable)


def _length(size: int) -> tuple[bytes, bytes]:
    return (b"content-length", b"%d" % size)


_TE = (b"transfer-encoding", b"chunked")
_THREE = complete(200, (_length(3),), b"abc")
_CHUNKS = complete(200, (_TE,), b"abcde")
_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"\xc3\xa9"}}]}\n\n'

WELL_FORMED = [
    Case("length", OK + b"Content-Length: 3\r\n\r\nabc", _THREE),
    Case("empty body", EMPTY, complete(200, (_length(0),))),
    Case("lower case", b"HTTP/1.1 200 OK\r\ncontent-length:3\r\n\r\nabc", _THREE),
    Case("chunks", CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", _CHUNKS),
    Case(
        "chunk sizes in upper and lower hex, with zeros",
        CHUNKED + b"0A\r\n0123456789\r\n00b\r\n0123456789a\r\n0\r\n\r\n",
        complete(200, (_TE,), b"01234567890123456789a"),
    ),
    Case("chunk extensions", CHUNKED + b'3;a=b;c="d e"\r\nabc\r\n2;x\r\nde\r\n0;last\r\n\r\n', _CHUNKS),
    Case("trailers are dropped", CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\nX-Sum: 1\r\nX-More: 2\r\n\r\n", _CHUNKS),
    Case("no chunk", CHUNKED + b"0\r\n\r\n", complete(200, (_TE,))),
    Case(
        "events",
        OK
        + b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        + b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT) * 3
        + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n",
        complete(200, ((b"content-type", b"text/event-stream; charset=utf-8"), _TE), _EVENT * 3 + b"data: [DONE]\n\n"),
    ),
    Case(
        "a body that looks like an answer",
        OK + b"Content-Length: %d\r\n\r\n" % len(EMPTY) + EMPTY,
        complete(200, (_length(len(EMPTY)),), EMPTY),
    ),
    Case(
        "coding in upper case",
        OK + b"TRANSFER-ENCODING: Chunked\r\n\r\n0\r\n\r\n",
        complete(200, ((b"transfer-encoding", b"Chunked"),)),
    ),
    Case(
        "until close",
        OK + b"X-A: b\r\n\r\nabc\r\n\r\nde",
        complete(200, ((b"x-a", b"b"),), b"abc\r\n\r\nde", reusable=False),
    ),
    Case("until close, empty", OK + b"X-A: b\r\n\r\n", complete(200, ((b"x-a", b"b"),), reusable=False)),
    Case(
        "connection close",
        OK + b"Connection: close\r\nContent-Length: 3\r\n\r\nabc",
        complete(200, ((b"connection", b"close"), _length(3)), b"abc", reusable=False),
    ),
    Case(
        "close among other options",
        OK + b"Connection: x, Close\r\nContent-Length: 3\r\n\r\nabc",
        complete(200, ((b"connection", b"x, Close"), _length(3)), b"abc", reusable=False),
    ),
    Case("HTTP/1.0", b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", replace(_THREE, reusable=False)),
    Case(
        "HTTP/1.0 that would keep the connection",
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc",
        complete(200, ((b"connection", b"keep-alive"), _length(3)), b"abc", reusable=False),
    ),
    Case("HTTP/1.0 until close", b"HTTP/1.0 200 OK\r\n\r\nabc", complete(200, (), b"abc", reusable=False)),
    Case("no reason", b"HTTP/1.1 200 \r\nContent-Length: 3\r\n\r\nabc", _THREE),
    Case("204", b"HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n", complete(204, ((b"x-a", b"b"),))),
    Case(
        "304 declares what it does not send",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n",
        complete(304, (_length(3),)),
    ),
    Case("HEAD with length", OK + b"Content-Length: 3\r\n\r\n", complete(200, (_length(3),), reusable=False), b"HEAD"),
    Case(
        "HEAD with chunks", OK + b"Transfer-Encoding: chunked\r\n\r\n", complete(200, (_TE,), reusable=False), b"HEAD"
    ),
    Case("HEAD without length", OK + b"X-A: b\r\n\r\n", complete(200, ((b"x-a", b"b"),), reusable=False), b"HEAD"),
    Case(
        "redirect",
        b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n",
        complete(302, ((b"location", b"http://169.254.169.254/"), _length(0))),
    ),
    Case(
        "service unavailable",
        b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 3\r\nContent-Length: 3\r\n\r\nabc",
        complete(503, ((b"retry-after", b"3"), _length(3)), b"abc"),
    ),
    Case(
        "content coding stays",
        OK + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08",
        complete(200, ((b"content-encoding", b"gzip"), _length(3)), b"\x1f\x8b\x08"),
    ),
    Case(
        "repeated fields keep their order",
        OK + b"Set-Cookie: a\r\nX-A: b\r\nSet-Cookie: c\r\nContent-Length: 0\r\n\r\n",
        complete(200, ((b"set-cookie", b"a"), (b"x-a", b"b"), (b"set-cookie", b"c"), _length(0))),
    ),
    Case(
        "blanks around values",
        OK + b"X-A: \t b c \t \r\nX-E:\r\nX-F: \r\nContent-Length: 3 \r\n\r\nabc",
        complete(200, ((b"x-a", b"b c"), (b"x-e", b""), (b"x-f", b""), _length(3)), b"abc"),
    ),
    Case(
        "bytes above ASCII and tabs in values",
        OK + b"X-A: b\xe9\tc\xff\r\nContent-Length: 0\r\n\r\n",
        complete(200, ((b"x-a", b"b\xe9\tc\xff"), _length(0))),
    ),
    Case(
        "100 and 103 first",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        + OK
        + b"Content-Length: 3\r\n\r\nabc",
        _THREE,
    ),
    Case(
        "an upgrade on offer",
        OK + b"Upgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: 3\r\n\r\nabc",
        complete(200, ((b"upgrade", b"h2c"), (b"connection", b"Upgrade"), _length(3)), b"abc"),
    ),
]

# The answer is good, what follows it is not: nobody sees it, and the connection goes.
SURPLUS = [
    Case("text behind a length", OK + b"Content-Length: 3\r\n\r\nabcEVIL", replace(_THREE, reusable=False)),
    Case("an answer behind a length", OK + b"Content-Length: 3\r\n\r\nabc" + EMPTY, replace(_THREE, reusable=False)),
    Case("half an answer", OK + b"Content-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\nX-E", replace(_THREE, reusable=False)),
    Case("an answer behind chunks", CHUNKED + b"5\r\nabcde\r\n0\r\n\r\n" + EMPTY, replace(_CHUNKS, reusable=False)),
    Case("an answer behind trailers", CHUNKED + b"5\r\nabcde\r\n0\r\nX-T: 1\r\n\r\n" + EMPTY,
         replace(_CHUNKS, reusable=False)),
    Case("a body behind HEAD", OK + b"Content-Length: 3\r\n\r\nabc",
         complete(200, (_length(3),), reusable=False), b"HEAD"),
    Case("a body without length behind HEAD", OK + b"X-A: b\r\n\r\nabc",
         complete(200, ((b"x-a", b"b"),), reusable=False), b"HEAD"),
    Case("chunks behind HEAD", CHUNKED + b"3\r\nabc\r\n0\r\n\r\n", complete(200, (_TE,), reusable=False), b"HEAD"),
    Case("a body behind 204", b"HTTP/1.1 204 No Content\r\n\r\nabc", complete(204, (), reusable=False)),
    Case("a body behind 304", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\nabc",
         complete(304, (_length(3),), reusable=False)),
    Case("an answer behind Connection: close", OK + b"Connection: close\r\nContent-Length: 3\r\n\r\nabc" + EMPTY,
         complete(200, ((b"connection", b"close"), _length(3)), b"abc", reusable=False)),
]  # fmt: skip

_TRUNCATED = Outcome("truncated")

TRUNCATED = [
    Case("nothing", b"", _TRUNCATED),
    Case("half a status line", b"HTTP/1.1 20", _TRUNCATED),
    Case("half a head", OK + b"Content-Le", _TRUNCATED),
    Case("a head without its blank line", OK + b"Content-Length: 3\r\n", _TRUNCATED),
    Case("a short body", OK + b"Content-Length: 3\r\n\r\nab", _TRUNCATED),
    Case("chunks without the last one", CHUNKED + b"3\r\nabc\r\n", _TRUNCATED),
    Case("half a chunk", CHUNKED + b"3\r\nab", _TRUNCATED),
    Case("a last chunk without its blank line", CHUNKED + b"3\r\nabc\r\n0\r\n", _TRUNCATED),
    Case("a head of a chunked answer", CHUNKED, _TRUNCATED),
    Case("only an informational answer", b"HTTP/1.1 100 Continue\r\n\r\n", _TRUNCATED),
    Case("a chunk of astronomical size", CHUNKED + b"ffffffffffffffff\r\nabc", _TRUNCATED),
]

_BAD_HEADS = {
    "another protocol": b"SSH-2.0-OpenSSH_9.2p1\r\n",
    "binary junk": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/0.9": b"HTTP/0.9 200 OK\r\n\r\n",
    "HTTP/1.2": b"HTTP/1.2 200 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/2.0": b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    "a request": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "two digits of status": b"HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n",
    "four digits of status": b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
    "status below 100": b"HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n",
    "status above 599": b"HTTP/1.1 600 OK\r\nContent-Length: 0\r\n\r\n",
    "two blanks before the status": b"HTTP/1.1  200 OK\r\nContent-Length: 0\r\n\r\n",
    "switching protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nabc",
    "101 without upgrade": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "informational with a body": b"HTTP/1.1 100 Continue\r\nContent-Length: 3\r\n\r\nabc" + EMPTY,
    "informational with chunks": b"HTTP/1.1 100 Continue\r\nTransfer-Encoding: chunked\r\n\r\n" + EMPTY,
    "informational with a length": b"HTTP/1.1 100 Continue\r\nContent-Length: 3\r\n\r\n" + EMPTY,
    "bare LF after the status line": b"HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n",
    "chunked in HTTP/1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
}
_BAD_FIELDS = {
    "length and coding": b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
    "coding and length": b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
    "two equal lengths": b"Content-Length: 3\r\nContent-Length: 3\r\n",
    "two lengths": b"Content-Length: 3\r\nContent-Length: 4\r\n",
    "a list of lengths": b"Content-Length: 3, 3\r\n",
    "signed length": b"Content-Length: +3\r\n",
    "negative length": b"Content-Length: -3\r\n",
    "hexadecimal length": b"Content-Length: 0x3\r\n",
    "length with a blank": b"Content-Length: 3 3\r\n",
    "empty length": b"Content-Length:\r\n",
    "length beyond 64 bits": b"Content-Length: 99999999999999999999\r\n",
    "continuation line": b"X-A: b\r\n c\r\nContent-Length: 0\r\n",
    "continuation of the length": b"Content-Length: 0\r\n\t3\r\n",
    "continuation of the status line": b" X-A: b\r\nContent-Length: 0\r\n",
    "bare LF after a field": b"X-A: b\nContent-Length: 0\r\n",
    "bare CR in a value": b"X-A: b\rc\r\nContent-Length: 0\r\n",
    "blank before the colon": b"X-A : b\r\nContent-Length: 0\r\n",
    "blank in a name": b"X A: b\r\nContent-Length: 0\r\n",
    "no name": b": b\r\nContent-Length: 0\r\n",
    "no colon": b"abc\r\nContent-Length: 0\r\n",
    "byte above ASCII in a name": b"X-\xe9: b\r\nContent-Length: 0\r\n",
    "gzip, chunked": b"Transfer-Encoding: gzip, chunked\r\n",
    "chunked, gzip": b"Transfer-Encoding: chunked, gzip\r\n",
    "gzip": b"Transfer-Encoding: gzip\r\n",
    "identity": b"Transfer-Encoding: identity\r\n",
    "chunked twice": b"Transfer-Encoding: chunked, chunked\r\n",
    "chunked twice in two fields": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "a coding that hides chunked": b"Transfer-Encoding: xchunked\r\n",
    "a coding that hides chunked with a tab": b"Transfer-Encoding: chunked\t\x0b\r\n",
    "empty coding": b"Transfer-Encoding: \r\n",
}
_BAD_CHUNKS = {
    "negative": b"-3\r\nabc\r\n",
    "prefixed": b"0x3\r\nabc\r\n",
    "seventeen digits": b"fffffffffffffffff\r\nabc\r\n",
    "empty size": b"\r\nabc\r\n",
    "blank after the size": b"3 \r\nabc\r\n",
    "bare LF after the size": b"3\nabc\r\n",
    "bare LF in an extension": b"3;a=\nb\r\nabc\r\n",
    "too long for its size": b"3\r\nabcd\r\n",
    "bare LF after the data": b"3\r\nabc\n",
    "a trailer with NUL in its name": b"3\r\nabc\r\n0\r\nX-\x00: b\r\n",
    "a trailer that declares a length": b"3\r\nabc\r\n0\r\nContent-Length: 3\r\n\r\n",
}

_REFUSED = Outcome("refused")

MALFORMED = [
    *(Case(name, data, _REFUSED) for name, data in _BAD_HEADS.items()),
    *(Case(name, OK + data + b"\r\n3\r\nabc\r\n0\r\n\r\n", _REFUSED) for name, data in _BAD_FIELDS.items()),
    *(Case(f"chunk: {name}", CHUNKED + data + b"0\r\n\r\n", _REFUSED) for name, data in _BAD_CHUNKS.items()),
    *(
        Case(f"byte {byte:#04x} in a value", OK + b"X-A: b%cc\r\nContent-Length: 0\r\n\r\n" % byte, _REFUSED)
        for byte in (*range(0x09), *range(0x0B, 0x0D), *range(0x0E, 0x20), 0x7F)
    ),
]

ALL = WELL_FORMED + SURPLUS + TRUNCATED + MALFORMED

# Damage: a few tokens of the grammar put in, taken out, or written over.
TOKENS = [
    *(b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b";", b",", b"0", b"1", b"3", b"a", b"f", b"\xff", b"\r\n "),
    *(b"\r\n\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"gzip, "),
    *(
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.0",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"-",
        b"+",
        b"0x",
    ),
]
EDITS = st.lists(
    st.tuples(st.sampled_from(["insert", "delete", "replace"]), st.integers(0, 200), st.sampled_from(TOKENS)),
    min_size=1,
    max_size=3,
)


def edited(data: bytes, edits: list[tuple[str, int, bytes]]) -> bytes:
    for kind, at, token in edits:
        at = min(at, len(data))
        end = at if kind == "insert" else at + len(token)
        data = data[:at] + (b"" if kind == "delete" else token) + data[end:]
    return data
