"""One map's memory taken over by another: of each block the latest use counts, and age decides what is evicted."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.affinity import AffinityMap, Delta, Use

EPOCH = 1.0
TTL = 100.0
WORKERS = ("a", "b", "c")
State = dict[tuple[str, int], float]


def empty(max_blocks: int = 1_000_000) -> AffinityMap:
    index = AffinityMap(max_blocks, TTL, 5.0)
    for worker in WORKERS:
        index.set_epoch(worker, EPOCH)
    return index


def told(index: AffinityMap, worker: str, now: float, since: float = -1e9, at_once: int = 3) -> list[Use]:
    """All that a map tells of a worker, in small slices."""
    export = index.export(worker, since)
    assert export is not None
    uses: list[Use] = []
    while taken := export.take(at_once, now):
        uses += taken
    return uses


def state(index: AffinityMap, now: float) -> State:
    """When each worker's blocks were used last."""
    known: State = {}
    for worker in WORKERS:
        for use in told(index, worker, now):
            for block in use.blocks:
                assert (worker, block) not in known
                known[worker, block] = round(now - use.age, 6)
    assert len(known) == len(index)
    return known


def take_over(source: AffinityMap, target: AffinityMap, now: float) -> None:
    for worker in WORKERS:
        target.restore(worker, EPOCH, told(source, worker, now), now)


def chain(root: int, depth: int) -> list[int]:
    """A prompt's blocks: prompts with the same root share their beginnings."""
    return [root * 100 + level for level in range(depth)]


served = st.lists(
    st.tuples(st.sampled_from(WORKERS), st.integers(0, 3), st.integers(1, 8), st.integers(0, 3)), max_size=25
)


def filled(events: Iterable[tuple[str, int, int, int]], index: AffinityMap | None = None) -> AffinityMap:
    """A map after these events: (worker, root, depth, seconds before it)."""
    index = index or empty()
    now = 0.0
    for worker, root, depth, pause in events:
        now += pause
        index.record(worker, EPOCH, chain(root, depth), now)
    return index


@given(served, st.integers(1, 9))
def test_an_empty_map_takes_over_everything_with_its_age(events: list[tuple[str, int, int, int]], at_once: int) -> None:
    one, two = filled(events), empty()
    for worker in WORKERS:
        uses = told(one, worker, 80.0, at_once=at_once)
        assert [use.age for use in uses] == sorted([use.age for use in uses], reverse=True)
        two.restore(worker, EPOCH, uses, 80.0)
    assert state(two, 80.0) == state(one, 80.0)
    assert two.statistics() == one.statistics()
    for worker, root, depth, _ in events:
        assert two.match(chain(root, depth), 80.0)[worker] == one.match(chain(root, depth), 80.0)[worker]


@given(served, served)
def test_of_each_block_the_latest_use_counts(
    here: list[tuple[str, int, int, int]], there: list[tuple[str, int, int, int]]
) -> None:
    one, two, other, both = filled(here), filled(there), filled(there), empty()
    before = [state(one, 80.0), state(two, 80.0)]
    latest = {key: max(known.get(key, -1.0) for known in before) for key in before[0] | before[1]}
    take_over(one, two, 80.0)
    assert state(two, 80.0) == latest
    take_over(one, two, 80.0)
    assert state(two, 80.0) == latest
    take_over(other, one, 80.0)
    assert state(one, 80.0) == latest
    take_over(other, both, 80.0)
    take_over(filled(here), both, 80.0)
    assert state(both, 80.0) == latest


@given(served, served, st.integers(0, 60))
def test_the_oldest_use_is_evicted_first_wherever_it_was(
    here: list[tuple[str, int, int, int]], there: list[tuple[str, int, int, int]], room: int
) -> None:
    small = empty(max_blocks=room)
    filled(here, small)
    take_over(filled(there), small, 80.0)
    everything = empty()
    filled(here, everything)
    take_over(filled(there), everything, 80.0)
    times = sorted(state(everything, 80.0).values())
    kept = state(small, 80.0)
    assert len(kept) == min(room, len(times))
    # Compared as times: which of two blocks used at the same time goes is not laid down.
    assert all(used >= times[-len(kept)] - 1e-6 for used in kept.values())


@given(served, served, st.integers(1, 60))
def test_what_is_taken_over_expires_and_leaves_nothing(
    here: list[tuple[str, int, int, int]], there: list[tuple[str, int, int, int]], rounds: int
) -> None:
    index = filled(here)
    for number in range(rounds % 3 + 1):
        take_over(filled(there), index, 80.0 + number)
    index.tick(81.0 + TTL + 75.0)
    assert (len(index), index.statistics()) == (0, dict.fromkeys(WORKERS, 0))
    assert index.export("a") is not None
    assert not told(index, "a", 400.0)


