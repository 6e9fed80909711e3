"""Numbers what a replica says, and lets what leaves at the same time leave as one message."""

from __future__ import annotations

from collections.abc import Callable

from router.sync_codec import FIRST, MAX_COUPLED, MAX_MESSAGE, TRAIN, Message, News, couple, encode
from router.sync_redis import Link


class Train:
    """Messages of one sender on their way to the link; `count` is told the kind and size of each."""

    def __init__(self, fingerprint: str, sender: str, link: Link, count: Callable[[str, int], None]) -> None:
        # Of the last message.
        self.sequence = 0
        self._fingerprint = fingerprint
        self._sender = sender
        self._link = link
        self._count = count
        self._messages: list[bytes] = []
        self._bytes = 0
        # How own messages begin.
        said = encode(fingerprint, sender, 1, News("bye"))
        self._own = said[: said.index(sender.encode()) + len(sender.encode())]

    def add(self, message: Message) -> int:
        """Its number; Refused if it is too large, which leaves a hole in the numbers."""
        self.sequence += 1
        data = encode(self._fingerprint, self._sender, self.sequence, message)
        if self._bytes + len(data) > MAX_MESSAGE or len(self._messages) == MAX_COUPLED:
            self.depart()
        self._messages.append(data)
        self._bytes += len(data)
        self._count(message.kind, len(data))
        return self.sequence

    def depart(self) -> None:
        """Hand over what is there."""
        messages, self._messages, self._bytes = self._messages, [], 0
        if messages:
            self._link.publish(couple(messages))

    def is_own(self, data: bytes) -> bool:
        """Whether a message, or a train, is this sender's."""
        return data.startswith(self._own, FIRST if data.startswith(TRAIN) else 0)
