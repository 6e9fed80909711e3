"""One answer on its way from the worker's connection to the client's, piece by piece and with no task in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from router.errors import RouterError

if TYPE_CHECKING:
    from router.dataplane.job import Job
    from router.dataplane.relay import Relay
    from router.dataplane.upstream import UpstreamResponse
    from router.workers.selection import Placement


class Passage:
    """A sink that gives the worker's bytes to the client as they come, shows them to the tap, and notes the end."""

    __slots__ = ("_client", "_clock", "_fault", "_relay", "_unseen", "_waiter", "job", "over", "placement", "response",
                 "tap")  # fmt: skip

    def __init__(
        self, relay: Relay, job: Job, placement: Placement, response: UpstreamResponse, clock: Callable[[], float]
    ) -> None:
        self.job = job
        self.placement = placement
        self.response = response
        self.tap = relay.tap(job, response)
        self.over = False  # the answer's end, or its failure, has been told and counted
        self._relay = relay
        # What stands in its place takes out of the answer what the client has not asked for.
        self._client = relay.reader(job, response)
        self._clock = clock
        self._unseen = True  # nothing has come yet that is more than a comment
        self._fault: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Begin the answer with what is at hand; the rest follows by itself."""
        self._relay.start(self)
        self._client.upstream = self.response
        self.response.pour(self)

    @property
    def done(self) -> bool:
        """The answer is over, and nothing has to be raised."""
        return self.over and self._fault is None

    async def wait(self) -> None:
        """Until the answer is over; a failure of the router itself is raised, one of the worker has been told."""
        if not self.over:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._fault is not None:
            raise self._fault

    # -- what a sink does ----------------------------------------------------------------------------------

    def take(self, data: bytes) -> bool:
        """Pass a piece on."""
        client = self._client
        try:
            # First of all, the client gets it; what follows from it is nobody's hurry.
            client.write(data, more=True)
            # Probes may starve on a busy worker; bytes of an answer say that it lives.
            self.placement.worker.last_served = self._clock()
            if self.tap is not None:
                self.tap.feed(data)
            if self._unseen:
                self._look()
        except Exception as fault:
            self._fail(fault)
            return False
        return not client.paused

    def take_chunk(self, data: bytes, start: int) -> bool:
        """Pass a chunk on as it is, where the client gets chunks too."""
        client = self._client
        if self._unseen or not client.chunked:
            return self.take(data[start:-2])
        try:
            client.write_chunk(data)
            self.placement.worker.last_served = self._clock()
            if self.tap is not None:
                self.tap.feed(data[start:-2])
        except Exception as fault:
            self._fail(fault)
            return False
        return not client.paused

    def end(self, data: bytes, error: RouterError | None) -> None:
        """Pass the last piece on, and the end."""
        if self.over:
            return
        try:
            if self._client.gone:
                if data and self.tap is not None:
                    self.tap.feed(data)
                return  # the request's task is cancelled already, and decides what this was
            self._end(data, error)
        except Exception as fault:
            self._fail(fault)
            return
        self._wake()

    # ------------------------------------------------------------------------------------------------------

    def _end(self, data: bytes, error: RouterError | None) -> None:
        if error is None or data:
            self._client.write(data, more=error is not None)
            if data and self.tap is not None:
                self.tap.feed(data)
            if self._unseen:
                self._look()
        self.over = True
        if error is None:
            self._relay.complete(self)
        else:
            self._relay.broken(self, error)

    def _look(self) -> None:
        """A piece has come: does the answer begin with it?"""
        if self.tap is None or not self.tap.only_comments:
            self._unseen = False
            self._relay.answered(self)

    def _fail(self, fault: Exception) -> None:
        self.over = True
        self._fault = fault
        self.response.close()
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
