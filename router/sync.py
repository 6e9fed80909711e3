"""News between replicas: who owns which blocks, how many requests each has in flight, and which epoch a worker is in.

Every replica decides from its own memory; this part only keeps that memory fresh. Callers put news down with `owned`,
`load` and `epoch`; one task sends it in batches, the link's task takes in what others say, and a third one forgets
replicas that have fallen silent. While Redis is away news waits, and the oldest is dropped and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from router.affinity import AffinityMap, Delta
from router.settings import SyncSettings
from router.sync_codec import Envelope, Kind, News, Peers, Refused, Row, encode, open_envelope, read, take
from router.sync_redis import ATTEMPT_SECONDS, Link, LinkDown, RedisLink, backoff, end
from router.workers.registry import Registry, Worker

Direction = Literal["in", "out"]
# Why a message, or a part of one, was not sent or not taken. "queue": a delta of this replica that waited too long.
DROP_CAUSES = (
    "queue",
    "version",
    "fingerprint",
    "oversized",
    "malformed",
    "kind",
    "peers",
    "unknown_worker",
    "old_epoch",
    "absurd_epoch",
)
MAX_PEERS = 256
BYE_SECONDS = 0.5
# How far ahead of this machine's clock a worker's start may lie. An epoch from the far future would win for ever.
EPOCH_AHEAD_SECONDS = 86_400.0

logger = logging.getLogger("router.sync")


class NoSync:
    """Stands in where no Redis is configured: takes all news and keeps it; `up` is None."""

    def __init__(self) -> None:
        self.messages: dict[tuple[Direction, str], int] = {}
        self.dropped: dict[str, int] = dict.fromkeys(DROP_CAUSES, 0)
        # Holes in the sequences of others, and renewals of the subscription, before which anything may be lost.
        self.gaps = 0
        self.resubscribed = 0
        # Told the sender of whom something is missing, and None where that may be anyone.
        self.on_gap: Callable[[str | None], None] | None = None

    @property
    def up(self) -> bool | None:
        """Whether news goes out and comes in; None where there is no link."""
        return None

    @property
    def lag_seconds(self) -> float | None:
        """How long the last heartbeat took, or takes by now, to come back; None if there is none."""
        return None

    @property
    def peers(self) -> int:
        """How many other replicas are alive."""
        return 0

    @property
    def queued(self) -> int:
        """How many deltas wait to be sent."""
        return 0

    def owned(self, delta: Delta) -> None:
        """This replica saw a worker serve a prompt."""

    def load(self, worker: Worker) -> None:
        """This replica's requests in flight on the worker have changed."""

    def epoch(self, worker: Worker) -> None:
        """The worker's epoch has changed."""

    def start(self) -> None:
        """Begin, in the background."""

    async def aclose(self) -> None:
        """Say goodbye and stop."""


