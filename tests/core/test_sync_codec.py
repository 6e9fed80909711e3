"""Messages survive the wire, and nothing else gets in."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.affinity import Delta
from router.sync_codec import (
    KINDS,
    MAX_COUPLED,
    MAX_DELTAS,
    MAX_MESSAGE,
    MAX_ROWS,
    MAX_TRAIN,
    TRAIN,
    VERSION,
    Chunk,
    Digest,
    Message,
    News,
    Refused,
    Row,
    Sum,
    Want,
    couple,
    encode,
    open_envelope,
    read,
    take,
    uncouple,
)
from router.sync_pack import encoded

PRINT = "0123456789abcdef"
SENDER = "feedfacefeedface"

blocks = st.integers(0, 2**64 - 1)
names = st.text("0123456789abcdef", min_size=1, max_size=8)
epochs = st.floats(0, 4e10)
deltas = st.builds(
    Delta,
    worker=names,
    epoch=epochs,
    base=st.none() | blocks,
    new=st.lists(blocks, max_size=130).map(tuple),
)
counts = st.integers(0, 1_000_000)
rows = st.builds(
    Row, worker=names, epoch=epochs, in_flight=counts, waiting=counts, queued_tokens=st.integers(0, 1_000_000_000_000)
)
news = st.builds(
    News,
    kind=st.sampled_from(["hello", "heartbeat", "news", "bye"]),
    deltas=st.lists(deltas, max_size=8),
    rows=st.lists(rows, max_size=8),
    blocks=st.integers(0, 200_000),
)
numbers = st.integers(0, 2**53)
wants = st.builds(Want, to=names, request=numbers, seconds=epochs, workers=st.lists(names, max_size=8))
chunks = st.builds(Chunk, to=names, request=numbers, number=numbers, last=st.booleans(), body=st.binary(max_size=100))
sums = st.builds(Sum, worker=names, epoch=epochs, blocks=st.integers(0, 200_000), sketch=st.binary(max_size=100))
messages = news | wants | chunks | st.builds(Digest, sums=st.lists(sums, max_size=8))


def wire(**changed: Any) -> bytes:
    """A valid heartbeat with some fields of its envelope replaced."""
    fields = {
        "version": VERSION,
        "fingerprint": PRINT,
        "sender": SENDER,
        "sequence": 1,
        "kind": "heartbeat",
        "payload": [[], [], 0],
    }
    return msgspec.msgpack.encode(list((fields | changed).values()))


def cause_of(data: bytes) -> str | None:
    try:
        read(open_envelope(data, PRINT))
    except Refused as refused:
        return refused.cause
    return None


# -- round trip ----------------------------------------------------------------------------------------------


@given(messages, st.integers(1, 2**53))
def test_a_message_arrives_as_it_was_sent(sent: Message, sequence: int) -> None:
    envelope = open_envelope(encode(PRINT, SENDER, sequence, sent), PRINT)
    assert (envelope.sender, envelope.sequence, envelope.kind) == (SENDER, sequence, sent.kind)
    assert envelope.kind in KINDS
    assert read(envelope) == sent


def test_blocks_take_eight_little_endian_bytes_each() -> None:
    data = encode(PRINT, SENDER, 1, News("news", [Delta("w", 1.0, None, (1, 2**64 - 1))]))
    assert bytes([1, 0, 0, 0, 0, 0, 0, 0]) + b"\xff" * 8 in data


def test_a_delta_costs_its_blocks_and_little_more() -> None:
    def size(*deltas: Delta) -> int:
        return len(encode(PRINT, SENDER, 1000, News("news", deltas)))

    one = Delta("905487f1", 1.7e9, 2**63, (2**63,))
    many = Delta("905487f1", 1.7e9, 2**63, tuple(range(2**63, 2**63 + 64)))
    assert size() <= 64
    assert size(one) - size() <= 40
    assert size(many) - size() <= 64 * 8 + 40


# -- refusal -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (wire(), None),
        (wire(version=VERSION + 1), "version"),
        (msgspec.msgpack.encode([VERSION + 1, {"a": "later layout"}]), "version"),
        (wire(fingerprint="0" * 16), "fingerprint"),
        (wire(kind="gossip"), "kind"),
        (wire(kind="gossip", payload={"of": "later"}), "kind"),
        (b"x" * (MAX_MESSAGE + 1), "oversized"),
        (b"", "malformed"),
        (b"garbage", "malformed"),
        (b"\xc1", "malformed"),
        (b"\xdd\xff\xff\xff\xff", "malformed"),
        (b"\x91" * 60_000, "malformed"),
        (wire()[:-1], "malformed"),
        (wire() + b"\x00", "malformed"),
        (wire(version="1"), "malformed"),
        (wire(version=True), "malformed"),
        (wire(sequence=0), "malformed"),
        (wire(sequence=-1), "malformed"),
        (wire(sequence=2**60), "malformed"),
        (wire(sequence=1.5), "malformed"),
        (wire(sender=b"\xff"), "malformed"),
        (wire(sender="x" * 65), "malformed"),
        (wire(sender=None), "malformed"),
        (wire(payload=None), "malformed"),
        (wire(payload=[]), "malformed"),
        (wire(payload=[[], None, 0]), "malformed"),
        (wire(payload=[[], []]), "malformed"),
        (wire(payload=[[], [], -1]), "malformed"),
        (wire(kind="want"), "malformed"),
        (wire(kind="want", payload=["r", 1, 60.0, []]), None),
        (wire(kind="want", payload=["r", 1, -1.0, []]), "malformed"),
        (wire(kind="want", payload=["r", 1, math.nan, []]), "malformed"),
        (wire(kind="want", payload=["r", 1, 60.0, ["w"] * 513]), "malformed"),
        (wire(kind="snapshot"), "malformed"),
        (wire(kind="snapshot", payload=["r", 1, 0, True, b""]), None),
        (wire(kind="snapshot", payload=["r", 1, -1, True, b""]), "malformed"),
        (wire(kind="digest", payload=[]), "malformed"),
        (wire(kind="digest", payload=[[["w", 1.0, 5, b"x"]]]), None),
        (wire(kind="digest", payload=[[["w", 1.0, -5, b"x"]]]), "malformed"),
    ],
)
def test_only_a_whole_message_of_this_version_and_fingerprint_is_taken(data: bytes, cause: str | None) -> None:
    assert cause_of(data) == cause


@pytest.mark.parametrize(
    "row",
    [
        ["w", math.nan, 1],
        ["w", math.inf, 1],
        ["w", -1.0, 1],
        ["w", 1e300, 1],
        ["w", True, 1],
        ["w", 1.0, -1],
        ["w", 1.0, 10**9],
        ["w", 1.0, 1.5],
        ["w", 1.0, "1"],
        ["w", 1.0, 1, -1],
        ["w", 1.0, 1, 1, -1],
        ["w", 1.0, 1, 1, 1.5],
        ["w", 1.0],
        ["w" * 65, 1.0, 1],
        [b"w", 1.0, 1],
        [None, 1.0, 1],
        {"worker": "w"},
        "w",
    ],
)
def test_a_row_out_of_range_is_refused(row: object) -> None:
    assert cause_of(wire(payload=[[], [["w", 1.0, 1, 1, 9]], 0])) is None
    assert cause_of(wire(payload=[[], [row], 0])) == "malformed"


@pytest.mark.parametrize(
    "delta",
    [
        ["w", math.nan, None, b""],
        ["w", 1.0, -1, b""],
        ["w", 1.0, 1.5, b""],
        ["w", 1.0, None, b"1234567"],
        ["w", 1.0, None, b"123456789"],
        ["w", 1.0, None, [1]],
        ["w", 1.0, None, None],
        ["w", 1.0],
        [1, 1.0, None, b""],
    ],
)
def test_a_delta_out_of_range_is_refused(delta: object) -> None:
    assert cause_of(wire(payload=[[["w", 1.0, None, b"12345678"]], [], 0])) is None
    assert cause_of(wire(payload=[[delta], [], 0])) == "malformed"


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a"])
def test_no_depth_of_nesting_is_too_deep_to_refuse(opening: bytes) -> None:
    deep = opening * (50_000 // len(opening)) + b"\xc0"
    assert cause_of(wire(payload=msgspec.Raw(deep))) == "malformed"
    assert cause_of(wire(kind=msgspec.Raw(deep))) == "malformed"


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    assert cause_of(data) is not None


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(st.sampled_from(["version", "fingerprint", "sender", "sequence", "kind", "payload"]), values)
def test_any_value_in_any_field_is_read_or_refused(field: str, value: object) -> None:
    cause_of(wire(**{field: value}))  # raises nothing but what it counts


@given(messages, st.data())
def test_a_damaged_message_is_read_or_refused(sent: Message, data: st.DataObject) -> None:
    message = bytearray(encode(PRINT, SENDER, 7, sent))
    message[data.draw(st.integers(0, len(message) - 1))] ^= data.draw(st.integers(1, 255))
    cause_of(bytes(message))


def test_what_no_receiver_would_take_is_not_sent() -> None:
    with pytest.raises(Refused, match="oversized"):
        encode(PRINT, SENDER, 1, News("news", [Delta("w", 1.0, None, tuple(range(9000)))]))


# -- batches -------------------------------------------------------------------------------------------------


@given(
    st.lists(st.builds(Delta, names, epochs, st.none() | blocks, st.sampled_from([(), (1,), tuple(range(1500))]))),
    st.lists(rows, max_size=20),
)
def test_batches_hold_everything_in_order_and_fit(many: list[Delta], row_list: list[Row]) -> None:
    delta_queue, row_queue = deque([encoded(one.worker, one.epoch, one.base, one.new) for one in many]), deque(row_list)
    got_deltas: list[Delta] = []
    got_rows: list[Row] = []
    while delta_queue or row_queue:
        batch = take(delta_queue, row_queue)
        assert batch.encoded or batch.rows
        data = encode("f" * 16, "s" * 16, 2**53, batch)
        assert len(data) <= MAX_MESSAGE
        arrived = read(open_envelope(data, "f" * 16))
        assert isinstance(arrived, News)
        got_deltas += arrived.deltas
        got_rows += batch.rows
    assert (got_deltas, got_rows) == (many, row_list)


def test_batches_are_bounded_in_work_too() -> None:
    small = deque(encoded("w", 1.0, None, (1,)) for _ in range(1000))
    many_rows = deque(Row(f"{n:08x}", 1.0, 1) for n in range(2000))
    batch = take(small, many_rows)
    assert (len(batch.encoded), len(batch.rows)) == (MAX_DELTAS, MAX_ROWS)


# -- trains --------------------------------------------------------------------------------------------------


@given(
    st.lists(st.binary(max_size=200).filter(lambda data: not data.startswith(TRAIN)), min_size=1, max_size=MAX_COUPLED)
)
def test_a_train_arrives_as_what_was_coupled(messages: list[bytes]) -> None:
    assert uncouple(couple(messages)) == messages


@given(st.lists(st.binary(max_size=50), min_size=2, max_size=5), st.data())
def test_a_train_that_was_cut_is_refused(messages: list[bytes], data: st.DataObject) -> None:
    train = couple(messages)
    ends = {len(TRAIN)}
    for message in messages:
        ends.add(max(ends) + 4 + len(message))
    cut = data.draw(st.sampled_from([at for at in range(2, len(train)) if at not in ends]))
    with pytest.raises(Refused):
        uncouple(train[:cut])


@given(st.binary(max_size=300))
def test_any_bytes_are_taken_for_messages_or_refused(data: bytes) -> None:
    try:
        found = uncouple(TRAIN + data)
    except Refused:
        return
    assert sum(len(message) + 4 for message in found) == len(data)


def test_a_train_is_bounded() -> None:
    with pytest.raises(Refused, match="malformed"):
        uncouple(couple([b""] * (MAX_COUPLED + 1)))
    with pytest.raises(Refused, match="oversized"):
        uncouple(couple([bytes(MAX_TRAIN), b""]))
