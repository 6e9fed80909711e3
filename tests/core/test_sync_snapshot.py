"""A memory survives its way in chunks, nothing else gets in, and sketches tell how much two maps differ."""

from __future__ import annotations

import random
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.affinity import AffinityMap, Use
from router.sync_codec import MAX_MESSAGE, Chunk, Refused, encode
from router.sync_snapshot import MAX_RAW, Memory, Sketch, Snapshot, difference, open_chunk, slices, tolerance

blocks = st.integers(0, 2**64 - 1)


def filled(prompts: list[list[int]], workers: int = 2) -> AffinityMap:
    """A map in which the workers served these prompts in turn, one a second."""
    index = AffinityMap(1_000_000, 1e6, 5.0)
    for number in range(workers):
        index.set_epoch(f"w{number}", 1.0 + number)
    for second, prompt in enumerate(prompts):
        number = second % workers
        index.record(f"w{number}", 1.0 + number, prompt, float(second))
    return index


def chunks_of(index: AffinityMap, now: float, workers: int = 2) -> list[bytes]:
    exports = [index.export(f"w{number}") for number in range(workers)]
    snapshot = Snapshot([export for export in exports if export is not None])
    bodies = []
    while not snapshot.done:
        bodies.append(snapshot.chunk(now))
    return bodies


def known(index: AffinityMap, now: float) -> dict[tuple[str, int], float]:
    found: dict[tuple[str, int], float] = {}
    for worker in index.statistics():
        export = index.export(worker)
        assert export is not None
        while uses := export.take(100, now):
            found |= {(worker, block): round(now - use.age, 2) for use in uses for block in use.blocks}
    return found


def restored(bodies: list[bytes], now: float, workers: int = 2) -> AffinityMap:
    index = filled([], workers)
    for body in bodies:
        for memory in open_chunk(body):
            index.restore(memory.worker, memory.epoch, memory.uses, now)
    return index


@given(st.lists(st.lists(blocks, min_size=1, max_size=20, unique=True), max_size=12))
def test_a_map_arrives_as_it_was(prompts: list[list[int]]) -> None:
    index = filled(prompts)
    assert known(restored(chunks_of(index, 100.0), 100.0), 100.0) == known(index, 100.0)


def test_chunks_fit_whatever_the_prompts_are_like() -> None:
    rng = random.Random(1)
    lengths = [1] * 9_000 + [64] * 200 + [9_000, 20_000]
    rng.shuffle(lengths)
    index = filled([[rng.getrandbits(64) for _ in range(length)] for length in lengths])
    bodies = chunks_of(index, 1e5)
    sizes = [len(encode("f" * 16, "s" * 16, 2**53, Chunk("s" * 16, 2**53, 2**53, True, body))) for body in bodies]
    assert max(sizes) <= MAX_MESSAGE
    assert sum(sizes) / len(sizes) > MAX_MESSAGE / 2
    assert known(restored(bodies, 1e5), 1e5) == known(index, 1e5)


def test_an_empty_map_is_one_empty_chunk() -> None:
    assert [open_chunk(body) for body in chunks_of(filled([]), 1.0)] == [[]]


def test_hashes_do_not_compress_and_ages_do() -> None:
    rng = random.Random(1)
    (body,) = chunks_of(filled([[rng.getrandbits(64) for _ in range(64)] for _ in range(100)]), 1e5)
    assert 64 * 100 * 8 < len(body) < 64 * 100 * 8 * 1.03


raw = msgspec.msgpack.encode([["w", 1.0, [[5, None, b"12345678"]]]])


def test_a_memory_is_read_in_seconds() -> None:
    (expected,) = [Memory("w", 1.0, [Use(0.005, (0x3837363534333231,), None)])]
    assert open_chunk(zlib.compress(raw)) == [expected]


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (b"", "malformed"),
        (b"garbage", "malformed"),
        (zlib.compress(raw)[:-1], "malformed"),
        (zlib.compress(b"garbage"), "malformed"),
        (zlib.compress(b"\x91" * 60_000), "malformed"),
        (zlib.compress(bytes(MAX_RAW + 1)), "oversized"),
        (zlib.compress(bytes(200_000_000), 9), "oversized"),
        (zlib.compress(msgspec.msgpack.encode([["w", 1.0, [[-5, None, b"12345678"]]]])), "malformed"),
        (zlib.compress(msgspec.msgpack.encode([["w", 1.0, [[5, None, b"1234567"]]]])), "malformed"),
        (zlib.compress(msgspec.msgpack.encode([["w", 1.0, [[5, -1, b"12345678"]]]])), "malformed"),
        (zlib.compress(msgspec.msgpack.encode([["w", float("nan"), []]])), "malformed"),
    ],
)
def test_anything_else_is_refused(body: bytes, cause: str) -> None:
    with pytest.raises(Refused) as caught:
        open_chunk(body)
    assert caught.value.cause == cause


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(Refused):
        open_chunk(body)


@given(st.lists(st.integers(1, 30)), st.integers(1, 50))
def test_slices_hold_everything_in_order(lengths: list[int], size: int) -> None:
    uses = [Use(float(number), range(length), None) for number, length in enumerate(lengths)]
    groups = list(slices(Memory("w", 1.0, uses), size))
    assert [use for group in groups for use in group] == uses
    assert all(sum(len(use.blocks) for use in group) >= size for group in groups[:-1])
    assert all(sum(len(use.blocks) for use in group[:-1]) < size for group in groups)


def sketch_of(held: set[int], rng: random.Random) -> Sketch:
    order = sorted(held)
    rng.shuffle(order)
    sketch = Sketch()
    sketch.add([Use(1.0, order[:10], None)])
    sketch.add([Use(1.0, order[10:], None)])
    return sketch


@pytest.mark.parametrize("missing", [0, 1, 20, 100, 300, 600, 5_000])
def test_the_size_of_a_difference_is_estimated(missing: int) -> None:
    rng = random.Random(missing)
    here = {rng.getrandbits(64) & ~15 for _ in range(20_000)}
    there = set(sorted(here)[missing // 2 :]) | {rng.getrandbits(64) & ~15 for _ in range(missing - missing // 2)}
    one, two = sketch_of(here, rng), sketch_of(there, rng)
    assert (one.blocks, two.blocks) == (len(here), len(there))
    found = difference(one.packed(), two.packed())
    if missing <= 600:
        assert missing / 1.5 <= found <= missing * 1.5
    else:
        assert found > 1_000
    assert (found > tolerance(20_000)) == (missing > 264)


def test_sketches_of_another_length_differ_altogether() -> None:
    assert difference(Sketch().packed(), b"") > 1_000


def test_some_difference_is_normal_and_a_large_one_never() -> None:
    assert [tolerance(blocks) for blocks in (0, 10_000, 1_000_000)] == [64.0, 164.0, 700.0]
    assert difference(Sketch().packed(), b"x") > 2 * tolerance(1_000_000)


def test_what_changes_meanwhile_is_allowed_for_until_nothing_can_be_told() -> None:
    assert tolerance(10_000, 100.0) == 264.0
    assert tolerance(60_000, 300.0) == 700.0
    assert difference(Sketch().packed(), b"x") < tolerance(10_000, 400.0)
