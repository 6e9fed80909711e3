"""Lets tests wait for something about a worker to become true, without polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Watch:
    """Woken at every change of connections, records or engine."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def notify(self) -> None:
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Raises TimeoutError when the condition stays false."""
        async with asyncio.timeout(seconds):
            while not condition():
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiters.append(waiter)
                await waiter
