"""Both directions of a client connection: not read from while enough is to be done, held up while it does not read."""

from __future__ import annotations

import asyncio


class Flow:
    """The data plane and uvicorn's cycle of a control request share it, so its names are uvicorn's."""

    __slots__ = ("_transport", "_writable", "crowded", "read_paused", "write_paused")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.read_paused = False
        self.write_paused = False
        # Many requests wait in line: whoever is served may not ask for more, or the line would grow with each of them.
        self.crowded = False
        # There only while somebody waits.
        self._writable: asyncio.Event | None = None

    async def drain(self) -> None:
        """Until the client has read enough."""
        if not self.write_paused:
            return
        if self._writable is None:
            self._writable = asyncio.Event()
        await self._writable.wait()

    def pause_reading(self) -> None:
        """Take no more bytes from the client."""
        if not self.read_paused:
            self.read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take bytes again, unless many requests wait in line."""
        if self.read_paused and not self.crowded:
            self.read_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """The transport holds enough."""
        self.write_paused = True

    def resume_writing(self) -> None:
        """The transport has room, or there is nobody left to write to."""
        self.write_paused = False
        writable, self._writable = self._writable, None
        if writable is not None:
            writable.set()
