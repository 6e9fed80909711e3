"""What leaves in one turn of the event loop, together at its end.

Under load one turn brings many requests and many answers. Each write wakes whoever reads at its other end, and where
that is a process of the same machine, waking it costs as much as the write; so writes wait for those that are about to
follow, and one process that was woken finds them all. A request alone in its turn is written at once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

log = logging.getLogger("router")


class Way(Protocol):
    """A transport, as far as it is needed here."""

    def write(self, data: bytes) -> None: ...
    def writelines(self, list_of_data: list[bytes]) -> None: ...
    def is_closing(self) -> bool: ...


class Outgoing:
    """One for all of a process. What is put off leaves in this turn of the loop, or first thing in the next one."""

    __slots__ = ("_expected", "_waiting")

    def __init__(self) -> None:
        # How many more are about to be handled in this turn. It may be wrong, which costs at most the company.
        self._expected = 0
        # By transport, what waits for the others, in order.
        self._waiting: dict[Way, list[bytes]] = {}

    def expect(self) -> None:
        """A request, or an answer, is handled soon in this turn of the loop or the next one."""
        self._expected += 1

    def arrived(self) -> None:
        """Its turn has come."""
        if self._expected:
            self._expected -= 1

    def send(self, way: Way, data: bytes, body: bytes = b"") -> None:
        """Write with the last of those that are expected; at once if there are none."""
        if self._expected:
            if not self._waiting:
                asyncio.get_running_loop().call_soon(self._late)
            waiting = self._waiting.setdefault(way, [])
            waiting.append(data)
            if body:
                waiting.append(body)
            return
        if self._waiting:
            self._leave()
        if body:
            way.writelines([data, body])
        else:
            way.write(data)

    def now(self, way: Way, data: bytes = b"") -> None:
        """Write at once, and before it what waits for the same transport, which may be closed after that."""
        waiting = self._waiting.pop(way, None) if self._waiting else None
        if waiting is not None:
            data = b"".join(waiting) + data
        if data:
            way.write(data)

    def holds(self, way: Way) -> bool:
        """Whether something for this transport has not left yet."""
        return way in self._waiting

    def _late(self) -> None:
        """The last of those that were expected has not sent anything."""
        if self._waiting:
            self._expected = 0
            self._leave()

    def _leave(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for way, pieces in waiting.items():
            if way.is_closing():
                continue  # its other end has left
            try:
                if len(pieces) == 1:
                    way.write(pieces[0])
                else:
                    way.writelines(pieces)
            except Exception:
                # Whoever owns it learns of its end from the loop; the others must not suffer from it.
                log.exception("internal error")
