"""A subscription of one Redis channel, as a protocol on its own connection.

Messages are handed over in portions, so that a flood of them leaves requests their turn, and reading stops meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import hiredis

from router.sync_connection import Connection, refusal_in_words
from router.sync_places import Address, LinkDown

# How long messages are handed over before others have their turn.
TURN_SECONDS = 0.002
# One message, or the rest of one, that is larger than this is not waited for.
MAX_BYTES = 64 << 20
_CONFIRMED = (b"subscribe", b"ssubscribe")
_MESSAGE = (b"message", b"smessage")


class Subscription(Connection):
    """`receive` is told each message."""

    def __init__(self, channel: str, *, sharded: bool, receive: Callable[[object], None]) -> None:
        super().__init__()
        self.confirmed: asyncio.Future[None] = self.loop.create_future()
        self.heard = time.monotonic()
        self._channel = channel
        self._sharded = sharded
        self._receive = receive
        self._unread = 0
        self._waiting = False

    async def open(self, address: Address) -> None:
        """Connect, and subscribe; raises what the system says, or LinkDown with what the server says."""
        try:
            await self.connect(address)
            for command in self.greet(address):
                self.send(*command)
            self.send("SSUBSCRIBE" if self._sharded else "SUBSCRIBE", self._channel)
            await self.confirmed
        except BaseException:
            self.close()
            raise

    # -- called by the event loop ----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        if self._unread > MAX_BYTES:
            self.close("a message without end")
            return
        self.reader.feed(data)
        if not self._waiting:
            self._hand_over()

    # -- inside ----------------------------------------------------------------------------------------------

    def _hand_over(self) -> None:
        """Take what is complete, until others must have their turn."""
        paused, self._waiting = self._waiting, False
        end = time.monotonic() + TURN_SECONDS
        try:
            while not self.closed.done() and (item := self.reader.gets()) is not False:
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
        if paused and self.transport is not None and not self.closed.done():
            self.transport.resume_reading()

    def _pause(self, paused: bool) -> None:
        self._waiting = True
        if self.transport is not None and not paused:
            self.transport.pause_reading()
        self.loop.call_soon(self._hand_over)

    def _take(self, item: object) -> None:
        self.heard = time.monotonic()
        if isinstance(item, Exception):
            self.close(refusal_in_words(str(item)))
        elif isinstance(item, list) and len(item) == 3 and item[0] in _MESSAGE:
            self._receive(item[2])
        elif isinstance(item, list) and item and item[0] in _CONFIRMED:
            if not self.confirmed.done():
                self.confirmed.set_result(None)
        elif isinstance(item, list) and item and item[0] == b"sunsubscribe":
            self.close("moved")  # the slot has another owner now

    def end(self, reason: str) -> None:
        """Nothing more will come; idempotent."""
        super().end(reason)
        if not self.confirmed.done():
            self.confirmed.set_exception(LinkDown(reason))
            self.confirmed.exception()  # there may be nobody any more who waits for it