@given(served, st.data())
def test_a_map_in_use_tells_all_that_stays(events: list[tuple[str, int, int, int]], data: st.DataObject) -> None:
    index = filled(events)
    export = index.export("a")
    assert export is not None
    before = {block for worker, block in state(index, 80.0) if worker == "a"}
    heard: set[int] = set()
    now = 80.0
    while uses := export.take(2, now):
        heard |= {block for use in uses for block in use.blocks}
        now += 1e-3
        for _ in range(data.draw(st.integers(0, 2))):
            used = chain(data.draw(st.integers(0, 4)), data.draw(st.integers(1, 8)))
            index.record("a", EPOCH, used, now)
    assert before <= heard


def test_only_what_was_used_since_is_told() -> None:
    index = empty()
    for second in range(10):
        index.record("a", EPOCH, chain(second, 2), float(second))
    told_since = [use.age for use in told(index, "a", 10.0, since=7.0)]
    assert told_since == [3.0, 2.0, 1.0]
    assert not told(index, "a", 10.0, since=9.5)


def test_claims_expired_uses_and_unknown_workers_are_not_told() -> None:
    index = empty()
    index.record("a", EPOCH, chain(1, 2), 0.0)
    index.claim("a", chain(2, 2), 50.0)
    assert [list(use.blocks) for use in told(index, "a", 50.0)] == [[101, 100]]
    assert not told(index, "a", TTL + 1)
    assert index.export("z") is None


def test_a_restart_ends_what_is_told() -> None:
    index = empty()
    for root in range(5):
        index.record("a", EPOCH, chain(root, 2), 0.0)
    export = index.export("a")
    assert export is not None
    assert export.take(1, 0.0)
    index.set_epoch("a", EPOCH + 1)
    assert (export.epoch, export.take(1, 0.0)) == (EPOCH, [])


@pytest.mark.parametrize(("worker", "epoch"), [("a", EPOCH - 1), ("a", EPOCH + 1), ("z", EPOCH)])
def test_another_epoch_or_worker_restores_nothing(worker: str, epoch: float) -> None:
    index = empty()
    assert index.restore(worker, epoch, [Use(1.0, [1], None)], 10.0) is None
    assert len(index) == 0


def test_what_is_too_old_or_from_the_future_is_bounded() -> None:
    index = empty()
    assert index.restore("a", EPOCH, [Use(TTL, [1], None), Use(-50.0, [2], None)], 10.0) == 1
    assert state(index, 10.0) == {("a", 2): 10.0}


def test_a_restored_use_replaces_a_claim() -> None:
    index = empty()
    claim = index.claim("a", chain(1, 3), 10.0)
    assert claim is not None
    index.restore("a", EPOCH, [Use(5.0, [102, 101, 100], None)], 10.0)
    index.withdraw(claim)
    assert index.match(chain(1, 3), 10.0) == {"a": 3}


def test_a_chain_goes_on_above_what_was_restored() -> None:
    """A touch on a deep block reaches those above it, though another use of this map took them."""
    index = empty()
    index.record("a", EPOCH, chain(1, 2), 50.0)
    index.restore("a", EPOCH, [Use(20.0, [104, 103, 102, 101], 100)], 60.0)
    delta = empty()
    delta.record("a", EPOCH, chain(1, 5), 60.0)
    news = delta.record("a", EPOCH, chain(1, 6), 61.0)
    assert news is not None
    index.apply(news, 61.0)
    assert {round(61.0 - use.age, 6) for use in told(index, "a", 61.0)} == {61.0}


def test_taking_over_a_full_map_is_linear() -> None:
    """Slices of a thousand blocks into a map that serves meanwhile; quadratic work would take minutes."""
    one, two = empty(200_000), empty(200_000)
    rng = random.Random(1)
    now = 0.0
    for root in range(20_000):
        now += 1e-3
        one.record(WORKERS[root % 3], EPOCH, [rng.getrandbits(64) for _ in range(10)], now)
    assert len(one) == 200_000
    began = time.process_time()
    for worker in WORKERS:
        export = one.export(worker)
        assert export is not None
        while uses := export.take(1_000, now):
            two.restore(worker, EPOCH, uses, now)
            two.record(worker, EPOCH, [rng.getrandbits(64)], now)
    # Measured: 0.25 s; the bound leaves room for a busy machine, and none for quadratic work.
    assert time.process_time() - began < 10.0
    assert len(two) == 200_000


def test_senseless_news_above_a_prompt_does_not_harm_its_next_use() -> None:
    index = empty()
    index.record("a", EPOCH, [1, 2], 0.0)
    # A block that is the first one of its prompts cannot hang on another.
    assert index.apply(Delta("a", EPOCH, 1, (3,)), 1.0)
    later = 2.0 + TTL
    assert index.record("a", EPOCH, [3], later) == Delta("a", EPOCH, None, (3,))
    assert index.match([3], later) == {"a": 1}
