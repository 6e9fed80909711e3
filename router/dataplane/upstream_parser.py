"""Bytes of a worker -> head and body of one answer at a time. No sockets, no clock.

httptools (llhttp without its leniencies) reads the grammar: it refuses obs-fold, bare CR or LF, control bytes in
values, doubled or odd Content-Length, Content-Length beside Transfer-Encoding, and broken chunks. What it lets
through and a proxy must not is refused here: any transfer coding but `chunked`, chunked in HTTP/1.0, other versions,
status codes outside 200..599, switched protocols, and everything without a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from httptools import HttpParserError, HttpResponseParser

from router import errors
from router.dataplane.upstream_types import UpstreamLimits

# What a piece of body costs beside its bytes: the object's header and its place in the list.
PIECE_OVERHEAD: Final = 41


class _SurplusBytes(Exception):
    """Stops httptools at the first byte behind the answer."""


def _nothing(data: bytes) -> None:
    """In place of an engine that is gone."""


class ResponseParser:
    """Reads the answers of one connection, one after the other; `start` before each."""

    __slots__ = (
        "_bodyless",
        "_engine",
        "_execute",
        "_informational",
        "_limits",
        "_overhead",
        "_refusal",
        "_until_close",
        "_whole",
        "buffered",
        "content_length",
        "done",
        "head_done",
        "headers",
        "keep_alive",
        "pieces",
        "received",
        "status",
        "surplus",
    )

    status: int
    headers: list[tuple[bytes, bytes]]
    content_length: int | None
    pieces: list[bytes]
    buffered: int  # memory that `pieces` hold, in bytes; whoever takes them sets it to 0
    received: int  # bytes of this answer seen, framing included
    head_done: bool
    done: bool
    keep_alive: bool  # known once `head_done`
    surplus: bool  # bytes followed the answer: this connection can't be trusted with another one

    def __init__(self, limits: UpstreamLimits) -> None:
        self._limits = limits
        self._engine: Any = HttpResponseParser(self)
        self._execute: Callable[[bytes], None] = self._engine.feed_data
        # Whatever sets one of these ends the connection too.
        self._refusal: errors.UpstreamProtocolError | None = None
        self.surplus = False
        self.start()

    def start(self, *, bodyless: bool = False) -> None:
        """Expect the answer to one request; `bodyless` when it was a HEAD, whose answer declares a body it lacks."""
        self._bodyless = bodyless
        self._informational = 0
        self._overhead = 0
        self.status = 0
        self.headers = []
        self.content_length = None
        self.pieces = []
        self.buffered = 0
        self.received = 0
        self.head_done = False
        self.done = False
        self.keep_alive = False
        self._until_close = False  # an answer without any length, such as 204, may leave the connection open
        self._whole = False  # what was fed last ended with a chunk's end

    def plain_chunk(self, data: bytes) -> int:
        """Where the body begins of the one chunk that `data` is, and nothing else; 0 if it must be fed.

        Most pieces of a stream are that, framed as this router would frame them. The engine, which stands between two
        chunks, need not see them.
        """
        if not self._whole:
            return 0
        start = data.find(b"\r\n", 1, 9) + 2
        size = len(data) - start - 2
        if size <= 0 or start < 3 or not data.startswith(b"%x\r\n" % size) or not data.endswith(b"\r\n"):
            return 0
        self.received += len(data)
        self._overhead = 0
        return start

    def feed(self, data: bytes) -> None:
        """Take bytes off the wire; UpstreamProtocolError when they are not an answer. Pieces before the fault stay."""
        size = len(data)
        self.received += size
        before = self.buffered
        self._whole = False
        try:
            self._execute(data)
        except HttpParserError as error:
            if not self.done:
                raise (self._refusal or _malformed(str(error))) from None
            self.surplus = True
            return
        # The engine tells of a chunk's end behind its line break, and of the next one only behind its first line.
        self._whole = self._whole and data.endswith(b"\r\n")
        if self.buffered != before:
            self._overhead = 0
        elif not self.done:
            # Heads, trailers and chunk extensions bring no body, and are not limited by httptools.
            self._overhead += size
            if self._overhead > self._limits.max_header_bytes:
                raise _malformed("head or chunk framing over its limit")

    def eof(self) -> bool:
        """The worker closed its side: True when the answer is complete with that."""
        if self._until_close:
            self.done = True
        return self.done

    def release(self) -> None:
        """Break the cycle with httptools, so that a closed connection is freed at once."""
        self._engine, self._execute = None, _nothing

    # -- called by httptools; an exception in here stops it ------------------------------------------------

    def on_message_begin(self) -> None:
        if self.done:
            raise _SurplusBytes

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head_done:
            return  # a trailer
        headers = self.headers
        headers.append((name.lower(), value.rstrip(b" \t")))
        if len(headers) > self._limits.max_headers:
            self._refuse("too many headers")

    def on_headers_complete(self) -> None:
        status: int = self._engine.get_status_code()
        chunked = self._check_headers()
        if status < 200:
            self._skip_informational(status, chunked)
            return
        if status > 599:
            self._refuse("status code out of range")
        version = self._engine.get_http_version()
        if version != "1.1" and (version != "1.0" or chunked):
            self._refuse("unsupported version")
        self.status = status
        # httptools can't be told of HEAD: it waits for that body, sees no surplus, and is no use for the next answer.
        self.keep_alive = version == "1.1" and not self._bodyless and self._engine.should_keep_alive()
        self.head_done = True
        if self._bodyless:
            self.done = True
        elif not chunked and self.content_length is None:
            self._until_close = True  # unless httptools, which knows 204 and 304, says next that it is complete

    def on_body(self, data: bytes) -> None:
        if self.done:
            raise _SurplusBytes
        self.pieces.append(data)
        self.buffered += len(data) + PIECE_OVERHEAD

    def on_chunk_header(self) -> None:
        self._whole = False

    def on_chunk_complete(self) -> None:
        self._whole = True

    def on_message_complete(self) -> None:
        self.done = self.head_done  # an informational answer ends too, and the real one follows

    # -- rules ---------------------------------------------------------------------------------------------

    def _check_headers(self) -> bool:
        """Size and framing of the head at hand; whether its body is chunked."""
        size = 0
        chunked = False
        for name, value in self.headers:
            size += len(name) + len(value) + 4
            if name == b"content-length":
                self.content_length = int(value)
            elif name == b"transfer-encoding":
                if chunked or value.lower() != b"chunked":
                    self._refuse("unsupported transfer coding")
                chunked = True
        if size > self._limits.max_header_bytes:
            self._refuse("head over its limit")
        return chunked

    def _skip_informational(self, status: int, chunked: bool) -> None:
        if status < 100 or status == 101 or chunked or self.content_length is not None:
            self._refuse("unexpected informational answer")
        self._informational += 1
        if self._informational > self._limits.max_informational:
            self._refuse("too many informational answers")
        self.headers = []

    def _refuse(self, reason: str) -> None:
        self._refusal = _malformed(reason)
        raise self._refusal


def _malformed(reason: str) -> errors.UpstreamProtocolError:
    return errors.UpstreamProtocolError(f"The worker's answer is not well-formed HTTP/1.1: {reason}.")
