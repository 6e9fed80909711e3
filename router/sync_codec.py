"""What replicas say to each other. Pure: bytes in, values out.

A message is one msgpack array, [version, fingerprint, sender, sequence, kind, payload], of at most 64 KiB:

- version: of this layout; any other is refused;
- fingerprint: of hash secret and block layout; replicas that differ in it compute other hashes for the same prompt;
- sender: one life of one replica; sequence: 1, 2, 3 ... per sender, so that a hole shows what was lost;
- kind: a key of `KINDS`; payload: [deltas, rows, blocks] of news, `Steps` or `Openings` of requests, or a `Want`, a
  `Chunk` or a `Digest`.

A row is what the sender has on one worker: [worker, epoch, in_flight, waiting, queued_tokens], all absolute, so the
newest row says it all. A delta is [worker, epoch, base, new] as in the ownership map, `new` packed as 8 little-endian
bytes per block. `blocks` is how much the sender's map holds, in statements.

A replica that misses something sends a `Want` to one other, which answers with `Chunk`s; a `Digest` shows whether
anything is missing that nobody has noticed. These three are on the same channel, and cost whom they do not concern
little.

Messages that leave at the same time go as one, a train: a byte that begins no message, and each with its length before
it. On the way a train costs as much as one message, and it is lost or arrives as a whole.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import msgspec

from router.affinity import Delta
from router.sync_pack import encoded, unpack
from router.sync_steps import Openings, Steps

VERSION = 2
MAX_MESSAGE = 64 * 1024
TRAIN = b"\xc1"
MAX_COUPLED = 32
MAX_TRAIN = MAX_MESSAGE + 5 * MAX_COUPLED
_LENGTH = struct.Struct("!I")
# Where the first message of a train begins.
FIRST = len(TRAIN) + _LENGTH.size
# Work that one message may bring to a receiver; a sender with more to say sends more messages.
MAX_DELTAS = 128
MAX_ROWS = 512

NewsKind = Literal["hello", "heartbeat", "news", "bye"]
Kind = Literal["hello", "heartbeat", "news", "bye", "steps", "open", "want", "snapshot", "digest"]
# Whether the rows of a kind are all that the sender knows, so that a worker without one has nothing in flight.
KINDS: dict[Kind, bool] = {
    "hello": True,  # the sender has (re)joined and asks the others for a heartbeat and a digest
    "heartbeat": True,
    "news": False,
    "bye": True,
    "steps": False,
    "open": False,
    "want": False,
    "snapshot": False,
    "digest": False,
}

Cause = Literal["version", "fingerprint", "oversized", "malformed", "kind"]
Name = Annotated[str, msgspec.Meta(max_length=64)]
# Seconds since 1970 stay below this for the next thousand years; NaN and infinity fail the comparison.
Epoch = Annotated[float, msgspec.Meta(ge=0, le=4e10)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000_000)]
Blocks = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Sequence64 = Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
Block = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=4e10)]


class Refused(Exception):
    """A message that is not taken; `cause` is also the label it is counted under."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause)
        self.cause: Cause = cause


class Row(msgspec.Struct, array_like=True, frozen=True):
    """One worker as the sender sees it: its epoch, and the sender's own part of what it has to do."""

    worker: Name
    epoch: Epoch
    in_flight: Count
    waiting: Count = 0
    queued_tokens: Tokens = 0


class Want(msgspec.Struct, array_like=True, frozen=True):
    """To one replica: tell me what you remember of these workers (of all, if none is named).

    Only what was used in the last `seconds`. `request` is repeated in the answer.
    """

    kind = "want"

    to: Name
    request: Number
    seconds: Seconds
    workers: Annotated[list[Name], msgspec.Meta(max_length=MAX_ROWS)]


class Chunk(msgspec.Struct, array_like=True, frozen=True):
    """A part of an answer, numbered from 0; `body` is packed uses."""

    kind = "snapshot"

    to: Name
    request: Number
    number: Number
    last: bool
    body: bytes


class Sum(msgspec.Struct, array_like=True, frozen=True):
    """What a replica holds of one worker: a number of blocks, and their sketch."""

    worker: Name
    epoch: Epoch
    blocks: Blocks
    sketch: bytes


class Digest(msgspec.Struct, array_like=True, frozen=True):
    """Some workers' sums."""

    kind = "digest"

    sums: Annotated[list[Sum], msgspec.Meta(max_length=MAX_ROWS)]


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
    blocks: Blocks


