"""Keeps this replica's map like the others': asks for what is missing, answers who asks, and compares digests.

Everything that grows with the map is done in slices, between which requests have their turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from router.affinity import AffinityMap
from router.sync_codec import Chunk, Digest, Message, Refused, Want
from router.sync_peers import Heard, Peers
from router.sync_redis import end
from router.sync_repair import EVER, MISS_CAUSES, Answers, MissCause, Need, Repair
from router.sync_sketches import Sketches
from router.sync_snapshot import Memory, Snapshot, open_chunk, slices
from router.workers.registry import Registry

# A new replica says that it is ready when it is warm, or knows that it can't be, or after this time.
WARM_SECONDS = 5.0
LINK_SECONDS = 1.0
PEER_SECONDS = 0.5
# Peers answer a hello within some milliseconds; the fullest of them should be asked.
CHOICE_SECONDS = 0.05
# Those that are heard for the first time soon after the start have told what they know, or their likes have.
SETTLE_SECONDS = 10.0
# News may have waited this long before it was sent and lost.
GAP_MARGIN_SECONDS = 5.0
# How often what is missing is looked after, and what nobody is there to give.
TURN_SECONDS = 0.05
LONELY_SECONDS = 1.0
LEAST_SECONDS = 0.005
RESTORE_BLOCKS = 500
MAX_INCOMING = 256
MAX_SUMS = 100
# A digest is answered with the own one, but not more often than this.
REPLY_SECONDS = 2.0


@dataclass(slots=True)
class Tally:
    """What was done since the start: asked, by cause; asks that failed; answers given; blocks that were new here, the
    seconds of the last answer, and digests that differed."""

    asked: dict[MissCause, int] = field(default_factory=lambda: dict.fromkeys(MISS_CAUSES, 0))
    failed: int = 0
    answered: int = 0
    restored: int = 0
    seconds: float | None = None
    differences: int = 0


class Warming:
    """When a replica that has just started is as warm as it will be. Pure."""

    __slots__ = ("_link_until", "_linked_at", "_peer_until", "_until", "done")

    def __init__(self) -> None:
        # When it must be over, by when a link must be there, and then a peer.
        self._until = self._link_until = self._peer_until = float("inf")
        self._linked_at: float | None = None
        self.done = False

    def begin(self, now: float) -> None:
        """The replica starts."""
        self._until = now + WARM_SECONDS
        self._link_until = now + LINK_SECONDS

    def linked(self, now: float) -> None:
        """The subscription stands; the first time counts."""
        if self._linked_at is None:
            self._linked_at = now

    def echoed(self, now: float) -> None:
        """All others have heard of it."""
        if self._peer_until == float("inf"):
            self._peer_until = now + PEER_SECONDS

    def lasts(self, now: float, *, missing: bool) -> bool:
        """Whether it will soon know what the others know; `missing`: it knows of something that it does not."""
        if self.done or now >= self._until:
            return False
        if self._linked_at is None:
            return now < self._link_until
        return missing or now < self._peer_until

    def settled(self, now: float) -> bool:
        """Whether it has been linked for so long that a replica which it hears first now is news."""
        return self._linked_at is not None and now - self._linked_at > SETTLE_SECONDS


class Resync:
    """`post` sends a message to all; `offer_epoch` takes an epoch of a worker that another replica knows."""

    def __init__(
        self,
        me: str,
        index: AffinityMap,
        registry: Registry,
        peers: Peers,
        clock: Callable[[], float],
        digest_seconds: float,
        tally: Tally,
        post: Callable[[Message], None],
        offer_epoch: Callable[[str, float], bool],
    ) -> None:
        self._me = me
        self._index = index
        self._registry = registry
        self._peers = peers
        self._clock = clock
        self._digest_seconds = digest_seconds
        self._tally = tally
        self._post = post
        self._offer_epoch = offer_epoch
        self._repair = Repair(me)
        self._answers: Answers[Snapshot] = Answers()
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._up = False
        self._warming = Warming()
        # Chunks of the answer under way that are not taken in yet, and the blocks that were new so far.
        self._incoming: deque[Chunk] = deque()
        self._gained = 0
        # Digests of others that are not compared yet; when the last own one was said, and the next one is due.
        self._theirs: deque[tuple[str, Digest]] = deque(maxlen=MAX_INCOMING)
        self._sketches = Sketches(index, registry, clock)
        self._said = EVER
        self._digest_due = float("inf")

    # -- what the rest of the sync uses ---------------------------------------------------------------------

    @property
    def warming(self) -> bool:
        """Whether this replica has just started and will soon know what the others know."""
        return self._warming.lasts(self._clock(), missing=bool(self._repair.pending))

    @property
    def answering(self) -> bool:
        """Whether there is a next chunk."""
        return len(self._answers) > 0

    def start(self) -> None:
        """Begin, in the background."""
        self._warming.begin(self._clock())
        self._task = asyncio.create_task(self._work(), name="sync-resync")

    async def aclose(self) -> None:
        """Stop."""
        if self._task is not None:
            await end(self._task)

    def linked(self) -> None:
        """The subscription stands; whatever was lost before that goes unnoticed by others, so compare soon."""
        now = self._clock()
        self._up = True
        self._warming.linked(now)
        self._digest_due = min(self._digest_due, now + PEER_SECONDS)
        self._wake.set()

    def lost(self) -> None:
        """The subscription is gone."""
        self._up = False
        self._repair.abandon(self._clock())
        self._answers.clear()
        self._theirs.clear()
        self._incoming.clear()

    def echoed(self) -> None:
        """This replica's hello has come back, so all others have it."""
        self._warming.echoed(self._clock())

    def heard(self, sender: str, heard: Heard) -> None:
        """A message of another replica has come."""
        if heard.how == "after_hole":
            self._repair.miss(Need("gap", heard.since - GAP_MARGIN_SECONDS), sender)
        elif heard.how == "found" or (heard.how == "joined" and self._peers.blocks.get(sender)):
            # Also one whose first word this is, if it has learned something before it could speak.
            self._found(sender)
        else:
            return
        self._wake.set()

    def _found(self, sender: str) -> None:
        now = self._clock()
        if not any(self._tally.asked.values()) and not self._repair.pending:
            self._repair.miss(Need("start", EVER))
            self._repair.hold_off(now + CHOICE_SECONDS)
        elif self._warming.settled(now):
            self._repair.miss(Need("found", EVER), sender)

    def take(self, sender: str, message: Want | Chunk | Digest) -> None:
        """A message that concerns what maps hold."""
        if isinstance(message, Digest):
            self._theirs.append((sender, message))
            self._wake.set()
        elif message.to != self._me:
            return
        elif isinstance(message, Want):
            self._answer(sender, message)
        elif self._repair.expects(sender, message, self._clock()):
            self._incoming.append(message)
            if len(self._incoming) > MAX_INCOMING:
                self._fail()
            self._wake.set()

    def chunk(self) -> Chunk | None:
        """The next part of an answer, made now."""
        return self._answers.next(self._chunk_of)

    # -- answering ------------------------------------------------------------------------------------------

    def _answer(self, sender: str, want: Want) -> None:
        now = self._clock()
        names = want.workers or [worker.id for worker in self._registry]

        def make() -> Snapshot:
            exports = [self._index.export(name, now - want.seconds) for name in names]
            return Snapshot([export for export in exports if export is not None])

        self._tally.answered += self._answers.accept(sender, want, make, now)

    def _chunk_of(self, snapshot: Snapshot) -> tuple[bytes, bool]:
        return snapshot.chunk(self._clock()), snapshot.done

    # -- asking ---------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            self._wake.clear()
            await self._restore()
            if self._up:
                self._ask()
                await self._compare()

    def _pause(self) -> float | None:
        """How long there is nothing to do unless something comes; a wake-up is dear where nothing else happens."""
        if not self._up:
            return None
        if self._repair.pending:
            return TURN_SECONDS if len(self._peers) else LONELY_SECONDS
        return max(LEAST_SECONDS, self._digest_due - self._clock())

    def _ask(self) -> None:
        now = self._clock()
        self._tally.failed += self._repair.expire(now, self._peers)
        want = self._repair.next(now, self._peers.blocks)
        if want is not None and self._repair.ask is not None:
            self._incoming.clear()
            self._gained = 0
            self._tally.asked[self._repair.ask.need.cause] += 1
            self._post(want)

    async def _restore(self) -> None:
        """Take in the chunks that are here."""
        while self._incoming:
            chunk = self._incoming.popleft()
            try:
                memories = open_chunk(chunk.body)
            except Refused:
                self._fail()
                return
            for memory in memories:
                await self._restore_memory(memory)
            ask = self._repair.ask
            if chunk.last and ask is not None and ask.request == chunk.request:
                now = self._clock()
                self._tally.seconds = now - ask.began
                self._warming.done = True
                if ask.need.cause != "digest":
                    self._digest_due = min(self._digest_due, now + PEER_SECONDS)
                self._repair.finish(self._gained, now)

    async def _restore_memory(self, memory: Memory) -> None:
        if not self._offer_epoch(memory.worker, memory.epoch):
            return
        for group in slices(memory, RESTORE_BLOCKS):
            gained = self._index.restore(memory.worker, memory.epoch, group, self._clock())
            if gained is None:
                return
            self._gained += gained
            self._tally.restored += gained
            self._sketches.restored(memory.worker)
            await asyncio.sleep(0)

    def _fail(self) -> None:
        self._tally.failed += 1
        self._incoming.clear()
        if self._repair.ask is not None:
            self._repair.fail(self._clock())

    # -- comparing ------------------------------------------------------------------------------------------

    async def _compare(self) -> None:
        """Say a digest when it is due, or when another replica has said one, and compare theirs with this one's."""
        now = self._clock()
        if now < self._digest_due and not self._theirs:
            return
        await self._sketches.renew()
        if now >= self._digest_due or now - self._said > min(REPLY_SECONDS, self._digest_seconds / 2):
            self._said = now
            self._digest_due = now + self._digest_seconds * random.uniform(0.9, 1.1)
            self._say()
        differing: dict[str, list[str]] = {}
        while self._theirs:
            sender, digest = self._theirs.popleft()
            differing.setdefault(sender, []).extend(sum_.worker for sum_ in digest.sums if self._sketches.differ(sum_))
        for sender, workers in differing.items():
            self._judge(sender, workers)

    def _say(self) -> None:
        sums = self._sketches.sums()
        # An empty one is said too: it asks the others for theirs.
        for begin in range(0, max(1, len(sums)), MAX_SUMS):
            self._post(Digest(sums[begin : begin + MAX_SUMS]))

    def _judge(self, sender: str, differing: list[str]) -> None:
        if not differing:
            self._repair.agree(sender)
        # While something is known to be missing, a difference says nothing new.
        elif not self._repair.pending and sender in self._peers:
            self._tally.differences += 1
            self._repair.differ(sender, differing, self._clock())
