"""A TCP relay on loopback that can go deaf: bytes stop in both directions, and no connection is closed."""

from __future__ import annotations

import asyncio
import contextlib

CHUNK = 65_536


class Relay:
    """`async with Relay(port) as relay:` listens on `relay.port` and passes everything on to `port`."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def cut(self) -> None:
        """Let nothing through any more; new connections are accepted and get no answer."""
        self._open.clear()

    def mend(self) -> None:
        """Let everything through again, that which waited included."""
        self._open.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._open.wait()
            there, here = await asyncio.open_connection("127.0.0.1", self._target)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pump(reader, here))
                    both.create_task(self._pump(there, writer))
            finally:
                here.close()
        # The library's own callback does not expect that a handler is cancelled, as it is at the end.
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            with contextlib.suppress(OSError):
                writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            await self._open.wait()
            writer.write(data)
            await writer.drain()
        writer.close()
