"""One large body in each turn of the event loop.

Reading one takes milliseconds in which nothing else happens. Several that become whole in the same turn would add up;
so they are read one after the other, and whatever else is ready has its turn in between. A thread would not help: the
parser holds the interpreter's lock from a body's beginning to its end.
"""

from __future__ import annotations

import asyncio
from collections import deque

# Smaller ones take less than a fifth of a millisecond.
LARGE_BYTES = 256 * 1024


class Turns:
    """Hands out turns in the order in which they were asked for; one that is not waited for any more is passed over."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    async def take(self) -> None:
        """Wait for a turn of the event loop that nobody else has."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._next)
        await turn

    def _next(self) -> None:
        while self._waiting:
            turn = self._waiting[0]
            if not turn.done():
                # Whoever waits for it goes on in the next turn, and so does the one behind in the turn after that.
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._leave)
                return
            self._waiting.popleft()

    def _leave(self) -> None:
        self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
