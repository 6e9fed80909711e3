"""What faults do to a cache of several forms, and the store of one form."""

from __future__ import annotations

import pytest

from loadtest.simworker.hybrid import HybridCache
from loadtest.simworker.shape import HybridShape
from loadtest.simworker.stores import Store
from tests.core.sim_hybrid_rig import (
    BLOCK,
    DISK,
    FIVE,
    INDEX,
    KV,
    STATE,
    hybrid,
    prompt,
    serve,
)

# -- faults ----------------------------------------------------------------------------------------------------


def test_an_eviction_interrupted_midway_is_noticed_before_the_read() -> None:
    cache = hybrid()
    asked = prompt(range(21))
    serve(cache, asked)
    cache.inject("eviction_interrupted")
    assert cache.match(asked) == 20  # the table still promises it
    assert serve(cache, asked) == 0
    assert cache.fallbacks == {STATE: 1}
    assert serve(cache, asked) == 20


def test_a_load_that_fails_is_a_shorter_hit() -> None:
    cache = HybridCache(HybridShape(BLOCK, BLOCK, {KV: 4, DISK: 50}))
    asked = prompt(range(25), BLOCK)
    serve(cache, asked)
    serve(cache, prompt(range(500, 530), BLOCK))
    cache.inject("load_failure")
    assert serve(cache, asked) == 16
    assert cache.fallbacks == {DISK: 1}
    assert serve(cache, asked) == 24


def test_an_index_of_another_version_is_not_trusted() -> None:
    cache = hybrid(unit=8, capacity=FIVE, window=2)
    asked = prompt(range(25), 8)
    serve(cache, asked)
    cache.inject("version_mismatch")
    assert serve(cache, asked) < 24
    assert cache.fallbacks == {INDEX: 1}
    assert serve(cache, asked) == 24


@pytest.mark.parametrize(("kind", "times"), [("flood", 1), ("load_failure", 1), ("version_mismatch", 1), ("x", 0)])
def test_a_fault_that_cannot_come_is_refused(kind: str, times: int) -> None:
    with pytest.raises(ValueError, match=r"fault|needs"):
        hybrid().inject(kind, times)


# -- one store -------------------------------------------------------------------------------------------------


def test_the_object_used_least_recently_goes_first_and_shared_ones_last() -> None:
    gone: list[int] = []
    store = Store(KV, 3, lambda entry: gone.append(entry.key))
    for key in (1, 2, 3):
        store.put(key, shared=key == 1)
    first = store.get(2)
    assert first is not None
    store.touch(first)
    store.put(4)
    store.put(5)
    assert gone == [3, 2]
    assert 1 in store


def test_pinned_objects_stay_and_what_has_no_room_is_refused() -> None:
    store = Store(KV, 2)
    for key in (1, 2):
        entry = store.put(key)
        assert entry is not None
        store.pin(entry)
    assert store.put(3) is None
    assert store.refused == 1
    assert not store.take(1)


def test_after_an_interrupted_eviction_the_slot_is_somebody_elses() -> None:
    store = Store(KV, 1)
    entry = store.put(1)
    assert entry is not None
    store.interrupt(entry)
    store.put(2)
    assert 1 in store
    assert not store.sound(entry)
    assert store.owner(entry) == 2  # what a read that trusts the table would return
    store.drop(entry)
    assert 1 not in store
    assert len(store) == 1
