"""One client connection that costs little: raw requests out, just enough of the answers read to know their end."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import cast

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_LAST = b"0\r\n\r\n"
_HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept: application/json\r\n"
    b"content-type: application/json\r\nuser-agent: bench/1\r\nauthorization: Bearer sk-local\r\n"
    b"content-length: %d\r\n\r\n"
)
MOST_HEAD = 65536

Done = Callable[["Connection", bool], None]
clock = time.perf_counter


def request(port: int, body: bytes) -> bytes:
    """Head and body of a chat request."""
    return _HEAD % (port, len(body)) + body


class Connection(asyncio.Protocol):
    """Carries one request at a time. `done` is called with the answer's end, and whether it was a whole 200."""

    def __init__(self, done: Done) -> None:
        self._done = done
        self._transport: asyncio.Transport
        self._head = b""
        self._missing = 0  # bytes of the body; -1 while it is chunked
        self._tail = b""
        self._ok = False
        self.busy = False
        self.closed = False
        self.sent_at = 0.0
        self.first_at = 0.0  # first byte of the body
        self.events = 0  # of streams, all that came over this connection

    def send(self, request: bytes, due: float | None = None) -> None:
        """Send a whole request; its time counts from `due`, or from now."""
        self.busy = True
        self.first_at = 0.0
        self.sent_at = clock() if due is None else due
        self._transport.write(request)

    def close(self) -> None:
        self.closed = True
        self._transport.abort()

    # -- called by the loop --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self.busy:
            self._finish(False)

    def data_received(self, data: bytes) -> None:
        if self._missing == 0:
            data = self._begin(data)
            if not data:
                return
        if not self.first_at:
            self.first_at = clock()
        if self._missing > 0:
            self._missing -= len(data)
            if self._missing <= 0:
                self._finish(self._ok and self._missing == 0)
        else:
            self._chunked(data)

    # ------------------------------------------------------------------------------------------------------

    def _begin(self, data: bytes) -> bytes:
        """Read the head; what follows it."""
        if self._head:
            data = self._head + data
            self._head = b""
        at = data.find(b"\r\n\r\n")
        if at < 0:
            self._head = data
            if len(data) > MOST_HEAD:
                self.close()
            return b""
        self._ok = data.startswith(b"HTTP/1.1 200")
        length = _LENGTH.search(data, 0, at)
        self._missing = int(length[1]) if length else -1
        if self._missing == 0:
            self._finish(self._ok)
        return data[at + 4 :]

    def _chunked(self, data: bytes) -> None:
        """The end of an event or of the body may fall between two reads."""
        self.events += data.count(b"\n\n") + (self._tail.endswith(b"\n") and data.startswith(b"\n"))
        self._tail = (self._tail + data)[-len(_LAST) :] if len(data) < len(_LAST) else data[-len(_LAST) :]
        if self._tail == _LAST:
            self._tail = b""
            self._finish(self._ok)

    def _finish(self, ok: bool) -> None:
        self._missing = 0
        self._head = b""
        self.busy = False
        self._done(self, ok)


async def connect(port: int, done: Done) -> Connection:
    """A connection to a port of this machine."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection(done), "127.0.0.1", port)
    return connection
