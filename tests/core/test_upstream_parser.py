"""The answer parser, fed from bytes alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router import errors
from router.dataplane.upstream_parser import PIECE_OVERHEAD, ResponseParser
from router.dataplane.upstream_types import UpstreamLimits
from tests.core.upstream_corpus import ALL, CHUNKED, EDITS, EMPTY, OK, Case, Outcome, bytewise, cut, edited, read_answer

by_name = pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)


@by_name
def test_whole(case: Case) -> None:
    assert read_answer([case.data], method=case.method) == case.expected


@by_name
def test_byte_by_byte(case: Case) -> None:
    assert read_answer(bytewise(case.data), method=case.method) == case.expected


@by_name
def test_every_split_point(case: Case) -> None:
    for at in range(1, len(case.data)):
        assert read_answer([case.data[:at], case.data[at:]], method=case.method) == case.expected, at


@settings(max_examples=300)
@given(case=st.sampled_from(ALL), points=st.lists(st.integers(0, 400), max_size=12))
def test_any_chunking_gives_the_same(case: Case, points: list[int]) -> None:
    pieces = cut(case.data, [point for point in points if point < len(case.data)])
    assert read_answer(pieces, method=case.method) == case.expected


@settings(max_examples=300)
@given(case=st.sampled_from(ALL), edits=EDITS, points=st.lists(st.integers(0, 400), max_size=6))
def test_damaged_answers_do_not_depend_on_chunking(
    case: Case, edits: list[tuple[str, int, bytes]], points: list[int]
) -> None:
    data = edited(case.data, edits)
    whole = read_answer([data], method=case.method)
    assert read_answer(cut(data, [point for point in points if point < len(data)]), method=case.method) == whole
    assert read_answer(bytewise(data), method=case.method) == whole


@settings(max_examples=200)
@given(
    body=st.lists(st.binary(min_size=1, max_size=40), max_size=8),
    points=st.lists(st.integers(0, 600), max_size=12),
    chunked=st.booleans(),
)
def test_any_body_arrives_intact(body: list[bytes], points: list[int], chunked: bool) -> None:
    content = b"".join(body)
    if chunked:
        data = CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in body) + b"0\r\n\r\n"
    else:
        data = OK + b"Content-Length: %d\r\n\r\n" % len(content) + content
    outcome = read_answer(cut(data, [point for point in points if point < len(data)]))
    assert (outcome.end, outcome.body, outcome.reusable) == ("complete", content, True)


CHUNKS = st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=8)


@settings(max_examples=500)
@given(body=CHUNKS, edits=EDITS, at=st.integers(0, 10), points=st.lists(st.integers(0, 900), max_size=3))
def test_whole_chunks_past_the_engine_change_nothing(
    body: list[bytes], edits: list[tuple[str, int, bytes]], at: int, points: list[int]
) -> None:
    pieces = [CHUNKED, *(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in body), b"0\r\n\r\n"]
    pieces[at % len(pieces)] = edited(pieces[at % len(pieces)], edits)
    whole = b"".join(pieces)
    pieces = [piece for piece in pieces if piece] if not points else cut(whole, [p for p in points if p < len(whole)])
    assert read_answer(pieces, plain=True) == read_answer(pieces)


@by_name
def test_every_split_point_with_whole_chunks_past_the_engine(case: Case) -> None:
    for at in range(1, len(case.data)):
        pieces = [case.data[:at], case.data[at:]]
        assert read_answer(pieces, method=case.method, plain=True) == case.expected, at


def test_a_whole_chunk_is_known_only_between_two_chunks() -> None:
    chunk = b"5\r\nhello\r\n"
    parser = ResponseParser(UpstreamLimits())
    assert parser.plain_chunk(chunk) == 0
    parser.feed(CHUNKED)
    assert parser.plain_chunk(chunk) == 0  # the engine has not seen that it is in a chunked body
    parser.feed(chunk)
    assert (parser.plain_chunk(chunk), parser.plain_chunk(chunk)) == (3, 3)
    parser.feed(chunk[:4])
    assert parser.plain_chunk(chunk) == 0
    parser.feed(chunk[4:])
    assert parser.plain_chunk(b"10\r\n" + b"\r\n" * 8 + b"\r\n") == 4
    parser.feed(b"5\r\n")
    assert parser.plain_chunk(chunk) == 0
    parser.feed(chunk[3:] + b"0\r\n\r\n")
    assert parser.done
    assert b"".join(parser.pieces) == b"hello" * 3


@pytest.mark.parametrize(
    "data",
    [
        *(b"0\r\n\r\n", b"05\r\nhello\r\n", b"A\r\n0123456789\r\n", b"5 \r\nhello\r\n", b"5;a\r\nhello\r\n"),
        *(b"+5\r\nhello\r\n", b"0x5\r\nhello\r\n", b"1_0\r\n0123456789abcdef\r\n", b"5\r\nhello\r\n" * 2),
        *(b"4\r\nhello\r\n", b"6\r\nhello\r\n", b"5\nhello\r\n", b"\r\n", b"5\r\nhello\r", b"5\r\n\r\n"),
    ],
)
def test_anything_but_one_plain_chunk_is_fed(data: bytes) -> None:
    parser = ResponseParser(UpstreamLimits())
    parser.feed(CHUNKED + b"5\r\nhello\r\n")
    assert parser.plain_chunk(data) == 0


@given(data=st.binary(max_size=200), at=st.integers(0, 200))
def test_junk_never_escapes_as_another_error(data: bytes, at: int) -> None:
    assert read_answer(cut(data, [min(at, len(data))])).end in {"refused", "truncated", "complete"}


def test_answers_follow_each_other_on_one_parser() -> None:
    parser = ResponseParser(UpstreamLimits())
    trailing = CHUNKED + b"3\r\nabc\r\n0\r\nX-Left: over\r\n\r\n"
    for data, body in (
        (trailing, b"abc"),
        (OK + b"Content-Length: 2\r\n\r\nde", b"de"),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", b""),
        (b"HTTP/1.1 100 Continue\r\nX-A: b\r\n\r\n" + EMPTY, b""),
        (trailing, b"abc"),
    ):
        parser.start()
        parser.feed(data)
        assert parser.done
        assert parser.keep_alive
        assert not parser.surplus
        assert b"".join(parser.pieces) == body
        assert len(parser.headers) == 1
        assert parser.received == len(data)


@pytest.mark.parametrize("case", [case for case in ALL if case.expected.reusable], ids=lambda case: case.name)
def test_the_end_of_a_connection_ends_no_answer_because_of_the_one_before(case: Case) -> None:
    parser = ResponseParser(UpstreamLimits())
    for begun in (b"", OK + b"Content-Length: 5\r\n\r\nhe", CHUNKED + b"5\r\nhello\r\n"):
        parser.start()
        parser.feed(case.data)
        assert parser.done
        parser.start()
        if begun:
            parser.feed(begun)
        assert not parser.eof()
        parser = ResponseParser(UpstreamLimits())


def test_the_head_is_known_before_the_body() -> None:
    parser = ResponseParser(UpstreamLimits())
    parser.feed(OK + b"Content-Length: 5\r\nX-A: b\r\n\r\n")
    assert (parser.head_done, parser.done, parser.status, parser.content_length) == (True, False, 200, 5)
    parser.feed(b"ab")
    assert (parser.pieces, parser.buffered) == ([b"ab"], 2 + PIECE_OVERHEAD)


def test_pieces_before_a_fault_are_kept() -> None:
    parser = ResponseParser(UpstreamLimits())
    with pytest.raises(errors.UpstreamProtocolError):
        parser.feed(CHUNKED + b"3\r\nabc\r\nzz\r\n")
    assert parser.pieces == [b"abc"]


# -- limits ----------------------------------------------------------------------------------------------------

TIGHT = UpstreamLimits(max_header_bytes=1000, max_headers=10, max_informational=3)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def both_ways(data: bytes) -> set[str]:
    return {read_answer([data], limits=TIGHT).end, read_answer(bytewise(data), limits=TIGHT).end}


def with_fields(fields: bytes) -> bytes:
    return OK + fields + b"Content-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (with_fields(b"X-A: b\r\n" * 9), "complete"),
        (with_fields(b"X-A: b\r\n" * 10), "refused"),
        (with_fields(b"X-A: " + b"b" * 900 + b"\r\n"), "complete"),
        (with_fields(b"X-A: " + b"b" * 1000 + b"\r\n"), "refused"),
        (with_fields(b"X" * 1000 + b": b\r\n"), "refused"),
        (OK + b"X-A: " + b"b" * 1000, "refused"),
        (b"HTTP/1.1 200 " + b"k" * 1001, "refused"),
        (b"\r\n" * 501, "refused"),
        (CONTINUE * 3 + EMPTY, "complete"),
        (CONTINUE * 4 + EMPTY, "refused"),
    ],
    ids=lambda value: value[:24].decode("latin-1") if isinstance(value, bytes) else value,
)
def test_limits_of_the_head(data: bytes, end: str) -> None:
    assert both_ways(data) == {end}


@pytest.mark.parametrize(
    "framing",
    [b"3;a=" + b"b" * 1001, b"0\r\nX-T: " + b"b" * 1001, b"0" * 1001, b"0\r\n" + b"X-T: b\r\n" * 200],
    ids=["extension", "trailer", "zeros", "trailers"],
)
def test_framing_between_pieces_of_body_is_bounded(framing: bytes) -> None:
    assert both_ways(CHUNKED + framing) == {"refused"}


def test_framing_adds_up_only_between_pieces_of_body() -> None:
    extended = b"1;a=" + b"b" * 700 + b"\r\nx\r\n"
    outcome = read_answer(bytewise(CHUNKED + extended * 3 + b"0\r\n\r\n"), limits=TIGHT)
    assert (outcome.end, outcome.body) == ("complete", b"xxx")


def test_the_limits_hold_for_a_real_flood() -> None:
    flood = OK + b"".join(b"X-%d: b\r\n" % number for number in range(20_000))
    assert read_answer([flood]) == Outcome("refused")
