"""The other replicas: who is alive, what was missed of whom, and what each has on the workers. Pure.

Merging does not depend on order or repetition: for each worker the row with the highest sequence counts. A replica that
has fallen silent loses its part of the load, but its place in its sequence is kept, so that a hole shows when it is
heard again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from router.sync_codec import Row

# How a message stands to what was heard of its sender before: its first one ever or the first one heard of it, then in
# order, after a hole, or one replica too many.
How = Literal["joined", "found", "in_order", "after_hole", "too_many"]


class Heard(NamedTuple):
    """How a message stands to those before it, and when the last of these was heard."""

    how: How
    since: float


class _Peer:
    """When it was last heard, its highest sequence, that of its last statement, its rows, the size of its map."""

    __slots__ = ("blocks", "complete", "heard", "rows", "sequence")

    def __init__(self, heard: float, sequence: int) -> None:
        self.heard = heard
        self.sequence = sequence
        self.complete = 0
        self.blocks = 0
        # worker -> the sequence that said so, and what it said
        self.rows: dict[str, tuple[int, Row]] = {}


class Peers:
    """Bounded in replicas, and in workers by the rows it is given."""

    def __init__(self, limit: int, expire_seconds: float) -> None:
        self._limit = limit
        self._expire_seconds = expire_seconds
        self._peers: dict[str, _Peer] = {}
        # Those that fell silent: when each was last heard, and its sequence then. The oldest are forgotten.
        self._silent: dict[str, tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def __contains__(self, sender: object) -> bool:
        return sender in self._peers

    @property
    def blocks(self) -> dict[str, int]:
        """By sender, how many blocks its map holds."""
        return {sender: peer.blocks for sender, peer in self._peers.items()}

    def hear(self, sender: str, sequence: int, now: float) -> Heard:
        """Note that a message came, and tell whether some before it did not. Repeated and late ones are in order."""
        peer = self._peers.get(sender)
        if peer is None:
            if len(self._peers) >= self._limit:
                return Heard("too_many", now)
            heard, before = self._silent.pop(sender, (now, 0))
            peer = self._peers[sender] = _Peer(heard, before)
        since, before = peer.heard, peer.sequence
        peer.heard = now
        peer.sequence = max(before, sequence)
        if before == 0:
            return Heard("joined" if sequence == 1 else "found", since)
        return Heard("in_order" if sequence <= before + 1 else "after_hole", since)

    def merge(self, sender: str, sequence: int, rows: Iterable[Row], *, complete: bool) -> list[Row]:
        """The rows of a sender that was heard which change or confirm something; one of zeros ends a worker's part."""
        peer = self._peers[sender]
        if sequence <= peer.complete:
            return []
        effects: list[Row] = []
        for row in rows:
            known = peer.rows.get(row.worker)
            if known is None or sequence > known[0]:
                peer.rows[row.worker] = (sequence, row)
                effects.append(row)
        if complete:
            peer.complete = sequence
            silent = [(worker, row) for worker, (said, row) in peer.rows.items() if said < sequence]
            for worker, row in silent:
                del peer.rows[worker]
                effects.append(Row(worker, row.epoch, 0))
        return effects

    def holds(self, sender: str, blocks: int) -> None:
        """A sender that was heard says how many blocks it holds."""
        self._peers[sender].blocks = blocks

    def leave(self, sender: str) -> bool:
        """Forget a replica that said goodbye; False if it was not alive."""
        self._silent.pop(sender, None)
        return self._peers.pop(sender, None) is not None

    def first_due(self, now: float) -> float:
        """In how many seconds the first replica will have been silent for too long, if none is heard."""
        heard = min((peer.heard for peer in self._peers.values()), default=now)
        return heard + self._expire_seconds - now

    def expire(self, now: float) -> list[str]:
        """Take out the replicas that were not heard for too long, and name them."""
        gone = [sender for sender, peer in self._peers.items() if now - peer.heard >= self._expire_seconds]
        for sender in gone:
            peer = self._peers.pop(sender)
            self._silent[sender] = (peer.heard, peer.sequence)
            if len(self._silent) > self._limit:
                del self._silent[next(iter(self._silent))]
        return gone
