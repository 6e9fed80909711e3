"""News between replicas: who owns which blocks, what each has in flight, and which epoch a worker is in.

Every replica decides from its own memory; this part only keeps that memory fresh. Callers put news down with `owned`,
`load` and `epoch`; timers send it in batches, the link hands over what others say, one task forgets replicas that have
fallen silent, and another gets what was missed. While Redis is away news waits, and the oldest is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from router.affinity import AffinityMap, Delta
from router.settings import SyncSettings
from router.sync_codec import Envelope, Message, News, NewsKind, Refused, Row, open_envelope, read, uncouple
from router.sync_echo import Echoes
from router.sync_off import DROP_CAUSES, Direction, NoSync
from router.sync_outbox import Outbox
from router.sync_pack import encoded
from router.sync_peers import Peers
from router.sync_places import Places
from router.sync_redis import Link, RedisLink, end
from router.sync_resync import Resync
from router.sync_steps import Openings, Steps
from router.sync_train import Train
from router.sync_work import TheirWork
from router.workers.registry import Lease, Registry, Step, Worker

__all__ = ["DROP_CAUSES", "MAX_PEERS", "NoSync", "Sync"]

MAX_PEERS = 256
# Messages that go out in one turn of the event loop, so that a backlog leaves requests their turn.
BURST = 8
# The share of the wait for more news after which it is sent if there is a good moment.
NEARLY = 0.9
LEAST_BEAT_SECONDS = 0.02
LEAST_WATCH_SECONDS = 0.005
# How far ahead of this machine's clock a worker's start may lie. An epoch from the far future would win for ever.
EPOCH_AHEAD_SECONDS = 86_400.0

logger = logging.getLogger("router.sync")


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
        self._train = Train(fingerprint, sender, self._link, lambda kind, size: self._count("out", kind, size))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None
        self._peers = Peers(MAX_PEERS, settings.expire_seconds)
        self._outbox = Outbox(registry, settings.max_queue)
        self._resync = self._make_resync()
        self._warned = False
        self._their_work = TheirWork(registry, index, clock, self.dropped)
        self._statement: NewsKind = "hello"
        self._statement_due = clock()
        # Timers: what waits goes out `soon`, and the next statement when it is due.
        self._soon = False
        self._nearly = 0.0  # from when on what waits may as well go
        self._flushing: asyncio.TimerHandle | None = None
        self._beating: asyncio.TimerHandle | None = None
        self._linked = False
        self._was_linked = False
        # Whether steps are told: linked, and with somebody to hear them. Looked at several times for each request.
        self._heard = False
        self._changed, self._add_step = self._outbox.changed, self._outbox.work.add
        self._echoes = Echoes()

    def _make_resync(self) -> Resync:
        return Resync(
            self._sender,
            self._index,
            self._registry,
            self._peers,
            self._clock,
            self._settings.digest_seconds,
            self.repairs,
            self._post,
            self._settle_epoch,
        )

    # -- what the rest of the router uses ------------------------------------------------------------------

    @property
    def up(self) -> bool:
        """Whether both directions work: an own heartbeat came back within the time of the last three."""
        return self._linked and self._echoes.silent(self._clock()) <= 3 * self._settings.heartbeat_seconds

    def cut_off(self) -> bool:
        return not self.up

    @property
    def lag_seconds(self) -> float | None:
        """How long the last heartbeat took, or takes by now, to come back; None while there is none."""
        return self._echoes.lag(self._clock())

    @property
    def warming(self) -> bool:
        """Whether this replica has just started and will soon know what the others know."""
        return self._resync.warming

    @property
    def peers(self) -> int:
        """How many other replicas are alive."""
        return len(self._peers)

    @property
    def queued(self) -> int:
        """How many deltas wait to be sent."""
        return len(self._outbox.deltas)

    def owned(self, delta: Delta) -> None:
        """This replica saw a worker serve a prompt."""
        if self._outbox.make_room():
            self.dropped["queue"] += 1
            self._train.sequence += 1  # the hole tells the others that something is missing
        self._outbox.deltas.append(encoded(delta.worker, delta.epoch, delta.base, delta.new))
        if not self._soon:
            self._send_soon()

    def step(self, lease: Lease, what: Step) -> None:
        """One of this replica's requests has started, was answered, or has ended."""
        self._changed.add(lease.worker.id)
        if self._heard:
            self._add_step(lease, what)
        if not self._soon:
            self._send_soon()

    def moment(self) -> None:
        """A request has gone to its worker, so that for a while nobody waits for this replica.

        What is nearly due goes now, and does not come in between a request and its answer.
        """
        if self._soon and self._flushing is not None and self._clock() >= self._nearly:
            self._flushing.cancel()
            self._flush()

    # One that came from another replica is passed on once more, which also reaches those that missed it.
    def epoch(self, worker: Worker) -> None:
        """The worker's epoch has changed."""
        self._changed.add(worker.id)
        if not self._soon:
            self._send_soon()

    def start(self) -> None:
        """Begin, in the background; it makes no difference whether Redis can be reached."""
        self._loop = asyncio.get_running_loop()
        self._link.start(self)
        self._resync.start()
        self._watching = asyncio.create_task(self._watch(), name="sync-watch")
        self._beat()

    async def aclose(self) -> None:
        """Say goodbye if that is possible at once, and stop."""
        if self._watching is not None:
            await end(self._watching)
        await self._resync.aclose()
        self._loop = None
        for timer in (self._flushing, self._beating):
            if timer is not None:
                timer.cancel()
        if self._linked:
            while self._link.ready and self._send_due():
                pass
            if self._link.ready:
                self._send(News("bye"))
                self._train.depart()
            self._linked = False
        await self._link.aclose()

    # -- sending -------------------------------------------------------------------------------------------

    def _send_soon(self) -> None:
        """Send what waits, and what comes until then, after the little while that makes it a batch."""
        if self._loop is not None and self._linked and not self._soon:
            self._soon = True
            self._nearly = self._clock() + NEARLY * self._settings.flush_seconds
            self._flushing = self._loop.call_later(self._settings.flush_seconds, self._flush)

    def _flush(self) -> None:
        self._soon = False
        if self._linked and (self._send_due() or self._resync.answering):
            self._send_soon()

    def _beat(self) -> None:
        """Send statements when they are due, and whatever waits with them."""
        if self._loop is not None:
            if self._linked and self._clock() >= self._statement_due:
                self._send_due()
            # Without a link there is nothing to beat for; a new one begins with a statement.
            beat = self._statement_due - self._clock() if self._linked else self._settings.heartbeat_seconds
            wait = max(LEAST_BEAT_SECONDS, beat)
            self._beating = self._loop.call_later(wait, self._beat)

    def _send_due(self) -> bool:
        """Send what waits, as much as may go at once; whether something is left."""
        left = self._fill_train()
        self._train.depart()
        return left

    def _fill_train(self) -> bool:
        now = self._clock()
        if now >= self._statement_due and self._link.ready:
            kind, self._statement = self._statement, "heartbeat"
            self._statement_due = now + self._settings.heartbeat_seconds
            self._send(self._outbox.statement(kind, len(self._index), heard=self._heard))
        for _ in range(BURST):
            if not self._link.ready:
                return True
            message = self._outbox.next()
            if message is None:
                chunk = self._resync.chunk()
                if chunk is not None:
                    self._send(chunk)
                return False
            self._send(message)
        return True

    def _post(self, message: Message) -> None:
        self._outbox.post(message)
        self._send_soon()

    def _send(self, message: Message) -> None:
        try:
            sequence = self._train.add(message)
        except Refused as refused:
            self.dropped[refused.cause] += 1
            return
        if message.kind in ("hello", "heartbeat"):
            self._echoes.left(sequence, self._clock())

    # -- what the link reports -----------------------------------------------------------------------------

    def linked(self) -> None:
        """The subscription stands: introduce this replica, and ask the others for what was missed."""
        self._statement = "hello"
        self._statement_due = self._clock()
        self._linked = True
        self._heard = len(self._peers) > 0
        self._send_soon()
        self.resubscribed += self._was_linked
        self._was_linked = True
        self._resync.linked()

    def lost(self) -> None:
        """The subscription is gone: keep news until it is back."""
        self._linked = self._heard = False
        self._echoes.clear()
        self._outbox.cut_off()
        self._resync.lost()

    def receive(self, data: object) -> None:
        """Take in one message, or a train of them, of any origin and content."""
        if not isinstance(data, bytes):
            self.dropped["malformed"] += 1
            return
        if not self._echoes and self._train.is_own(data):
            return  # most of one's own messages say nothing when they come back
        try:
            messages = uncouple(data)
        except Refused as refused:
            self.dropped[refused.cause] += 1
            return
        for message in messages:
            self._receive(message)

    def _receive(self, data: bytes) -> None:
        try:
            envelope = open_envelope(data, self._fingerprint)
            if envelope.sender == self._sender:
                if self._echoes.came(envelope.sequence, self._clock()):
                    self._resync.echoed()
            else:
                self._merge(envelope, read(envelope), len(data))
        except Refused as refused:
            self.dropped[refused.cause] += 1
            if refused.cause == "fingerprint" and not self._warned:
                self._warned = True
                logger.warning(
                    "replica news: another replica on this channel uses a different hash secret or block layout; "
                    "nothing is shared with it, and prompts that it served will not be found here"
                )

    # -- taking in -----------------------------------------------------------------------------------------

    def _merge(self, envelope: Envelope, message: Message, size: int) -> None:
        sender = envelope.sender
        if message.kind == "bye":
            self._count("in", message.kind, size)
            if self._peers.leave(sender):
                self._drop(sender)
            return
        now = self._clock()
        heard = self._peers.hear(sender, envelope.sequence, now)
        if heard.how == "too_many":
            self.dropped["peers"] += 1
            return
        self._heard = self._linked
        self._count("in", message.kind, size)
        if isinstance(message, News):
            self._take_news(envelope, message, now)
        elif isinstance(message, Steps | Openings):
            self._their_work.take(sender, envelope.sequence, message)
        else:
            self._resync.take(sender, message)
        self.gaps += heard.how == "after_hole"
        self._resync.heard(sender, heard)

    def _take_news(self, envelope: Envelope, news: News, now: float) -> None:
        self._take_rows(envelope, news)
        for delta in news.deltas:
            if self._settle_epoch(delta.worker, delta.epoch) and not self._index.apply(delta, now):
                self.dropped["old_epoch"] += 1
        if news.complete:
            self._peers.holds(envelope.sender, news.blocks)
        if news.kind == "hello":
            self._statement_due = now
            self._send_soon()

    def _take_rows(self, envelope: Envelope, news: News) -> None:
        known: list[Row] = []
        for row in news.rows:
            worker = self._registry.get(row.worker)
            if worker is None:
                self.dropped["unknown_worker"] += 1
                continue
            known.append(row)
            self._offer_epoch(worker, row.epoch)
        for row in self._peers.merge(envelope.sender, envelope.sequence, known, complete=news.complete):
            worker = self._registry.get(row.worker)
            if worker is not None:
                self._registry.set_remote(worker, envelope.sender, row.in_flight, row.waiting, row.queued_tokens)

    def _settle_epoch(self, worker_id: str, epoch: float) -> bool:
        """Take an epoch that came with blocks; False if the worker is unknown."""
        worker = self._registry.get(worker_id)
        if worker is None:
            self.dropped["unknown_worker"] += 1
            return False
        self._offer_epoch(worker, epoch)
        if self._index.epoch_of(worker.id) is None:
            # Nobody has probed it yet, but it serves.
            self._index.set_epoch(worker.id, worker.epoch)
        return True

    def _offer_epoch(self, worker: Worker, epoch: float) -> None:
        if epoch <= worker.epoch:
            return
        if epoch > time.time() + EPOCH_AHEAD_SECONDS:
            self.dropped["absurd_epoch"] += 1
            return
        self._registry.set_epoch(worker, epoch)

    async def _watch(self) -> None:
        # One that is about to be too late is so now: nobody's load outlives it by more than the limit.
        early = self._settings.expire_seconds / 10
        while True:
            await asyncio.sleep(max(LEAST_WATCH_SECONDS, self._peers.first_due(self._clock()) - early))
            for sender in self._peers.expire(self._clock() + early):
                self._drop(sender)

    def _drop(self, sender: str) -> None:
        self._heard = self._linked and len(self._peers) > 0
        self._registry.drop_replica(sender)
        self._their_work.drop(sender)

    def _count(self, direction: Direction, kind: str, size: int) -> None:
        self.messages[direction, kind] = self.messages.get((direction, kind), 0) + 1
        self.bytes[direction] += size


def _redis_link(settings: SyncSettings) -> RedisLink:
    return RedisLink(Places(settings), settings.channel, max(2.0, 5 * settings.heartbeat_seconds))
