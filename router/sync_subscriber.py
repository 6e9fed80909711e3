"""A subscription of one Redis channel, as a protocol on its own connection.

The client library takes three times as long for a message as this does, and messages are most of what news costs; so it
is used for everything but listening. Messages are handed over in portions, so that a flood of them leaves requests
their turn, and reading stops meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

import hiredis

from router.sync_places import Address, LinkDown

# How long messages are handed over before others have their turn.
TURN_SECONDS = 0.002
# One message, or the rest of one, that is larger than this is not waited for.
MAX_BYTES = 64 << 20
_CONFIRMED = (b"subscribe", b"ssubscribe")
_MESSAGE = (b"message", b"smessage")


class Subscription(asyncio.Protocol):
    """`receive` is told each message; `closed` ends with the reason when nothing more will come."""

    def __init__(self, channel: str, *, sharded: bool, receive: Callable[[object], None]) -> None:
        loop = asyncio.get_running_loop()
        self.confirmed: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[str] = loop.create_future()
        self.heard = time.monotonic()
        self._loop = loop
        self._channel = channel
        self._sharded = sharded
        self._receive = receive
        self._reader = hiredis.Reader()
        self._unread = 0
        self._waiting = False
        self._transport: asyncio.Transport | None = None

    async def open(self, address: Address) -> None:
        """Connect, and subscribe; raises what the system says, or LinkDown with what the server says."""
        try:
            if address.path:
                await self._loop.create_unix_connection(lambda: self, address.path)
            else:
                name = address.host if address.context else None
                await self._loop.create_connection(
                    lambda: self, address.host, address.port, ssl=address.context, server_hostname=name
                )
            if address.credentials:
                self._send("AUTH", *address.credentials)
            if address.db:
                # It makes no difference to a channel, but a mistake should show at once.
                self._send("SELECT", str(address.db))
            self._send("SSUBSCRIBE" if self._sharded else "SUBSCRIBE", self._channel)
            await self.confirmed
        except BaseException:
            self.close()
            raise

    def close(self, reason: str = "closed") -> None:
        """End it; idempotent."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    # -- called by the event loop ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.closed.done():
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        if self._unread > MAX_BYTES:
            self.close("a message without end")
            return
        self._reader.feed(data)
        if not self._waiting:
            self._hand_over()

    def connection_lost(self, error: Exception | None) -> None:
        self._end("the connection broke")

    # -- inside ----------------------------------------------------------------------------------------------

    def _hand_over(self) -> None:
        """Take what is complete, until others must have their turn."""
        paused, self._waiting = self._waiting, False
        end = time.monotonic() + TURN_SECONDS
        try:
            while not self.closed.done() and (item := self._reader.gets()) is not False:
                self._unread = 0
                self._take(item)
                if time.monotonic() > end:
                    self._pause(paused)
                    return
        except hiredis.HiredisError:
            self.close("it does not speak Redis")
            return
        # A listener that fails must not be told more, and not go unnoticed either.
        except Exception as error:
            self.close(f"a message could not be taken in ({type(error).__name__})")
            return
        if paused and self._transport is not None and not self.closed.done():
            self._transport.resume_reading()

    def _pause(self, paused: bool) -> None:
        self._waiting = True
        if self._transport is not None and not paused:
            self._transport.pause_reading()
        self._loop.call_soon(self._hand_over)

    def _take(self, item: object) -> None:
        self.heard = time.monotonic()
        if isinstance(item, Exception):
            self.close(_words(str(item)))
        elif isinstance(item, list) and len(item) == 3 and item[0] in _MESSAGE:
            self._receive(item[2])
        elif isinstance(item, list) and item and item[0] in _CONFIRMED:
            if not self.confirmed.done():
                self.confirmed.set_result(None)
        elif isinstance(item, list) and item and item[0] == b"sunsubscribe":
            self.close("moved")  # the slot has another owner now

    def _send(self, *words: str) -> None:
        encoded = [word.encode() for word in words]
        pieces = [b"*%d\r\n" % len(encoded), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded)]
        assert self._transport is not None
        self._transport.write(b"".join(pieces))

    def _end(self, reason: str) -> None:
        if not self.closed.done():
            self.closed.set_result(reason)
        if not self.confirmed.done():
            self.confirmed.set_exception(LinkDown(reason))
            self.confirmed.exception()  # there may be nobody any more who waits for it


def _words(refusal: str) -> str:
    """A server's refusal without what it quotes."""
    if "DB index" in refusal:
        return "no such database"
    kind = refusal.split(" ", 1)[0]
    known = {
        "MOVED": "moved",
        "NOPERM": "its user may not use the channel",
        "WRONGPASS": "it refused the password",
        "NOAUTH": "it asks for a password",
    }
    return known.get(kind, "it refused a command")
