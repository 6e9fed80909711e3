"""What replicas say to each other, and how it merges. Pure: bytes in, values out, and `now` is an argument.

A message is one msgpack array, [version, fingerprint, sender, sequence, kind, payload], of at most 64 KiB:

- version: of this layout; any other is refused;
- fingerprint: of hash secret and block layout; replicas that differ in it compute other hashes for the same prompt;
- sender: one life of one replica; sequence: 1, 2, 3 ... per sender, so that a hole shows what was lost;
- kind: a key of `KINDS`; payload: [deltas, rows].

A row is what the sender knows of one worker: [worker, epoch, in_flight], both absolute, so the newest row says it all.
A delta is [worker, epoch, base, new] as in the ownership map, `new` packed as 8 little-endian bytes per block.

Merging does not depend on order or repetition: for each worker the row with the highest sequence counts, the larger
epoch wins, and blocks are only ever added within an epoch.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from router.affinity import Delta

VERSION = 1
MAX_MESSAGE = 64 * 1024
# Work that one message may bring to a receiver; a sender with more to say sends more messages.
MAX_DELTAS = 128
MAX_ROWS = 512

Kind = Literal["hello", "heartbeat", "news", "bye"]
# Whether the rows of a kind are all that the sender knows, so that a worker without one has nothing in flight.
KINDS: dict[Kind, bool] = {
    "hello": True,  # the sender has (re)joined and asks the others for a heartbeat
    "heartbeat": True,
    "news": False,
    "bye": True,
}

# How a message stands to what was heard of its sender before: its first one ever or the first one heard of it, then in
# order, after a hole, or one replica too many.
Heard = Literal["joined", "found", "in_order", "after_hole", "too_many"]
Cause = Literal["version", "fingerprint", "oversized", "malformed", "kind"]
Name = Annotated[str, msgspec.Meta(max_length=64)]
# Seconds since 1970 stay below this for the next thousand years; NaN and infinity fail the comparison.
Epoch = Annotated[float, msgspec.Meta(ge=0, le=4e10)]
InFlight = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Sequence64 = Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
Block = Annotated[int, msgspec.Meta(ge=0)]


class Refused(Exception):
    """A message that is not taken; `cause` is also the label it is counted under."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause)
        self.cause: Cause = cause


class Row(msgspec.Struct, array_like=True, frozen=True):
    """One worker as the sender sees it: its epoch, and the sender's own requests in flight on it."""

    worker: Name
    epoch: Epoch
    in_flight: InFlight


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """A message whose payload has not been looked at yet."""

    version: int
    fingerprint: Name
    sender: Name
    sequence: Sequence64
    kind: Name
    payload: msgspec.Raw


class _Version(msgspec.Struct, array_like=True):
    version: int


class _WireDelta(msgspec.Struct, array_like=True, frozen=True):
    worker: Name
    epoch: Epoch
    base: Block | None
    new: bytes


class _Payload(msgspec.Struct, array_like=True, frozen=True):
    deltas: list[_WireDelta]
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class News:
    """The content of a message."""

    kind: Kind
    deltas: Sequence[Delta] = ()
    rows: Sequence[Row] = ()

    @property
    def complete(self) -> bool:
        """Whether a worker without a row has nothing in flight from the sender."""
        return KINDS[self.kind]


_encode = msgspec.msgpack.Encoder().encode
_open = msgspec.msgpack.Decoder(Envelope).decode
_open_version = msgspec.msgpack.Decoder(_Version).decode
_read = msgspec.msgpack.Decoder(_Payload).decode


def encode(fingerprint: str, sender: str, sequence: int, news: News) -> bytes:
    """The message in bytes; Refused if it is larger than any receiver would take."""
    deltas = [_WireDelta(delta.worker, delta.epoch, delta.base, _pack(delta.new)) for delta in news.deltas]
    payload = msgspec.Raw(_encode(_Payload(deltas, list(news.rows))))
    data = _encode(Envelope(VERSION, fingerprint, sender, sequence, news.kind, payload))
    if len(data) > MAX_MESSAGE:
        raise Refused("oversized")
    return data


def open_envelope(data: bytes, fingerprint: str) -> Envelope:
    """Who says it and what it is; Refused if it is not a message of this version and fingerprint."""
    if len(data) > MAX_MESSAGE:
        raise Refused("oversized")
    try:
        envelope = _open(data)
    except (msgspec.MsgspecError, RecursionError):
        raise Refused("version" if _other_version(data) else "malformed") from None
    if envelope.version != VERSION:
        raise Refused("version")
    if envelope.fingerprint != fingerprint:
        raise Refused("fingerprint")
    return envelope


