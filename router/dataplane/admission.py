"""The waiting line of a model: used only while no candidate has a free slot; first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from router.errors import QueueFull
from router.workers.registry import Registry, Worker
from router.workers.selection import Placement

Place = Callable[[], Placement | None]


class _Waiter:
    __slots__ = ("future", "place")

    def __init__(self, place: Place, future: asyncio.Future[Placement]) -> None:
        self.place = place
        self.future = future


class Admission:
    """Places requests, in order where they must wait; bounded in number and time."""

    def __init__(self, registry: Registry, per_worker: int, seconds: float) -> None:
        self._registry = registry
        self._per_worker = per_worker
        self._seconds = seconds
        self._lines: dict[str, deque[_Waiter]] = {}
        registry.hooks.freed.append(self._freed)

    def reconfigure(self, per_worker: int, seconds: float) -> None:
        """Other bounds for those who come; who waits already waits as before."""
        self._per_worker = per_worker
        self._seconds = seconds

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def idle(self, model: str) -> bool:
        """Nobody waits for this model, so that a request may be placed without standing in line."""
        return not self._lines or model not in self._lines

    async def place(self, model: str, place: Place) -> Placement:
        """Call `place` until it yields; raises QueueFull, and whatever `place` raises."""
        line = self._lines.get(model)
        if not line:
            placement = place()
            if placement is not None:
                return placement
            line = self._lines.setdefault(model, deque())
        if len(line) >= self._per_worker * max(1, len(self._registry.serving(model))):
            raise QueueFull("All workers are busy and the queue is full.", retry_after=max(1, int(self._seconds)))
        return await self._wait(model, line, place)

    async def _wait(self, model: str, line: deque[_Waiter], place: Place) -> Placement:
        loop = asyncio.get_running_loop()
        waiter = _Waiter(place, loop.create_future())
        line.append(waiter)
        timer = loop.call_later(self._seconds, _give_up, waiter.future)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled() and waiter.future.exception() is None:
                waiter.future.result().release()
            raise
        finally:
            timer.cancel()
            if waiter in line:
                line.remove(waiter)
            if not line and self._lines.get(model) is line:
                del self._lines[model]

    def _freed(self, worker: Worker) -> None:
        if not self._lines:
            return
        for model in tuple(self._lines):
            if model in worker.facts.models:
                self._serve(self._lines[model])

    def _serve(self, line: deque[_Waiter]) -> None:
        while line:
            waiter = line[0]
            if waiter.future.done():
                line.popleft()
                continue
            try:
                placement = waiter.place()
            except Exception as error:
                line.popleft()
                waiter.future.set_exception(error)
                continue
            if placement is None:
                return
            line.popleft()
            waiter.future.set_result(placement)


def _give_up(future: asyncio.Future[Placement]) -> None:
    if not future.done():
        future.set_exception(QueueFull("All workers are busy; no slot became free in time.", retry_after=2))
