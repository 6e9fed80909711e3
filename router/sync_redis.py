"""A channel of Redis pub/sub that comes back by itself: one connection to publish on, one to listen on.

It knows bytes, not what they mean. Nothing here waits longer than some seconds for Redis, a lost connection is never
hidden, and reconnecting is spread by full jitter and never faster than once per `ATTEMPT_SECONDS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from typing import Protocol

from router.sync_places import IO_SECONDS, LinkDown, Place, Places, in_words
from router.sync_publisher import Publisher
from router.sync_subscriber import Subscription

__all__ = ["ATTEMPT_SECONDS", "Link", "LinkDown", "Listener", "RedisLink", "backoff", "end"]

ATTEMPT_SECONDS = 1.0
# How often a link asks whether it is still in the right place.
CHECK_SECONDS = 2.0
# How long the last words may take.
BYE_SECONDS = 0.5
BACKOFF_FIRST = 0.1
# Replicas must agree again within ten seconds of an outage's end, so no pause may take all of them.
BACKOFF_LAST = 5.0

logger = logging.getLogger("router.sync")


class Listener(Protocol):
    """Who is told what the link hears; called from the link's task, and must not block."""

    def linked(self) -> None:
        """The subscription is confirmed. From the second time on, messages may have been lost before."""

    def lost(self) -> None:
        """The subscription is gone."""

    def receive(self, data: object) -> None:
        """A message, the replica's own ones included."""


class Link(Protocol):
    """A way to reach the other replicas, at most once per message."""

    def start(self, listener: Listener) -> None:
        """Begin to connect, in the background."""

    @property
    def ready(self) -> bool:
        """Whether it takes another message now."""
        ...

    def publish(self, message: bytes) -> None:
        """Hand a message over, while `ready`; one that breaks off on its way is sent again."""

    async def aclose(self) -> None:
        """Wait a moment for what is on its way; stop, and leave no task or socket."""