def read(envelope: Envelope) -> News:
    """The content of an opened message; Refused if its kind is unknown or anything in it is out of range."""
    kind = _kind(envelope.kind)
    try:
        payload = _read(envelope.payload)
        deltas = [Delta(delta.worker, delta.epoch, delta.base, _unpack(delta.new)) for delta in payload.deltas]
    except (msgspec.MsgspecError, RecursionError, struct.error):
        raise Refused("malformed") from None
    return News(kind, deltas, payload.rows)


def take(deltas: deque[Delta], rows: deque[Row]) -> News:
    """Remove from the front of both queues what fits into one message."""
    taken_rows = [rows.popleft() for _ in range(min(len(rows), MAX_ROWS))]
    room = MAX_MESSAGE - 512 - sum(_row_bytes(row) for row in taken_rows)
    taken: list[Delta] = []
    while deltas and len(taken) < MAX_DELTAS:
        room -= _delta_bytes(deltas[0])
        if room < 0 and taken:
            break
        taken.append(deltas.popleft())
    return News("news", taken, taken_rows)


def _other_version(data: bytes) -> bool:
    try:
        return _open_version(data).version != VERSION
    except (msgspec.MsgspecError, RecursionError):
        return False


def _kind(name: str) -> Kind:
    for kind in KINDS:
        if kind == name:
            return kind
    raise Refused("kind")


def _pack(blocks: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(blocks)}Q", *blocks)


def _unpack(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 8}Q", packed)


# Upper bounds of the encoded sizes: a name takes up to 4 bytes a character and 5 more, a number up to 9.


def _row_bytes(row: Row) -> int:
    return 4 * len(row.worker) + 24


def _delta_bytes(delta: Delta) -> int:
    return 4 * len(delta.worker) + 8 * len(delta.new) + 29


class _Peer:
    """Another replica: when it was last heard, its highest sequence, that of its last complete message, its counts."""

    __slots__ = ("complete", "counts", "heard", "sequence")

    def __init__(self) -> None:
        self.heard = 0.0
        self.sequence = 0
        self.complete = 0
        # worker -> the sequence that said so, requests in flight
        self.counts: dict[str, tuple[int, int]] = {}


class Peers:
    """The other replicas and what each has in flight; bounded in replicas, and in workers by the rows it is given."""

    def __init__(self, limit: int, expire_seconds: float) -> None:
        self._limit = limit
        self._expire_seconds = expire_seconds
        self._peers: dict[str, _Peer] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def hear(self, sender: str, sequence: int, now: float) -> Heard:
        """Note that a message came, and tell whether some before it did not. Repeated and late ones are in order."""
        peer = self._peers.get(sender)
        if peer is None:
            if len(self._peers) >= self._limit:
                return "too_many"
            peer = self._peers[sender] = _Peer()
        before, peer.sequence = peer.sequence, max(peer.sequence, sequence)
        peer.heard = now
        if before == 0:
            return "joined" if sequence == 1 else "found"
        return "in_order" if sequence <= before + 1 else "after_hole"

    def merge(self, sender: str, sequence: int, rows: Iterable[Row], *, complete: bool) -> list[tuple[str, int]]:
        """The in-flight counts, by worker, that a message of a sender that was heard changes or confirms."""
        peer = self._peers[sender]
        if sequence <= peer.complete:
            return []
        counts = peer.counts
        effects: list[tuple[str, int]] = []
        for row in rows:
            said, _ = counts.get(row.worker, (0, 0))
            if sequence > said:
                counts[row.worker] = (sequence, row.in_flight)
                effects.append((row.worker, row.in_flight))
        if complete:
            peer.complete = sequence
            silent = [worker for worker, (said, _) in counts.items() if said < sequence]
            for worker in silent:
                del counts[worker]
                effects.append((worker, 0))
        return effects

    def leave(self, sender: str) -> bool:
        """Forget a replica that said goodbye; False if it was not known."""
        return self._peers.pop(sender, None) is not None

    def expire(self, now: float) -> list[str]:
        """Forget the replicas that were not heard for too long, and name them."""
        gone = [sender for sender, peer in self._peers.items() if now - peer.heard >= self._expire_seconds]
        for sender in gone:
            del self._peers[sender]
        return gone
