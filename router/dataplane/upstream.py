"""HTTP/1.1 client for one worker: a pool of kept-alive connections that costs little per request.

A request takes an idle connection or opens one, writes the exact bytes it was given, and returns when the first byte
of the answer's body is there. There is no queue: without a free place a request fails at once, for waiting is the
business of whoever chooses the worker. All waits end by one periodic look at the connections' deadlines.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from typing import Final

from router import errors
from router.dataplane import sockets
from router.dataplane.outgoing import Outgoing
from router.dataplane.upstream_connection import UpstreamConnection
from router.dataplane.upstream_response import UpstreamResponse
from router.dataplane.upstream_types import Origin, PoolStatistics, UpstreamLimits, UpstreamLost

__all__ = ["Origin", "PoolStatistics", "UpstreamLimits", "UpstreamLost", "UpstreamPool", "UpstreamResponse"]

# A worker that closes an idle connection crosses a request on the wire within a round trip. When a connection dies
# without a byte later than this, the worker has had the request, and another attempt is the caller's decision.
REUSE_RACE_SECONDS: Final = 1.0

# Connecting fails for want of something on this machine: no fault of the worker.
_LOCAL_SHORTAGE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})


class UpstreamPool:
    """Connections to one worker."""

    def __init__(
        self,
        origin: Origin,
        limits: UpstreamLimits,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        ssl_context: ssl.SSLContext | None = None,
        outgoing: Outgoing | None = None,
    ) -> None:
        self._origin = origin
        self._outgoing = outgoing or Outgoing()
        self._limits = limits
        self._loop = loop
        self._ssl = (ssl_context or ssl.create_default_context()) if origin.tls else None
        self._open: set[UpstreamConnection] = set()
        self._idle: dict[UpstreamConnection, None] = {}  # youngest last, and that one is used first
        self._connecting: set[asyncio.Timeout] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False
        self._opened_total = 0
        self._reused_total = 0

    def reconfigure(self, limits: UpstreamLimits) -> None:
        """Other limits, also for the connections that are there; a wait under way ends as it would have."""
        self._limits = limits
        for connection in self._open:
            connection.reconfigure(limits)

    def begin(self, head: bytes, body: bytes, *, method: bytes = b"POST") -> UpstreamResponse | None:
        """Send a request at once if a connection rests, and give the answer that is to come to `request` soon.

        So its sender can do what need not be done before, while the worker is at work already.
        """
        connection = self._take_idle()
        return None if connection is None else connection.start(head, body, bodyless=method == b"HEAD")

    async def request(
        self,
        head: bytes,
        body: bytes,
        *,
        method: bytes = b"POST",
        replayable: bool = True,
        begun: UpstreamResponse | None = None,
    ) -> UpstreamResponse:
        """Send one request, unless it has `begun`; returns when the first byte of the body, or the end of an answer
        without one, is there.

        Raises ConnectFailed, UpstreamLost, UpstreamProtocolError, UpstreamTimeout, Unavailable. Until then nothing of
        the answer has been seen by anybody, so the caller may still go elsewhere.
        """
        response = begun or self.begin(head, body, method=method)
        while True:
            last = response is None or not replayable
            if response is None:
                connection = await self._connect()
                response = connection.start(head, body, bodyless=method == b"HEAD")
            if not response.shown:
                await response.wait()
            error = response.error
            if error is None:
                return response
            if last or not self._was_race(response, error):
                raise error
            response = None

    def close(self) -> None:
        """Abort everything and take no more requests."""
        self._closed = True
        for connection in list(self._open):
            connection.lose()
        for timeout in self._connecting:
            if not timeout.expired():
                timeout.reschedule(0.0)
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def statistics(self) -> PoolStatistics:
        """Counts at this moment."""
        idle = len(self._idle)
        return PoolStatistics(
            open=len(self._open),
            idle=idle,
            active=len(self._open) - idle,
            connecting=len(self._connecting),
            opened_total=self._opened_total,
            reused_total=self._reused_total,
        )

    # -- called by connections -----------------------------------------------------------------------------

    def give_back(self, connection: UpstreamConnection) -> None:
        if len(self._idle) >= self._limits.max_idle:
            connection.abort()
            return
        connection.rest()
        self._idle[connection] = None

    def forget(self, connection: UpstreamConnection) -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)

    # ------------------------------------------------------------------------------------------------------

    def _take_idle(self) -> UpstreamConnection | None:
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.fresh():
                self._reused_total += 1
                return connection
            connection.abort()
        return None

    async def _connect(self) -> UpstreamConnection:
        if self._closed:
            raise errors.Unavailable("The worker is being removed.")
        if len(self._open) + len(self._connecting) >= self._limits.max_connections:
            raise errors.Unavailable("Every connection that one worker may have is in use.")
        loop = self._loop or asyncio.get_running_loop()
        connection = UpstreamConnection(loop, self, self._limits, self._outgoing)
        timeout = asyncio.timeout(self._limits.connect_seconds)
        self._connecting.add(timeout)
        try:
            async with timeout:
                await sockets.open_connection(loop, connection, self._origin.host, self._origin.port, self._ssl)
        except BaseException as error:
            connection.abort()
            if isinstance(error, (OSError, UnicodeError)):
                raise self._connect_error(error) from error
            raise
        finally:
            self._connecting.discard(timeout)
        self._adopt(loop, connection)
        return connection

    def _adopt(self, loop: asyncio.AbstractEventLoop, connection: UpstreamConnection) -> None:
        self._opened_total += 1
        if connection.closed:
            return  # the worker hung up while the loop came back to us; `start` says so
        self._open.add(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._limits.sweep_seconds, self._sweep, loop)

    def _connect_error(self, error: OSError | UnicodeError) -> errors.RouterError:
        if self._closed:
            return errors.Unavailable("The worker is being removed.")
        if isinstance(error, OSError) and error.errno in _LOCAL_SHORTAGE:
            return errors.Unavailable("The router has no room for another connection.")
        return errors.ConnectFailed("The worker did not accept a connection.")

    def _was_race(self, response: UpstreamResponse, error: errors.RouterError) -> bool:
        """The keep-alive race: a connection from the pool died at once and without a byte."""
        return isinstance(error, UpstreamLost) and not error.bytes_received and response.age() < REUSE_RACE_SECONDS

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in [candidate for candidate in self._open if candidate.deadline <= now]:
            connection.expire()
        self._sweeper = loop.call_later(self._limits.sweep_seconds, self._sweep, loop) if self._open else None