@dataclass(frozen=True, slots=True)
class News:
    """What has changed, or, in a statement, all that the sender has on workers.

    `encoded` are further deltas, on the way out only.
    """

    kind: NewsKind
    deltas: Sequence[Delta] = ()
    rows: Sequence[Row] = ()
    blocks: int = 0
    encoded: Sequence[msgspec.Raw] = ()

    @property
    def complete(self) -> bool:
        """Whether a worker without a row has nothing in flight from the sender."""
        return KINDS[self.kind]


Message: TypeAlias = News | Steps | Openings | Want | Chunk | Digest

_encode = msgspec.msgpack.Encoder().encode
_open = msgspec.msgpack.Decoder(Envelope).decode
_open_version = msgspec.msgpack.Decoder(_Version).decode
_read_news = msgspec.msgpack.Decoder(_Payload).decode
_read_steps = msgspec.msgpack.Decoder(Steps).decode
_read_open = msgspec.msgpack.Decoder(Openings).decode
_read_want = msgspec.msgpack.Decoder(Want).decode
_read_chunk = msgspec.msgpack.Decoder(Chunk).decode
_read_digest = msgspec.msgpack.Decoder(Digest).decode


def encode(fingerprint: str, sender: str, sequence: int, message: Message) -> bytes:
    """The message in bytes; Refused if it is larger than any receiver would take."""
    payload: object = message
    if isinstance(message, News):
        deltas = [encoded(delta.worker, delta.epoch, delta.base, delta.new) for delta in message.deltas]
        payload = ([*deltas, *message.encoded], message.rows, message.blocks)
    data = _encode(Envelope(VERSION, fingerprint, sender, sequence, message.kind, msgspec.Raw(_encode(payload))))
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


def couple(messages: Sequence[bytes]) -> bytes:
    """Some messages as a train; one alone stays as it is."""
    if len(messages) == 1:
        return messages[0]
    pieces = [TRAIN]
    for message in messages:
        pieces += (_LENGTH.pack(len(message)), message)
    return b"".join(pieces)


def uncouple(data: bytes) -> list[bytes]:
    """The messages of a train, or the one there is; Refused if the train is no whole one, or too long."""
    if not data.startswith(TRAIN):
        return [data]
    if len(data) > MAX_TRAIN:
        raise Refused("oversized")
    found: list[bytes] = []
    at = len(TRAIN)
    while at < len(data):
        begin = at + _LENGTH.size
        if begin > len(data) or len(found) == MAX_COUPLED:
            raise Refused("malformed")
        at = begin + _LENGTH.unpack_from(data, at)[0]
        found.append(data[begin:at])
    if at != len(data):
        raise Refused("malformed")
    return found


def read(envelope: Envelope) -> Message:
    """The content of an opened message; Refused if its kind is unknown or anything in it is out of range."""
    kind, payload = envelope.kind, envelope.payload
    try:
        match kind:
            case "hello" | "heartbeat" | "news" | "bye":
                return _news(kind, _read_news(payload))
            case "steps":
                return _read_steps(payload)
            case "open":
                return _read_open(payload)
            case "want":
                return _read_want(payload)
            case "snapshot":
                return _read_chunk(payload)
            case "digest":
                return _read_digest(payload)
    except (msgspec.MsgspecError, RecursionError, struct.error):
        raise Refused("malformed") from None
    raise Refused("kind")


def take(deltas: deque[msgspec.Raw], rows: deque[Row]) -> News:
    """Remove from the front of both queues what fits into one message."""
    taken_rows = [rows.popleft() for _ in range(min(len(rows), MAX_ROWS))]
    room = MAX_MESSAGE - 512 - sum(_row_bytes(row) for row in taken_rows)
    taken: list[msgspec.Raw] = []
    while deltas and len(taken) < MAX_DELTAS:
        room -= len(deltas[0])
        if room < 0 and taken:
            break
        taken.append(deltas.popleft())
    return News("news", rows=taken_rows, encoded=taken)


def _news(kind: NewsKind, payload: _Payload) -> News:
    deltas = [Delta(delta.worker, delta.epoch, delta.base, unpack(delta.new)) for delta in payload.deltas]
    return News(kind, deltas, payload.rows, payload.blocks)


def _other_version(data: bytes) -> bool:
    try:
        return _open_version(data).version != VERSION
    except (msgspec.MsgspecError, RecursionError):
        return False


# Upper bounds of the encoded sizes: a name takes up to 4 bytes a character and 5 more, a number up to 9.


def _row_bytes(row: Row) -> int:
    return 4 * len(row.worker) + 42
