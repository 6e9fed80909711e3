"""An in-memory channel that links replicas of one process as Redis would, for tests of what goes over it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from router.sync_codec import uncouple
from router.sync_redis import Listener


class LocalBus:
    """Delivers every message to every link, the sender's own included, in order and in a later turn of the loop."""

    def __init__(self) -> None:
        self.up = True
        # What does not arrive: told who would hear it, and the message.
        self.loses: Callable[[Listener, object], bool] = lambda listener, message: False
        self.splits = True
        self._listeners: list[Listener] = []

    def link(self) -> LocalLink:
        """A new end of the channel."""
        return LocalLink(self)

    def put(self, message: object) -> None:
        """Deliver something, as anyone with access to the channel could."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            if not self.loses(listener, message):
                loop.call_soon(listener.receive, message)

    def join(self, listener: Listener) -> None:
        """Add one who listens."""
        self._listeners.append(listener)
        asyncio.get_running_loop().call_soon(listener.linked)

    def part(self, listener: Listener) -> None:
        """Take one out."""
        if listener in self._listeners:
            self._listeners.remove(listener)


class LocalLink:
    """One end of a local bus."""

    def __init__(self, bus: LocalBus) -> None:
        self._bus = bus
        self._listener: Listener | None = None

    def start(self, listener: Listener) -> None:
        """Join the bus."""
        self._listener = listener
        self._bus.join(listener)

    @property
    def ready(self) -> bool:
        """Whether the bus is up."""
        return self._bus.up

    def publish(self, message: bytes) -> None:
        """Deliver; what leaves together may be lost one by one here, so that tests can choose."""
        for part in uncouple(message) if self._bus.splits else [message]:
            self._bus.put(part)

    async def aclose(self) -> None:
        """Leave the bus."""
        if self._listener is not None:
            self._bus.part(self._listener)
