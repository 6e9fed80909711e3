"""Inputs from other inputs: flipped, spliced, truncated, doubled, with nasty pieces put in; from a seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

MAX_BYTES = 64 * 1024
NASTY = (
    b"\x00",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\r\n",
    b"\n\n",
    b"\r",
    b"\r\n\r\n",
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b"\\",
    b":",
    b",",
    b"null",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"-0",
    b"9" * 30,
    b"\\ud800",
    b"\\u0000",
    b"\xed\xa0\x80",
    b"\xc0\xaf",
    b"{}",
    b"[[[[[[[[",
    b'"usage":',
    b'"model":',
    b'"stream":true',
    b'"cache_salt":"x"',
    b"data: ",
    b"data: [DONE]\n\n",
    b"event: error\n",
    b": \n\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 3\r\n",
    b"Host: x\r\n",
    b"0\r\n\r\n",
    b"Upgrade: h2c\r\n",
    b"Connection: upgrade\r\n",
    b"HTTP/1.0",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"&a ",
    b"*a",
    b"!!int ",
    b"!!timestamp ",
    b"<<: ",
    b"? ",
    b"- ",
    b"\t",
    b"---\n",
    b"\xc1",
    b"\xdd\xff\xff\xff\xff",
    b"\xc6\x7f\xff\xff\xff",
    b"\xcb\x7f\xf0",
)


def mutated(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """One input near some of the corpus."""
    data = rng.choice(corpus)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5, 9))):
        data = rng.choice(_WAYS)(rng, data, corpus)[:MAX_BYTES]
    return data


def pieces(rng: random.Random, data: bytes) -> list[bytes]:
    """The same bytes in pieces of any size, none empty."""
    edges = sorted({0, len(data), *(rng.randint(0, len(data)) for _ in range(rng.choice((1, 2, 5, 20))))})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = rng.randint(0, len(data))
    return start, min(len(data), start + rng.choice((1, 2, 4, 16, 64, 512)))


def _flip(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes((data[at] ^ (1 << rng.randrange(8)),)) + data[at + 1 :]


def _overwrite(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + rng.randbytes(min(16, end - start)) + data[end:]


def _splice(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    other = rng.choice(corpus)
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


def _graft(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    other = rng.choice(corpus)
    start, end = _span(rng, other)
    at = rng.randint(0, len(data))
    return data[:at] + other[start:end] + data[at:]


def _truncate(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return data[: rng.randint(0, len(data))]


def _remove(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + data[end:]


def _double(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _span(rng, data)
    return data[:end] + data[start:end] * rng.choice((1, 1, 2, 50)) + data[end:]


def _insert(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + rng.choice(NASTY) * rng.choice((1, 1, 1, 2, 300)) + data[at:]


def _number(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """Another number in the place of one."""
    digits = [at for at, byte in enumerate(data) if 48 <= byte <= 57]
    if not digits:
        return data
    at = rng.choice(digits)
    return (
        data[:at]
        + rng.choice((b"0", b"-1", b"1e9", b"4294967296", b"18446744073709551616", b"7" * 5000))
        + data[at + 1 :]
    )


_WAYS = (_flip, _flip, _overwrite, _splice, _graft, _truncate, _remove, _double, _insert, _insert, _number)