class Sync(NoSync):
    """News over a link, which is Redis unless another is given. `clock` never goes back and is the map's clock."""

    def __init__(
        self,
        settings: SyncSettings,
        fingerprint: str,
        index: AffinityMap,
        registry: Registry,
        clock: Callable[[], float],
        sender: str,
        link: Link | None = None,
    ) -> None:
        super().__init__()
        self._settings = settings
        self._fingerprint = fingerprint
        self._index = index
        self._registry = registry
        self._clock = clock
        self._sender = sender
        self._link = link or _redis_link(settings)
        self._tasks: list[asyncio.Task[None]] = []
        self._peers = Peers(MAX_PEERS, settings.expire_seconds)
        self._warned = False
        # What waits to be sent: deltas in order, workers whose row has changed, a complete statement once it is due.
        self._deltas: deque[Delta] = deque()
        self._changed: set[str] = set()
        self._statement: Kind = "hello"
        self._statement_due = clock()
        self._sequence = 0
        # A message that the link has not confirmed; sent again as it is, which receivers do not mind.
        self._unsent: tuple[Kind, int, bytes] | None = None
        self._wake = asyncio.Event()
        self._linked = asyncio.Event()
        self._was_linked = False
        # Own statements on their way: sequence -> when they left.
        self._under_way: dict[int, float] = {}
        self._lag: float | None = None
        self._echoed = float("-inf")

    # -- what the rest of the router uses ------------------------------------------------------------------

    @property
    def up(self) -> bool:
        """Whether both directions work: an own heartbeat came back within the time of the last three."""
        return self._linked.is_set() and self._clock() - self._echoed <= 3 * self._settings.heartbeat_seconds

    @property
    def lag_seconds(self) -> float | None:
        """How long the last heartbeat took, or takes by now, to come back; None while there is none."""
        if not self._under_way:
            return self._lag
        waiting = self._clock() - next(iter(self._under_way.values()))
        return waiting if self._lag is None else max(waiting, self._lag)

    @property
    def peers(self) -> int:
        """How many other replicas are alive."""
        return len(self._peers)

    @property
    def queued(self) -> int:
        """How many deltas wait to be sent."""
        return len(self._deltas)

    def owned(self, delta: Delta) -> None:
        """This replica saw a worker serve a prompt."""
        if len(self._deltas) >= self._settings.max_queue:
            self._deltas.popleft()
            self.dropped["queue"] += 1
            self._sequence += 1  # the hole tells the others that something is missing
        self._deltas.append(delta)
        self._wake.set()

    def load(self, worker: Worker) -> None:
        """This replica's requests in flight on the worker have changed."""
        self._changed.add(worker.id)
        self._wake.set()

    # One that came from another replica is passed on once more, which also reaches those that missed it.
    def epoch(self, worker: Worker) -> None:
        """The worker's epoch has changed."""
        self.load(worker)

    def start(self) -> None:
        """Begin, in the background; it makes no difference whether Redis can be reached."""
        self._link.start(self)
        self._tasks = [
            asyncio.create_task(self._publish(), name="sync-publisher"),
            asyncio.create_task(self._watch(), name="sync-watch"),
        ]

    async def aclose(self) -> None:
        """Say goodbye if that is possible at once, and stop."""
        for task in self._tasks:
            await end(task)
        if self._linked.is_set():
            with contextlib.suppress(LinkDown, Refused, TimeoutError):
                async with asyncio.timeout(BYE_SECONDS):
                    await self._send_due()
                    await self._send(*self._message(News("bye")))
            self._linked.clear()
        await self._link.aclose()

    # -- sending -------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        failures = 0
        while True:
            await self._linked.wait()
            try:
                await self._send_due()
            except LinkDown as error:
                failures += 1
                if failures == 1:
                    logger.warning("replica news: cannot be sent (%s), trying again", error)
                self._statement_due = self._clock()  # rows of the broken batch are lost; a statement has them all
                await asyncio.sleep(ATTEMPT_SECONDS + backoff(failures))
                continue
            except Refused as refused:
                self.dropped[refused.cause] += 1
            failures = 0
            await self._rest()

    async def _rest(self) -> None:
        """Sleep until there is something to send, and then the little longer that makes it a batch."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._statement_due - self._clock())):
                await self._wake.wait()
        await asyncio.sleep(self._settings.flush_seconds)

    async def _send_due(self) -> None:
        self._wake.clear()
        if self._unsent is not None:
            await self._send(*self._unsent)
        now = self._clock()
        if now >= self._statement_due:
            kind, self._statement = self._statement, "heartbeat"
            self._statement_due = now + self._settings.heartbeat_seconds
            await self._send(*self._message(News(kind, rows=self._all_rows())))
        rows = deque(row for row in map(self._row, self._changed) if row is not None)
        self._changed.clear()
        # Only what waits now: what comes meanwhile makes the next batch.
        waiting = len(self._deltas)
        while waiting > 0 or rows:
            news = take(self._deltas, rows)
            waiting -= len(news.deltas)
            await self._send(*self._message(news))

    def _message(self, news: News) -> tuple[Kind, int, bytes]:
        self._sequence += 1
        return news.kind, self._sequence, encode(self._fingerprint, self._sender, self._sequence, news)

    async def _send(self, kind: Kind, sequence: int, data: bytes) -> None:
        self._unsent = (kind, sequence, data)
        if kind in ("hello", "heartbeat"):
            self._under_way[sequence] = self._clock()
            if len(self._under_way) > 16:
                del self._under_way[next(iter(self._under_way))]
        await self._link.publish(data)
        self._unsent = None
        self._count("out", kind)

    def _row(self, worker_id: str) -> Row | None:
        worker = self._registry.get(worker_id)
        return Row(worker.id, worker.epoch, worker.local) if worker else None

    def _all_rows(self) -> list[Row]:
        return [Row(w.id, w.epoch, w.local) for w in self._registry if w.local or w.epoch]

    # -- what the link reports -----------------------------------------------------------------------------

    def linked(self) -> None:
        """The subscription stands: introduce this replica, and ask the others for what was missed."""
        self._statement = "hello"
        self._statement_due = self._clock()
        self._linked.set()
        self._wake.set()
        if self._was_linked:
            self.resubscribed += 1
            if self.on_gap is not None:
                self.on_gap(None)
        self._was_linked = True

    def lost(self) -> None:
        """The subscription is gone: keep news until it is back."""
        self._linked.clear()
        self._under_way.clear()

    def receive(self, data: object) -> None:
        """Take in one message of any origin and content."""
        try:
            if not isinstance(data, bytes):
                raise Refused("malformed")
            envelope = open_envelope(data, self._fingerprint)
            if envelope.sender == self._sender:
                self._echo(envelope.sequence)
            else:
                self._merge(envelope, read(envelope))
        except Refused as refused:
            self.dropped[refused.cause] += 1
            if refused.cause == "fingerprint" and not self._warned:
                self._warned = True
                logger.warning(
                    "replica news: another replica on this channel uses a different hash secret or block layout; "
                    "nothing is shared with it, and prompts that it served will not be found here"
                )

    # -- taking in -----------------------------------------------------------------------------------------

    def _echo(self, sequence: int) -> None:
        left = self._under_way.pop(sequence, None)
        if left is None:
            return
        self._echoed = self._clock()
        self._lag = self._echoed - left
        for older in [number for number in self._under_way if number < sequence]:
            del self._under_way[older]

    def _merge(self, envelope: Envelope, news: News) -> None:
        sender = envelope.sender
        if news.kind == "bye":
            self._count("in", news.kind)
            if self._peers.leave(sender):
                self._registry.drop_replica(sender)
            return
        now = self._clock()
        heard = self._peers.hear(sender, envelope.sequence, now)
        if heard == "too_many":
            self.dropped["peers"] += 1
            return
        self._count("in", news.kind)
        self._take_rows(envelope, news)
        for delta in news.deltas:
            self._take_delta(delta, now)
        if news.kind == "hello":
            self._statement_due = now
            self._wake.set()
        self.gaps += heard == "after_hole"
        if heard in ("after_hole", "found") and self.on_gap is not None:
            self.on_gap(sender)

    def _take_rows(self, envelope: Envelope, news: News) -> None:
        known: list[Row] = []
        for row in news.rows:
            worker = self._registry.get(row.worker)
            if worker is None:
                self.dropped["unknown_worker"] += 1
                continue
            known.append(row)
            self._offer_epoch(worker, row.epoch)
        for worker_id, count in self._peers.merge(envelope.sender, envelope.sequence, known, complete=news.complete):
            worker = self._registry.get(worker_id)
            if worker is not None:
                self._registry.set_remote(worker, envelope.sender, count)

    def _take_delta(self, delta: Delta, now: float) -> None:
        worker = self._registry.get(delta.worker)
        if worker is None:
            self.dropped["unknown_worker"] += 1
            return
        self._offer_epoch(worker, delta.epoch)
        if not self._index.apply(delta, now):
            self.dropped["old_epoch"] += 1

    def _offer_epoch(self, worker: Worker, epoch: float) -> None:
        if epoch <= worker.epoch:
            return
        if epoch > time.time() + EPOCH_AHEAD_SECONDS:
            self.dropped["absurd_epoch"] += 1
            return
        self._registry.set_epoch(worker, epoch)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._settings.expire_seconds / 10)
            for sender in self._peers.expire(self._clock()):
                self._registry.drop_replica(sender)

    def _count(self, direction: Direction, kind: Kind) -> None:
        self.messages[direction, kind] = self.messages.get((direction, kind), 0) + 1


def _redis_link(settings: SyncSettings) -> RedisLink:
    if settings.redis_url is None:
        raise ValueError("no Redis URL: use NoSync")
    silence = max(2.0, 5 * settings.heartbeat_seconds)
    return RedisLink(settings.redis_url.get_secret_value(), settings.channel, silence)