def backoff(failures: int) -> float:
    """Seconds to wait after so many failures in a row: full jitter under a doubling ceiling."""
    return random.uniform(0, min(BACKOFF_LAST, BACKOFF_FIRST * 2 ** min(failures - 1, 16)))


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end."""
    # Once is not enough: up to Python 3.11 `asyncio.wait_for`, which the client library uses, may swallow it. Too soon
    # again would be too much: it would cut off what the task does to end in order.
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.5)


class RedisLink:
    """The link over Redis; `silence_seconds` without any message means that the subscription is dead."""

    def __init__(self, places: Places, channel: str, silence_seconds: float) -> None:
        self._places = places
        self._channel = channel
        self._silence_seconds = silence_seconds
        self._publisher: Publisher | None = None
        # Messages of a connection that broke before they were confirmed.
        self._unconfirmed: list[bytes] = []
        self._place: Place | None = None
        self._tasks: list[asyncio.Task[None]] = []
        # Why this is not the place to be any more, once that is known.
        self._wrong: str | None = None
        self._complained = False

    def start(self, listener: Listener) -> None:
        """Begin to connect, in the background."""
        self._tasks = [
            asyncio.create_task(self._stay_connected(listener), name="sync-reader"),
            asyncio.create_task(self._watch(), name="sync-place"),
        ]

    @property
    def ready(self) -> bool:
        """Whether it takes another message now: it is connected, and Redis keeps up."""
        return self._publisher is not None and self._publisher.ready

    def publish(self, message: bytes) -> None:
        """Hand a message to Redis, while `ready`; one that is not confirmed is sent again on the next connection."""
        if self._publisher is None:
            raise LinkDown("not connected")
        self._publisher.publish(message)

    async def aclose(self) -> None:
        """Wait a moment for what is on its way, stop, and close both connections."""
        publisher = self._publisher
        if publisher is not None and publisher.unconfirmed:
            with contextlib.suppress(LinkDown, TimeoutError):
                async with asyncio.timeout(BYE_SECONDS):
                    await publisher.ask("PING")
        for task in self._tasks:
            await end(task)
        if self._publisher is not None:
            self._publisher.close()

    async def _stay_connected(self, listener: Listener) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            session = _Session(listener)
            began = loop.time()
            try:
                await self._listen(session)
            # Whatever a broken server leads to must not end this task.
            except Exception as error:
                failures = 1 if session.confirmed else failures + 1
                self._report(error, failures)
            if session.confirmed:
                listener.lost()
            spaced = began + ATTEMPT_SECONDS - loop.time()
            await asyncio.sleep(max(backoff(failures), spaced))

    async def _listen(self, session: _Session) -> None:
        """Connect both ways and read until something breaks, which it always ends with."""
        place = await self._places.find()
        subscription = Subscription(self._channel, sharded=self._places.sharded, receive=session.listener.receive)
        try:
            async with asyncio.timeout(3 * IO_SECONDS):
                await self._open_publisher(place)
                await subscription.open(self._places.address(place))
            self._wrong = None
            session.confirmed = True
            logger.info("replica news: connected to %s", self._places.shown)
            session.listener.linked()
            await self._stay(subscription, place)
        finally:
            subscription.close()
            self._drop_publisher()

    async def _stay(self, subscription: Subscription, place: Place) -> None:
        """Until something is wrong. What only publishing needs is repaired meanwhile, as nothing is lost by that."""
        opened = time.monotonic()
        while self._wrong is None:
            publisher = self._publisher
            broken = publisher is None or publisher.closed.done()
            ends = [subscription.closed, *([publisher.closed] if publisher and not broken else [])]
            await asyncio.wait(ends, timeout=IO_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if subscription.closed.done():
                raise LinkDown(subscription.closed.result())
            if time.monotonic() - subscription.heard > self._silence_seconds:
                raise LinkDown("silence")
            self._judge(self._publisher)
            if self._publisher is None and time.monotonic() - opened >= ATTEMPT_SECONDS:
                opened = time.monotonic()
                async with asyncio.timeout(IO_SECONDS):
                    await self._open_publisher(place)
        raise LinkDown(self._wrong)

    def _judge(self, publisher: Publisher | None) -> None:
        """Drop a connection to publish on that is broken, or whose server has stopped to answer."""
        if publisher is None:
            return
        self._complained = self._complained and not publisher.confirmed
        if publisher.overdue(2 * IO_SECONDS):
            publisher.close("timed out")
        if publisher.closed.done():
            if not self._complained:
                # Once: what is refused now is refused every second.
                self._complained = True
                logger.warning("replica news: cannot be sent (%s), trying again", publisher.closed.result())
            self._drop_publisher()

    async def _open_publisher(self, place: Place) -> None:
        publisher = Publisher(self._channel, sharded=self._places.sharded)
        try:
            await publisher.open(self._places.address(place))
            self._places.check(await publisher.ask("HELLO"))
        except BaseException:
            publisher.close()
            raise
        self._publisher, self._place = publisher, place
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        for message in unconfirmed:
            publisher.publish(message)

    def _drop_publisher(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            self._unconfirmed = publisher.unconfirmed
            publisher.close()

    async def _watch(self) -> None:
        """Notice when Redis is elsewhere, as after a failover that left the old server running."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            publisher, place = self._publisher, self._place
            if publisher is None:
                continue
            # While nobody can be asked, what works goes on working; whether it does is seen by listening.
            moved, greeting = False, None
            with contextlib.suppress(Exception):
                moved = await self._places.find() != place
            with contextlib.suppress(Exception):
                async with asyncio.timeout(IO_SECONDS):
                    greeting = await publisher.ask("HELLO")
            if publisher is self._publisher:
                self._wrong = "moved" if moved else self._unfit(greeting)

    def _unfit(self, greeting: object) -> str | None:
        try:
            self._places.check(greeting)
        except LinkDown as error:
            return str(error)
        return None

    def _report(self, error: Exception, failures: int) -> None:
        # Only the first failure of an outage: a server that is down for a day must not fill the log.
        if failures == 1:
            words = in_words(error)
            logger.warning("replica news: %s: %s; serving without it, trying again", self._places.shown, words)


class _Session:
    """One connection's part of the subscription."""

    __slots__ = ("confirmed", "listener")

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.confirmed = False
