"""Fast workers: as little of a vLLM server as routers ask for, at a small part of a proxy's own cost.

`python -m loadtest.bench.worker --count 2` prints `listening http://127.0.0.1:PORT` for each. Bodies are read into one
buffer that all connections share and are not kept: their length and both ends are all that an answer depends on.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, cast

import uvloop

from loadtest.bench import canned
from loadtest.bench.canned import MARGIN

# Between two chunks of a stream: what a large model takes for a token.
PACE_SECONDS = 0.05
BUFFER_BYTES = 512 * 1024
HEAD_BYTES = 64 * 1024
MOST_CONVERSATIONS = 10_000
CHAT = b"/v1/chat/completions"
TOKENIZE = b"/tokenize"

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
NO_CHUNKS = canned.refusal(411, b"Length Required", b"BadRequestError")


class WorkerProtocol(asyncio.BufferedProtocol):
    """One connection: a request at a time, answered as soon as its last byte is here."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fixed: dict[bytes, bytes], buffer: bytearray, seen: dict[bytes, int]
    ) -> None:
        self._loop = loop
        self._seen = seen
        self._fixed = fixed
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._transport: asyncio.Transport
        self._head = b""  # of a request whose head is not complete yet
        self._path = b""
        self._close = False
        self._missing = 0  # bytes of the body that are still to come
        self._length = 0
        self._start = b""
        self._end = b""
        self._left = 0
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._missing:
            self._body(0, nbytes)
        elif self._head:
            self._read_head(self._head + bytes(self._view[:nbytes]))
        else:
            at = self._buffer.find(b"\r\n\r\n", 0, min(nbytes, HEAD_BYTES))
            if at < 0:
                self._read_head(bytes(self._view[:nbytes]))
            else:
                self._begin(bytes(self._view[:at]))
                self._body(at + 4, nbytes)

    def _read_head(self, head: bytes) -> None:
        """The rare head that does not come in one piece; what follows it is put back into the buffer."""
        at = head.find(b"\r\n\r\n")
        if at < 0 and len(head) > HEAD_BYTES:
            self._transport.abort()
        elif at < 0:
            self._head = head
        else:
            self._head = b""
            rest = head[at + 4 :]
            self._buffer[: len(rest)] = rest
            self._begin(head[:at])
            self._body(0, len(rest))

    def _begin(self, head: bytes) -> None:
        self._path = head.split(b" ", 2)[1].partition(b"?")[0]
        self._close = _CLOSE.search(head) is not None
        length = _LENGTH.search(head)
        self._length = self._missing = int(length[1]) if length else 0
        self._start = self._end = b""
        if length is None and _CHUNKED.search(head):
            self._transport.write(NO_CHUNKS)
            self._transport.close()

    def _body(self, start: int, stop: int) -> None:
        """Bytes of the body lie in the buffer from `start` to `stop`."""
        self._missing -= stop - start
        if len(self._start) < MARGIN:
            self._start += bytes(self._view[start : min(stop, start + 2 * MARGIN)])
        if self._missing < MARGIN:
            self._end = (self._end + bytes(self._view[max(start, stop - MARGIN) : stop]))[-MARGIN:]
        if self._missing <= 0:
            self._answer()

    def _answer(self) -> None:
        path = self._path
        if path == CHAT:
            self._left = canned.stream_chunks(self._start, self._end)
            if self._left:
                self._begin_stream()
                return
            answer = canned.chat_answer(self._length, self._held())
        elif path == TOKENIZE:
            answer = canned.tokenize_answer(self._start, self._length)
        else:
            answer = self._fixed.get(path, canned.NOT_FOUND)
        self._transport.write(answer)
        if self._close:
            self._transport.close()

    def _held(self) -> int:
        """Bytes of the conversation's last turn, which an engine would still hold."""
        name = self._start[: canned.CHECKED]
        held = self._seen.get(name, 0)
        if len(self._seen) >= MOST_CONVERSATIONS:
            self._seen.clear()
        self._seen[name] = self._length
        return held if held < self._length else 0

    # -- paced streams -------------------------------------------------------------------------------------

    def _begin_stream(self) -> None:
        self._transport.write(canned.STREAM_HEAD)
        self._due = self._loop.time()
        self._next_chunk()

    def _next_chunk(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self._timer = None
            self._transport.write(canned.LAST)
            return
        self._transport.write(canned.CHUNK)
        # From the last due time, not from now: a late chunk does not slow the stream down.
        self._due += PACE_SECONDS
        self._timer = self._loop.call_at(self._due, self._next_chunk)


async def _listen(loop: asyncio.AbstractEventLoop, fixed: dict[bytes, bytes], buffer: bytearray) -> asyncio.Server:
    seen: dict[bytes, int] = {}  # by a conversation's beginning, the length of its last turn
    return await loop.create_server(lambda: WorkerProtocol(loop, fixed, buffer, seen), "127.0.0.1", 0, backlog=2048)


async def serve(count: int) -> None:
    """Serve until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    fixed = canned.fixed_answers(time.time())
    buffer = bytearray(BUFFER_BYTES)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    servers = [await _listen(loop, fixed, buffer) for _ in range(count)]
    for server in servers:
        address: tuple[str, Any] = server.sockets[0].getsockname()
        print(f"listening http://127.0.0.1:{address[1]}", flush=True)
    await ended.wait()
    for server in servers:
        server.close()


def main(argv: Sequence[str]) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2, help="workers in this process, each on its own port")
    uvloop.run(serve(parser.parse_args(argv).count))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
