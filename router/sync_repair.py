"""What this replica misses, whom it asks for that and when, and whom it answers. Pure: `now` is an argument.

One ask is under way at a time. An ask whose answer does not come, or comes with a hole, goes to the next replica. Asks
are spaced by as long as the last one took, so that catching up takes at most half of the time, and by two seconds
to the same replica. Whoever is asked answers each other replica at most once a second, so that no two ever flood each
other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from xxhash import xxh3_64_intdigest

from router.sync_codec import MAX_ROWS, Chunk, Want

# Why something is asked for: this replica has just started; numbers of a sender are missing; a sender is heard for the
# first time in the middle of its life; a digest differs.
MissCause = Literal["start", "gap", "found", "digest"]
MISS_CAUSES: tuple[MissCause, ...] = ("start", "gap", "found", "digest")

# Any replica that holds a lot, in place of a sender.
ANYONE = ""
FIRST_SECONDS = 1.0
NEXT_SECONDS = 2.0
ASK_SECONDS = 60.0
SPACING_SECONDS = 0.2
SAME_PEER_SECONDS = 2.0
ANSWER_SPACING_SECONDS = 1.0
MAX_ANSWERS = 8
MAX_NEEDS = 256
# After a digest's difference that the answer did not explain: the other may be the one that misses something.
SHY_SECONDS = 10.0
SHY_LAST = 640.0
FRUITLESS_BLOCKS = 32
EVER = -math.inf


@dataclass(frozen=True, slots=True)
class Need:
    """Something that is missing: why, used since when, and of which workers (None: all)."""

    cause: MissCause
    since: float
    workers: frozenset[str] | None = None

    def with_(self, other: Need) -> Need:
        """Both needs in one."""
        workers = None if self.workers is None or other.workers is None else self.workers | other.workers
        return Need(self.cause, min(self.since, other.since), workers)


@dataclass(slots=True)
class Ask:
    """A want that was sent: which need of whom it is for, to whom it went, and how far its answer is."""

    sender: str
    need: Need
    peer: str
    request: int
    began: float
    deadline: float
    number: int = 0
    # All of the answer is here and is being taken in.
    complete: bool = False


@dataclass(slots=True)
class _Shy:
    until: float
    seconds: float


@dataclass(slots=True)
class Repair:
    """The side that asks; `me` is this replica's sender id."""

    me: str
    ask: Ask | None = None
    _needs: dict[str, Need] = field(default_factory=dict)
    # Replicas that did not answer a need, until one has or all have been tried.
    _tried: dict[str, set[str]] = field(default_factory=dict)
    _asked: dict[str, float] = field(default_factory=dict)
    _shy: dict[str, _Shy] = field(default_factory=dict)
    _request: int = 0
    _not_before: float = EVER

    @property
    def pending(self) -> frozenset[MissCause]:
        """Causes of what is missing still."""
        causes = {need.cause for need in self._needs.values()}
        return frozenset(causes | {self.ask.need.cause} if self.ask is not None else causes)

    def miss(self, need: Need, sender: str = ANYONE) -> None:
        """Something of a sender, or of anyone, is missing."""
        known = self._needs.get(sender)
        if known is None and len(self._needs) >= MAX_NEEDS:
            sender = ANYONE
            known = self._needs.get(sender)
        self._needs[sender] = known.with_(need) if known is not None else need

    def differ(self, sender: str, workers: Collection[str], now: float) -> bool:
        """A sender's digest shows a difference in these workers; True if it will be asked."""
        shy = self._shy.get(sender)
        if shy is not None and now < shy.until:
            return False
        self.miss(Need("digest", EVER, frozenset(workers)), sender)
        return True

    def agree(self, sender: str) -> None:
        """A sender's digest shows no difference."""
        self._shy.pop(sender, None)

    def hold_off(self, until: float) -> None:
        """Ask nothing before then: better ones may be heard meanwhile."""
        self._not_before = max(self._not_before, until)

    def next(self, now: float, peers: Mapping[str, int]) -> Want | None:
        """What to send now, if anything; `peers` are the living ones with the sizes of their maps."""
        if self.ask is not None or now < self._not_before:
            return None
        for sender in sorted(self._needs, key=lambda sender: sender != ANYONE):
            peer = self._peer_for(sender, peers, now)
            if peer is not None:
                return self._ask(sender, peer, now)
        return None

    def expects(self, sender: str, chunk: Chunk, now: float) -> bool:
        """Whether a chunk is the next part of the answer; one with a hole before it ends the ask."""
        ask = self.ask
        if ask is None or ask.complete or sender != ask.peer or chunk.request != ask.request:
            return False
        if chunk.number != ask.number:
            if chunk.number > ask.number:
                self.fail(now)
            return False
        ask.number += 1
        ask.deadline = min(now + NEXT_SECONDS, ask.began + ASK_SECONDS)
        ask.complete = chunk.last
        return True

    def finish(self, gained: int, now: float) -> None:
        """The answer has been taken in, and so many blocks were new."""
        ask = self._end(now)
        self._tried.pop(ask.sender, None)
        if ask.need.cause == "digest":
            if gained >= FRUITLESS_BLOCKS:
                self._shy.pop(ask.peer, None)
            else:
                self._be_shy(ask.peer, now)

    def expire(self, now: float, peers: Container[str]) -> bool:
        """End an ask that takes too long, or whose peer is gone; True if there was one."""
        ask = self.ask
        if ask is None or ask.complete or (now < ask.deadline and ask.peer in peers):
            return False
        self.fail(now)
        return True

    def fail(self, now: float) -> None:
        """The answer under way is of no use: ask somebody else."""
        ask = self._end(now)
        self._tried.setdefault(ask.sender, set()).add(ask.peer)
        self.miss(ask.need, ask.sender)

    def abandon(self, now: float) -> None:
        """The link is gone: what is asked for stays needed."""
        if self.ask is not None and not self.ask.complete:
            ask = self._end(now)
            self.miss(ask.need, ask.sender)

    def _peer_for(self, sender: str, peers: Mapping[str, int], now: float) -> str | None:
        tried = self._tried.get(sender, set())
        if sender in peers and sender not in tried:
            return sender if self._may_ask(sender, now) else None
        others = {peer: blocks for peer, blocks in peers.items() if peer not in tried}
        if not others:
            # Nobody has answered; what is really missing will show in a digest.
            if peers:
                self._needs.pop(sender)
                self._tried.pop(sender, None)
            return None
        peer = choose(self.me, others)
        return peer if self._may_ask(peer, now) else None

    def _may_ask(self, peer: str, now: float) -> bool:
        return now - self._asked.get(peer, EVER) >= SAME_PEER_SECONDS

    def _ask(self, sender: str, peer: str, now: float) -> Want:
        need = self._needs.pop(sender)
        self._request += 1
        self.ask = Ask(sender, need, peer, self._request, now, now + FIRST_SECONDS)
        self._asked = {other: at for other, at in self._asked.items() if now - at < SAME_PEER_SECONDS}
        self._asked[peer] = now
        workers = sorted(need.workers) if need.workers is not None and len(need.workers) <= MAX_ROWS else []
        seconds = min(4e10, max(0.0, now - need.since))
        return Want(peer, self._request, seconds, workers)

    def _end(self, now: float) -> Ask:
        ask, self.ask = self.ask, None
        if ask is None:
            raise RuntimeError("no ask is under way")
        self._not_before = now + max(SPACING_SECONDS, now - ask.began)
        return ask

    def _be_shy(self, peer: str, now: float) -> None:
        before = self._shy.pop(peer, None)
        seconds = min(SHY_LAST, 2 * before.seconds) if before is not None else SHY_SECONDS
        self._shy[peer] = _Shy(now + seconds, seconds)
        if len(self._shy) > MAX_NEEDS:
            del self._shy[next(iter(self._shy))]


