"""So much time in each turn of the event loop for reading bodies.

Reading a large one takes milliseconds in which nothing else happens, and so does a smaller one of nothing but tiny
things. Several that become whole in the same turn would add up; so once some milliseconds of a turn are spent, the next
body waits in line, and whatever else is ready has a turn of its own in between. A thread would not help: the parser
holds the interpreter's lock from a body's beginning to its end.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from itertools import islice

# After which no further body is begun; what a turn takes is this and one body at most.
TURN_SECONDS = 0.005
# Smaller ones need no turn: whatever they consist of, they are read in about that time.
SMALL_BYTES = 16 * 1024
# More than have time in one turn need not be woken for it.
WOKEN = 16


class _Place:
    """Where somebody stands in line."""

    __slots__ = ("turn",)

    def __init__(self, turn: asyncio.Future[None]) -> None:
        self.turn = turn


class Turns:
    """Hands out turns in the order in which they were asked for; one that is not waited for any more is passed over.

    `clock` counts seconds and never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._line: deque[_Place] = deque()
        self._began = -1.0  # when the present turn's first body was begun; negative before that
        self._ending = False  # the end of the present turn is on its way

    def __len__(self) -> int:
        return len(self._line)

    async def take(self) -> None:
        """Wait for a turn of the event loop that has time for another body; the present one, if it has."""
        if not self._line and self._has_time():
            return
        loop = asyncio.get_running_loop()
        place = _Place(loop.create_future())
        self._line.append(place)
        try:
            while True:
                await place.turn
                if self._has_time():
                    return
                place.turn = loop.create_future()
        finally:
            self._line.remove(place)

    def _has_time(self) -> bool:
        if self._began >= 0:
            return self._clock() - self._began < TURN_SECONDS
        self._began = self._clock()
        if not self._ending:
            self._ending = True
            asyncio.get_running_loop().call_soon(self._wake)
        return True

    def _wake(self) -> None:
        """A turn for whatever else came has begun; those in line have the one after it."""
        self._began = -1.0
        for place in islice(self._line, WOKEN):
            if not place.turn.done():
                place.turn.set_result(None)
        self._ending = bool(self._line)
        if self._ending:
            asyncio.get_running_loop().call_soon(self._rest)

    def _rest(self) -> None:
        # Those who were woken have had their turn.
        asyncio.get_running_loop().call_soon(self._wake)
