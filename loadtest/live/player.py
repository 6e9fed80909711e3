"""Sends the requests of a trace when they are due, those that follow another one a think time after its end."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.bench import client
from loadtest.bench.client import Connection
from loadtest.live import prompts
from router.replay.trace import Request


@dataclass(slots=True)
class Seen:
    """One request as its client saw it, in wall seconds since the load began; `ended` is None until it has."""

    arrived: float
    first: float = 0.0
    ended: float | None = None
    ok: bool = False


class Player:
    """Plays to one port. No request is sent after `seconds`, and none is waited for longer than `drain` after that."""

    def __init__(self, port: int, requests: Sequence[Request], seconds: float, drain: float) -> None:
        self._port = port
        self._requests = requests
        self._seconds = seconds
        self._drain = drain
        self._followers: dict[int, list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            if request.after is not None:
                self._followers[request.after].append(number)
        self._idle: list[Connection] = []
        self._all: list[Connection] = []
        self._carried: dict[Connection, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = 0
        self._quiet = asyncio.Event()
        self.seen: dict[int, Seen] = {}

    async def play(self) -> None:
        """Play everything; what came of it is in `seen`."""
        self._began = client.clock()
        loop = asyncio.get_running_loop()
        roots = [number for number, request in enumerate(self._requests) if request.after is None]
        timers = [loop.call_later(self._requests[number].at, self._start, number) for number in roots]
        try:
            await asyncio.sleep(self._seconds)
            if self._open:
                self._quiet.clear()
                await asyncio.wait_for(self._quiet.wait(), self._drain)
        except TimeoutError:
            pass  # what has not ended shows as an error
        finally:
            for timer in timers:
                timer.cancel()
            await self._close()

    async def _close(self) -> None:
        self._seconds = 0.0  # no follower begins any more
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._carried.clear()
        for connection in self._all:
            connection.close()

    def _now(self) -> float:
        return client.clock() - self._began

    def _start(self, number: int) -> None:
        now = self._now()
        if now >= self._seconds:
            return
        self.seen[number] = Seen(now)
        self._open += 1
        task = asyncio.create_task(self._send(number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, number: int) -> None:
        asked = client.request(self._port, prompts.body(self._requests[number]))
        while self._idle and self._idle[-1].closed:
            self._idle.pop()
        try:
            connection = self._idle.pop() if self._idle else await self._connect()
        except OSError:
            self._ended(number, False)
            return
        self._carried[connection] = number
        connection.events = 0
        connection.send(asked)

    async def _connect(self) -> Connection:
        connection = await client.connect(self._port, self._done)
        self._all.append(connection)
        return connection

    def _done(self, connection: Connection, ok: bool) -> None:
        number = self._carried.pop(connection, None)
        if number is None:
            return
        self.seen[number].first = connection.first_at - self._began
        # An error within a stream cuts the answer short.
        whole = connection.events > prompts.chunks(self._requests[number])
        if not connection.closed:
            self._idle.append(connection)
        self._ended(number, ok and whole)

    def _ended(self, number: int, ok: bool) -> None:
        seen = self.seen[number]
        seen.ended, seen.ok = self._now(), ok
        self._open -= 1
        if not self._open:
            self._quiet.set()
        loop = asyncio.get_running_loop()
        for follower in self._followers[number]:
            loop.call_later(self._requests[follower].at, self._start, follower)
