"""Plays the engine against the clock: one timer, and futures for those who wait for a sequence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from loadtest.simworker.engine import Engine, Phase, Sequence
from loadtest.simworker.outlet import ResponseOver


class Driver:
    """The only one who calls the engine with the time of day."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, on_change: Callable[[], None]) -> None:
        self.engine = engine
        self._on_change = on_change
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None
        self._waiters: dict[int, asyncio.Future[None]] = {}

    def submit(self, sequence: Sequence) -> None:
        self._changed(self.engine.submit(sequence, time.monotonic()))

    def abort(self, sequence: Sequence) -> None:
        self._changed(self.engine.abort(sequence, time.monotonic()))
        self._wake((sequence,))

    def reset(self) -> None:
        """Abort everything."""
        self._changed(self.engine.reset(time.monotonic()))

    def catch_up(self) -> None:
        """Bring the engine to now, so that its gauges are true."""
        self._changed(self.engine.advance(time.monotonic()))

    async def finished(self, sequences: list[Sequence]) -> None:
        """Wait until all are done. Raises ResponseOver when one is aborted instead."""
        while not all(sequence.over for sequence in sequences):
            await self.change(sequences, None)
        if any(sequence.phase is Phase.ABORTED for sequence in sequences):
            raise ResponseOver

    async def change(self, sequences: list[Sequence], until: float | None) -> None:
        """Wait for the next change of phase of any of them, or until a time."""
        future: asyncio.Future[None] = self._loop.create_future()
        numbers = [sequence.number for sequence in sequences if not sequence.over]
        for number in numbers:
            self._waiters[number] = future
        timer = None
        if until is not None:
            timer = self._loop.call_later(max(until - time.monotonic(), 0), _set, future)
        try:
            await future
        finally:
            if timer is not None:
                timer.cancel()
            for number in numbers:
                self._waiters.pop(number, None)

    def close(self) -> None:
        """Abort everything, for good."""
        self.reset()
        if self._timer is not None:
            self._timer.cancel()

    def _changed(self, changed: list[Sequence]) -> None:
        if self._waiters:
            self._wake(changed)
        self._on_change()
        due = self.engine.next_time()
        if due == self._due:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = due
        if due is not None:
            self._timer = self._loop.call_later(max(due - time.monotonic(), 0), self._tick)

    def _tick(self) -> None:
        self._due = None
        self._timer = None
        self.catch_up()

    def _wake(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            future = self._waiters.get(sequence.number)
            if future is not None:
                _set(future)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
