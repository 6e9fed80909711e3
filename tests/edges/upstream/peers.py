"""The same bytes read by h11 and by aiohttp, in the parser tests' own terms."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from unittest import mock

import h11
from aiohttp import http_exceptions
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_parser import HttpResponseParser

from tests.core.upstream_corpus import Outcome

_GENEROUS = 1 << 20


def h11_outcome(pieces: Iterable[bytes], *, method: bytes = b"POST") -> Outcome:
    """h11 as the client; `reusable` when it would start another cycle and no byte is left over."""
    peer = h11.Connection(h11.CLIENT, max_incomplete_event_size=_GENEROUS)
    peer.send(h11.Request(method=method, target=b"/", headers=[(b"host", b"a"), (b"content-length", b"0")]))
    peer.send(h11.EndOfMessage())
    status = 0
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body = b""
    try:
        for piece in (*pieces, b""):
            if peer.their_state is not h11.SEND_BODY and peer.their_state is not h11.SEND_RESPONSE:
                break
            peer.receive_data(piece)
            while True:
                event = peer.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    break
                if isinstance(event, h11.Response):
                    status, headers = event.status_code, tuple((bytes(a), bytes(b)) for a, b in event.headers)
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    return Outcome("complete", status, headers, body, _may_go_on(peer))
                elif isinstance(event, h11.ConnectionClosed):
                    return Outcome("truncated")
    except h11.RemoteProtocolError as error:
        return Outcome("truncated" if _is_early_end(error) else "refused")
    return Outcome("truncated")


def _may_go_on(peer: h11.Connection) -> bool:
    return peer.their_state is h11.DONE and not peer.trailing_data[0]


def _is_early_end(error: Exception) -> bool:
    return bool(re.search(r"peer closed connection|peer unexpectedly closed", str(error)))


def aiohttp_outcome(pieces: Iterable[bytes], loop: asyncio.AbstractEventLoop, *, method: bytes = b"POST") -> Outcome:
    """aiohttp's response parser as its client sets it up, without decompression."""
    transport = mock.create_autospec(asyncio.Transport, instance=True)
    protocol = BaseProtocol(loop)
    protocol.connection_made(transport)
    parser = HttpResponseParser(
        protocol,
        loop,
        limit=1 << 16,
        max_line_size=_GENEROUS,
        max_field_size=_GENEROUS,
        response_with_body=method != b"HEAD",
        read_until_eof=True,
        auto_decompress=False,
    )
    answers = []
    try:
        for piece in pieces:
            messages, _, _ = parser.feed_data(piece)
            answers += [answer for answer in messages if answer[0].code >= 200 or answer[0].code == 101]
        parser.feed_eof()
    except (http_exceptions.HttpProcessingError, http_exceptions.PayloadEncodingError) as error:
        if not answers or not answers[0][1].is_eof():
            return Outcome("truncated" if _is_aiohttp_early_end(error) else "refused")
    if not answers:
        return Outcome("truncated")
    message, payload = answers[0]
    if payload.exception() is not None or not payload.is_eof():
        return Outcome("truncated")
    body = b"".join(payload.read_nowait(-1) for _ in range(1))
    headers = tuple((bytes(name).lower(), bytes(value)) for name, value in message.raw_headers)
    return Outcome("complete", message.code, headers, body, not message.should_close)


def _is_aiohttp_early_end(error: Exception) -> bool:
    return isinstance(error, http_exceptions.ContentLengthError | http_exceptions.TransferEncodingError)
