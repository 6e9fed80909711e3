"""`GET /router/events`: the state of everything, pushed every second for as long as somebody listens.

A listener costs one coroutine and what its connection buffers. Nothing is queued for it: each frame is whole and the
latest, so one that reads slowly sees fewer of them. Frames are made once for all listeners.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from starlette.responses import Response

from router.control.context import ControlContext
from router.control.history import History
from router.control.state import State
from router.errors import Unavailable

MAX_LISTENERS: Final = 32
FRAME_SECONDS: Final = 1.0
# Large fleets are shown less often: no listener gets more than about this a second.
BYTES_PER_SECOND: Final = 128 * 1024

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Events:
    """Server-sent events: `state` as `/router/state` has it, `history` whenever it has grown, `bye` at the end."""

    def __init__(self, context: ControlContext, state: State, history: History) -> None:
        self._context = context
        self._state = state
        self._history = history
        self._history_frame = (-1, b"")
        self.listeners = 0

    async def stream(self) -> Response:
        """Raises Unavailable if there are too many listeners, or none should come any more."""
        if self._context.is_draining():
            raise Unavailable("This replica is shutting down.", retry_after=2)
        if self.listeners >= MAX_LISTENERS:
            raise Unavailable(f"{MAX_LISTENERS} others listen already; try again later.", retry_after=10)
        return _Stream(self)

    @property
    def over(self) -> bool:
        """Whether streams are to end."""
        return self._context.is_draining()

    def frame(self, seen: int) -> tuple[bytes, int]:
        """What to send now, given the version of the history that the listener has; and the version it then has."""
        body = _event("state", self._state.body())
        if seen == self._history.version:
            return body, seen
        return self._history_now() + body, self._history.version

    def _history_now(self) -> bytes:
        version, frame = self._history_frame
        if version != self._history.version:
            frame = _event("history", msgspec.json.encode(self._history.as_dict()))
            self._history_frame = (self._history.version, frame)
        return frame

    def pause(self, size: int) -> float:
        """Seconds until the next frame; all listeners wake at the same moments, so that they share it."""
        every = max(FRAME_SECONDS, size / BYTES_PER_SECOND)
        return every - self._context.clock() % FRAME_SECONDS


class _Stream(Response):
    """One listener."""

    def __init__(self, events: Events) -> None:
        # Balancers are told to pass events on as they come.
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(headers=headers, media_type="text/event-stream")
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Until the listener leaves or the replica drains."""
        events = self._events
        events.listeners += 1
        left = asyncio.create_task(_left(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            seen = -1
            while not events.over:
                frame, seen = events.frame(seen)
                await send({"type": "http.response.body", "body": frame, "more_body": True})
                await asyncio.wait({left}, timeout=events.pause(len(frame)))
                if left.done():
                    return
            await send({"type": "http.response.body", "body": _event("bye", b"{}"), "more_body": False})
        finally:
            events.listeners -= 1
            left.cancel()


async def _left(receive: Receive) -> None:
    """Until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