def choose(me: str, peers: Mapping[str, int]) -> str:
    """Whom to ask: of those that hold about as much as the fullest, another one for every asker (rendezvous)."""
    enough = max(peers.values()) / 2
    return max(
        (peer for peer, blocks in peers.items() if blocks >= enough),
        key=lambda peer: xxh3_64_intdigest(f"{me} {peer}".encode()),
    )


T = TypeVar("T")


@dataclass(slots=True)
class _Answer(Generic[T]):
    request: int
    number: int
    content: T


class Answers(Generic[T]):
    """The side that answers: at most one answer at a time for each asker, `MAX_ANSWERS` in all, in turns."""

    def __init__(self) -> None:
        self._open: dict[str, _Answer[T]] = {}
        self._begun: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._open)

    def accept(self, sender: str, want: Want, make: Callable[[], T], now: float) -> bool:
        """Begin an answer, in place of an earlier one to the same asker; False if it must wait."""
        self._begun = {asker: at for asker, at in self._begun.items() if now - at < ANSWER_SPACING_SECONDS}
        if sender in self._begun or (sender not in self._open and len(self._open) >= MAX_ANSWERS):
            return False
        self._begun[sender] = now
        self._open[sender] = _Answer(want.request, 0, make())
        return True

    def next(self, chunk_of: Callable[[T], tuple[bytes, bool]]) -> Chunk | None:
        """The next part of the answer whose turn it is; `chunk_of` gives a body and whether it is the last."""
        if not self._open:
            return None
        sender = next(iter(self._open))
        answer = self._open.pop(sender)
        body, last = chunk_of(answer.content)
        if not last:
            self._open[sender] = answer  # at the end of the row
        answer.number += 1
        return Chunk(sender, answer.request, answer.number - 1, last, body)

    def clear(self) -> None:
        """Drop all answers: the link is gone."""
        self._open.clear()
