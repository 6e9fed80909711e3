"""The collector looks at everything only when nobody waits."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from router import collector


class Thing:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def grow_old(thing: Thing) -> weakref.ref[Thing]:
    """Until the collector takes it for one that stays."""
    gc.collect(1)
    gc.collect(1)
    return weakref.ref(thing)


def test_what_the_start_made_is_not_looked_at_again() -> None:
    collector.settle()
    assert gc.get_freeze_count() > 0
    assert gc.get_threshold()[2] == collector.AT_LATEST


def test_old_garbage_goes_in_a_calm_moment_once_enough_has_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    collector.settle()
    gone = grow_old(Thing())
    monkeypatch.setattr(collector, "CALM", 10_000)
    assert not collector.look_around(0)
    monkeypatch.setattr(collector, "CALM", gc.get_count()[2])
    assert not collector.look_around(3)
    assert gone() is not None
    assert collector.look_around(0)
    assert gone() is None
    assert gc.get_count()[2] == 0
