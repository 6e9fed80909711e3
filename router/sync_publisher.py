"""The side of the link to Redis that speaks: messages go out at once, and their confirmations are read as they come.

Waiting for each confirmation, as a client library does, would cost more than the message. What was not confirmed when
the connection broke is kept, and can be said again on the next one.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

import hiredis

from router.sync_connection import Connection, refusal_in_words, refused
from router.sync_places import Address, LinkDown

# What may be on its way unconfirmed; beyond that the server does not keep up.
MAX_MESSAGES = 256
MAX_BYTES = 1 << 20


class Publisher(Connection):
    """Publishes on one channel."""

    def __init__(self, channel: str, *, sharded: bool) -> None:
        super().__init__()
        name = channel.encode()
        verb = b"SPUBLISH" if sharded else b"PUBLISH"
        self._head = b"*3\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$" % (len(verb), verb, len(name), name)
        # Whether any message was.
        self.confirmed = False
        # What the server has not answered yet, in order: messages, and those who wait for an answer.
        self._unanswered: deque[bytes | asyncio.Future[object]] = deque()
        self._bytes = 0
        self._unread = 0
        # Since when it owes an answer, or when it gave the last one.
        self._since = 0.0

    async def open(self, address: Address) -> None:
        """Connect; raises what the system says, or LinkDown with what the server says."""
        try:
            await self.connect(address)
            for command in self.greet(address):
                refused(await self.ask(*command))
        except BaseException:
            self.close()
            raise

    @property
    def ready(self) -> bool:
        """Whether another message may go out now."""
        return not self.closed.done() and len(self._unanswered) < MAX_MESSAGES and self._bytes < MAX_BYTES

    @property
    def unconfirmed(self) -> list[bytes]:
        """Messages of which nobody knows whether they have arrived, in order."""
        return [item for item in self._unanswered if isinstance(item, bytes)]

    def overdue(self, seconds: float) -> bool:
        """Whether the server owes an answer for longer than this."""
        return bool(self._unanswered) and time.monotonic() - self._since > seconds

    def publish(self, message: bytes) -> None:
        """Send a message; to be called while `ready`."""
        self._expect(message)
        self._bytes += len(message)
        assert self.transport is not None
        self.transport.write(b"%b%d\r\n%b\r\n" % (self._head, len(message), message))

    async def ask(self, *words: str) -> object:
        """The answer to a command, which may be an exception; LinkDown if the connection ends before."""
        answer: asyncio.Future[object] = self.loop.create_future()
        if self.closed.done():
            raise LinkDown(self.closed.result())
        self._expect(answer)
        self.send(*words)
        return await answer

    def _expect(self, item: bytes | asyncio.Future[object]) -> None:
        if not self._unanswered:
            self._since = time.monotonic()
        self._unanswered.append(item)

    def data_received(self, data: bytes) -> None:
        self._since = time.monotonic()
        self._unread += len(data)
        if self._unread > MAX_BYTES:
            self.close("an answer without end")
            return
        self.reader.feed(data)
        try:
            while not self.closed.done() and (answer := self.reader.gets()) is not False:
                self._unread = 0
                self._answered(answer)
        except hiredis.HiredisError:
            self.close("it does not speak Redis")

    def _answered(self, answer: object) -> None:
        if not self._unanswered:
            self.close("it does not speak Redis")
            return
        item = self._unanswered[0]
        if isinstance(item, bytes):
            if isinstance(answer, Exception):
                self.close(refusal_in_words(str(answer)))
                return
            self._bytes -= len(item)
            self.confirmed = True
        elif not item.done():
            item.set_result(answer)
        self._unanswered.popleft()

    def end(self, reason: str) -> None:
        """Nothing more will be confirmed; idempotent."""
        super().end(reason)
        for item in self._unanswered:
            if not isinstance(item, bytes) and not item.done():
                item.set_exception(LinkDown(reason))
                item.exception()  # there may be nobody any more who waits for it
