"""GET from a worker, for probes: one connection, one bounded answer, one deadline for all of it.

Hundreds of workers are probed every few seconds, so this costs a quarter of a general HTTP client. It follows no
redirects, keeps no cookies or connections, and knows no proxies.
"""

from __future__ import annotations

import asyncio
import errno
import re
import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import httptools

from router.settings import may_be_a_worker

_MAX_HEAD: Final = 64 << 10
_CHUNK: Final = 256 << 10
# Connecting fails for want of something on this machine: no fault of the worker.
_SHORTAGE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
# A name with an IPv4 and an IPv6 address, on a machine that may lack one of the two.
_NOBODY_THERE: Final = frozenset({errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EAFNOSUPPORT})


class FetchError(Exception):
    """No usable answer; the message says why in words that fit a log, without URL or key."""


class Refused(FetchError):
    """Nobody listens on the port."""


class TimedOut(FetchError):
    """The whole answer did not arrive in time."""


class Shortage(FetchError):
    """This machine lacks what a connection needs; it says nothing about the worker."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body as sent."""

    status: int
    body: bytes


class Target:
    """Where a worker listens, with its key."""

    __slots__ = ("_host", "_path", "_port", "_rest", "_ssl")

    def __init__(self, url: str, api_key: str | None, context: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        tls = parts.scheme == "https"
        self._port = parts.port or (443 if tls else 80)
        self._ssl = (context or ssl.create_default_context()) if tls else None
        self._path = parts.path.rstrip("/")
        lines = [
            " HTTP/1.1",
            f"host: {parts.netloc}",
            "user-agent: prefix-router",
            "accept: application/json, text/plain",
            "accept-encoding: identity",
            "connection: close",
        ]
        if api_key:
            lines.append(f"authorization: Bearer {api_key}")
        # A key that no header can carry must not end up as two headers.
        self._rest = "\r\n".join(lines) + "\r\n\r\n" if all(line.isprintable() for line in lines) else None

    async def get(self, path: str, *, limit: int, timeout: float) -> Answer:
        """The answer to one GET, its body at most `limit` bytes; raises FetchError and nothing else."""
        if self._rest is None:
            raise FetchError("its key does not fit a header")
        head = f"GET {self._path}{path}{self._rest}".encode()
        try:
            async with asyncio.timeout(timeout):
                return await self._exchange(head, limit)
        except TimeoutError:
            raise TimedOut("timed out") from None
        except httptools.HttpParserError:
            raise FetchError("not HTTP") from None
        except (OSError, UnicodeError) as error:
            raise _from_os(error) from None

    async def _exchange(self, head: bytes, limit: int) -> Answer:
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._ssl, limit=_CHUNK)
        try:
            peer = writer.get_extra_info("peername")
            if peer is not None and not may_be_a_worker(peer[0]):
                raise FetchError("its name leads to a link-local, multicast or unspecified address")
            writer.write(head)
            return await _read_answer(reader, limit)
        finally:
            # Nothing is owed to a connection that has said all it will: no lingering, no waiting.
            writer.transport.abort()


class _Reply:
    """What the parser calls back with."""

    def __init__(self, limit: int) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.limit = limit
        self.status = 0
        self.framed = False  # whether the head says how long the body is
        self.done = False
        self.size = 0
        self.parts: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.framed = self.framed or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        if not self.done:  # what follows an answer is nobody's
            self.status = self.parser.get_status_code()

    def on_body(self, part: bytes) -> None:
        if self.done:
            return
        self.size += len(part)
        if self.size <= self.limit:
            self.parts.append(part)

    def on_message_complete(self) -> None:
        if self.done:
            return
        if self.status >= 200:
            self.done = True
        else:
            self.status = 0  # an interim answer; the real one follows
            self.framed = False


async def _read_answer(reader: asyncio.StreamReader, limit: int) -> Answer:
    reply = _Reply(limit)
    before_body = 0
    while not reply.done:
        data = await reader.read(_CHUNK)
        if not data:
            break
        try:
            reply.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise FetchError("not HTTP") from None
        except httptools.HttpParserError:
            if not reply.done:
                raise
        if reply.size > limit:
            raise FetchError(f"answer over {limit} bytes")
        before_body += 0 if reply.status else len(data)
        if before_body > _MAX_HEAD:
            raise FetchError(f"head over {_MAX_HEAD} bytes")
    if not reply.status or (reply.framed and not reply.done):
        raise FetchError("closed before its answer was complete")
    return Answer(reply.status, b"".join(reply.parts))


def _from_os(error: Exception) -> FetchError:
    """The same failure in words of our own: messages of the system carry addresses."""
    numbers = _numbers(error)
    if errno.ECONNREFUSED in numbers and numbers <= _NOBODY_THERE:
        return Refused("refused")
    if numbers & _SHORTAGE:
        return Shortage("no socket left on this machine")
    if isinstance(error, ssl.SSLError):
        return FetchError("TLS failed")
    names = [errno.errorcode[number] for number in sorted(numbers) if number in errno.errorcode]
    return FetchError(f"unreachable ({' '.join(names) or type(error).__name__})")


def _numbers(error: Exception) -> set[int]:
    """The error numbers of a failed connection; of several addresses that were tried, asyncio tells in words only."""
    if not isinstance(error, OSError):
        return set()
    if error.errno is not None:
        return {error.errno}
    return {int(number) for number in re.findall(r"\[Errno (\d{1,5})\]", str(error)[:10_000])}
