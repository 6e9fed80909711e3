"""A connection to Redis as a protocol: its opening, its end, and the words for what a server refuses.

The client library takes several times as long for a message as what builds on this, and messages are most of what news
costs; so it is only asked where Redis is.
"""

from __future__ import annotations

import asyncio
from typing import cast

import hiredis

from router.sync_places import Address, LinkDown


class Connection(asyncio.Protocol):
    """`closed` ends with the reason when nothing more will come or go."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[str] = self.loop.create_future()
        self.reader = hiredis.Reader()
        self.transport: asyncio.Transport | None = None

    async def connect(self, address: Address) -> None:
        """Connect; raises what the system says."""
        if address.path:
            await self.loop.create_unix_connection(lambda: self, address.path)
        else:
            name = address.host if address.context else None
            await self.loop.create_connection(
                lambda: self, address.host, address.port, ssl=address.context, server_hostname=name
            )

    def greet(self, address: Address) -> list[tuple[str, ...]]:
        """The commands with which a connection begins."""
        commands: list[tuple[str, ...]] = []
        if address.credentials:
            commands.append(("AUTH", *address.credentials))
        if address.db:
            # It makes no difference to a channel, but a mistake should show at once.
            commands.append(("SELECT", str(address.db)))
        return commands

    def send(self, *words: str) -> None:
        """Send a command."""
        encoded = [word.encode() for word in words]
        pieces = [b"*%d\r\n" % len(encoded), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded)]
        assert self.transport is not None
        self.transport.write(b"".join(pieces))

    def close(self, reason: str = "closed") -> None:
        """End it; idempotent."""
        self.end(reason)
        if self.transport is not None:
            self.transport.abort()

    def end(self, reason: str) -> None:
        """Nothing more will come; idempotent."""
        if not self.closed.done():
            self.closed.set_result(reason)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.closed.done():
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.end("the connection broke")


def refusal_in_words(refusal: str) -> str:
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
    if kind == "ERR" and "AUTH" in refusal:
        return "it refused the password"  # there is none
    return known.get(kind, "it refused a command")


def refused(answer: object) -> None:
    """Raise LinkDown if the answer is a refusal."""
    if isinstance(answer, Exception):
        raise LinkDown(refusal_in_words(str(answer)))
