"""A channel of Redis pub/sub that comes back by itself: one client to publish with, one connection to listen on.

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

import redis.asyncio
from redis.exceptions import RedisError

from router.sync_places import IO_SECONDS, LinkDown, Place, Places, close, command, in_words
from router.sync_subscriber import Subscription

__all__ = ["ATTEMPT_SECONDS", "Link", "LinkDown", "Listener", "RedisLink", "backoff", "end"]

ATTEMPT_SECONDS = 1.0
# How often a link asks whether it is still in the right place.
CHECK_SECONDS = 2.0
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

    async def publish(self, message: bytes) -> None:
        """Hand a message over, or raise LinkDown within a bounded time."""

    async def aclose(self) -> None:
        """Stop, and leave no task or socket."""


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
        self._client: redis.asyncio.Redis | None = None
        self._place: Place | None = None
        self._tasks: list[asyncio.Task[None]] = []
        # Whether the subscription stands, and why this is not the place to be any more, once that is known.
        self._inside = False
        self._wrong: str | None = None

    def start(self, listener: Listener) -> None:
        """Begin to connect, in the background."""
        self._tasks = [
            asyncio.create_task(self._stay_subscribed(listener), name="sync-reader"),
            asyncio.create_task(self._watch(), name="sync-place"),
        ]

    async def publish(self, message: bytes) -> None:
        """Hand a message to Redis, or raise LinkDown within a bounded time."""
        client = self._client
        if client is None:
            raise LinkDown("not connected")
        verb = "SPUBLISH" if self._places.sharded else "PUBLISH"
        try:
            async with asyncio.timeout(2 * IO_SECONDS):
                await command(client, verb, self._channel, message)
        # The client library raises more than its own errors on a broken connection, and no caller can tell them apart.
        except Exception as error:
            raise LinkDown(in_words(error)) from None

    async def aclose(self) -> None:
        """Stop listening and close both connections."""
        for task in self._tasks:
            await end(task)
        client, self._client = self._client, None
        if client is not None:
            await close(client)

    async def _stay_subscribed(self, listener: Listener) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            session = _Session(listener)
            began = loop.time()
            try:
                await self._listen(session)
            # Whatever a broken server makes the client library raise must not end this task.
            except Exception as error:
                failures = 1 if session.confirmed else failures + 1
                self._report(error, failures)
            if session.confirmed:
                listener.lost()
                await self._drop_idle_connections()
            spaced = began + ATTEMPT_SECONDS - loop.time()
            await asyncio.sleep(max(backoff(failures), spaced))

    async def _drop_idle_connections(self) -> None:
        # The one to publish with has most likely died too, and would fail the first message after the outage.
        if self._client is not None:
            with contextlib.suppress(RedisError, OSError):
                await self._client.connection_pool.disconnect(inuse_connections=False)

    async def _listen(self, session: _Session) -> None:
        """Subscribe and read until something breaks, which it always ends with."""
        place = await self._places.find()
        client = await self._client_of(place)
        subscription = Subscription(self._channel, sharded=self._places.sharded, receive=session.listener.receive)
        try:
            async with asyncio.timeout(3 * IO_SECONDS):
                await self._places.check(client)
                await subscription.open(self._places.address(place))
            session.confirmed = True
            logger.info("replica news: connected to %s", self._places.shown)
            session.listener.linked()
            self._wrong, self._inside = None, True
            await self._stay(subscription)
        finally:
            self._inside = False
            subscription.close()

    async def _stay(self, subscription: Subscription) -> None:
        """Until something is wrong."""
        while self._wrong is None:
            await asyncio.wait([subscription.closed], timeout=IO_SECONDS)
            if subscription.closed.done():
                raise LinkDown(subscription.closed.result())
            if time.monotonic() - subscription.heard > self._silence_seconds:
                raise LinkDown("silence")
        raise LinkDown(self._wrong)

    async def _client_of(self, place: Place) -> redis.asyncio.Redis:
        client = self._client
        if client is None or place != self._place:
            self._client, self._place = self._places.client(place), place
            if client is not None:
                await close(client)
        return self._client or self._places.client(place)

    async def _watch(self) -> None:
        """Notice when Redis is elsewhere, as after a failover that left the old server running."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            client, place = self._client, self._place
            if client is None or not self._inside:
                continue
            # While nobody can be asked, what works goes on working; whether it does is seen by listening.
            with contextlib.suppress(Exception):
                if await self._places.find() != place and client is self._client:
                    self._wrong = "moved"
                    continue
            try:
                await self._places.check(client)
            except LinkDown as error:
                self._wrong = str(error) if client is self._client else self._wrong
            except Exception:
                pass
            if client is not self._client:  # and so it was closed meanwhile, before it was used once more here
                await close(client)

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
