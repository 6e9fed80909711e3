"""What holds for caches of several forms whatever is asked of them, in any order and with faults."""

from __future__ import annotations

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from loadtest.simworker.engine import Engine, Rates, Sequence
from loadtest.simworker.hybrid import FAULTS, HybridCache, HybridHold
from loadtest.simworker.shape import HybridShape
from loadtest.simworker.stores import Form
from loadtest.simworker.tokens import Prompt
from tests.core.sim_hybrid_rig import (
    BLOCK,
    DISK,
    FIVE,
    INDEX,
    KV,
    STATE,
    TAIL,
    UNIT,
    WINDOW,
    prompt,
    serve,
)

IDS = st.lists(st.integers(0, 1), min_size=1, max_size=40)


def shape_with(
    unit: int, forms: set[Form], room: int, window: int, held_back: int, retention: int, step: int
) -> HybridShape:
    capacity = {KV: 12} | dict.fromkeys(forms, room)
    if unit < BLOCK:
        capacity[TAIL] = room
    return HybridShape(
        BLOCK,
        unit,
        capacity,
        window=window if WINDOW in forms else 0,
        held_back=held_back,
        retention=retention * BLOCK,
        step=step,
    )


SHAPES = st.builds(
    shape_with,
    st.sampled_from([1, 2, 4, 8]),
    st.sets(st.sampled_from([WINDOW, INDEX, DISK, STATE])),
    st.integers(1, 12),
    st.integers(2, 20),
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from([0, 5, 8]),
)


@given(SHAPES, st.lists(IDS, min_size=1, max_size=12), IDS)
@settings(max_examples=60)
def test_a_hit_is_within_what_is_shared_and_never_the_whole_prompt(
    shape: HybridShape, earlier: list[list[int]], asked: list[int]
) -> None:
    cache = HybridCache(shape)
    for ids in earlier:
        serve(cache, prompt(ids, shape.unit))
    shared = max(common(ids, asked) for ids in earlier)
    promised = cache.match(prompt(asked, shape.unit))
    cached = serve(cache, prompt(asked, shape.unit))
    assert cached == promised  # nothing here breaks a promise
    assert cached % shape.unit == 0
    assert cached <= min(shared, len(asked) - 1)


@given(SHAPES, st.lists(IDS, min_size=1, max_size=12), IDS, st.sampled_from(sorted(FIVE)))
@settings(max_examples=60)
def test_a_hit_is_the_intersection_never_more_than_without_one_form(
    shape: HybridShape, earlier: list[list[int]], asked: list[int], form: Form
) -> None:
    """The same history with one form fewer to satisfy hits at least as deep, if nothing is evicted."""
    roomy = dataclasses.replace(shape, capacity=dict.fromkeys(shape.capacity, 10000))
    fewer = dataclasses.replace(
        roomy, capacity={one: size for one, size in roomy.capacity.items() if one is not form or form in (KV, TAIL)}
    )
    whole, part = HybridCache(roomy), HybridCache(fewer)
    for ids in earlier:
        serve(whole, prompt(ids, shape.unit))
        serve(part, prompt(ids, shape.unit))
    assert whole.match(prompt(asked, shape.unit)) <= part.match(prompt(asked, shape.unit))


def common(one: list[int], other: list[int]) -> int:
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))


class Requests(RuleBasedStateMachine):
    """Requests that overlap in any order, with faults between them, on small stores."""

    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        room = {KV: 14, TAIL: 3, WINDOW: 12, INDEX: 10, DISK: 6, STATE: 4}
        self.cache = HybridCache(HybridShape(BLOCK, UNIT, room, window=5, step=6))

    @rule(target=running, ids=IDS)
    def start(self, ids: list[int]) -> object:
        asked = prompt(ids)
        promised = self.cache.match(asked)
        hold = self.cache.reserve(asked, asked.tokens + 4)
        if hold is None:
            return multiple()
        assert hold.cached_tokens <= min(promised, asked.tokens - 1)
        # Whatever happened meanwhile: what was read is the prompt's own.
        assert set(hold.read) <= set(asked.hashes)
        return (asked, hold)

    @rule(one=running, share=st.floats(0, 1))
    def compute(self, one: tuple[Prompt, HybridHold], share: float) -> None:
        asked, hold = one
        self.cache.commit(hold, asked.hashes[: int(len(asked.hashes) * share)])

    @rule(one=consumes(running))
    def finish(self, one: tuple[Prompt, HybridHold]) -> None:
        asked, hold = one
        self.cache.commit(hold, asked.hashes)
        self.cache.release(hold)

    @rule(kind=st.sampled_from(sorted(FAULTS)))
    def break_something(self, kind: str) -> None:
        self.cache.inject(kind)

    @invariant()
    def no_store_is_over_its_capacity(self) -> None:
        for store in self.cache.stores.values():
            assert len(store) + store.reserved <= store.capacity
            assert store.pinned + store.reserved <= store.capacity
            # Only blocks stay pinned while a request runs: everything else was copied.
            assert store.form is KV or not store.pinned
            assert store.form in (KV, STATE) or not store.reserved
        assert 0 <= self.cache.usage <= 1


Requests.TestCase.settings = settings(max_examples=40, stateful_step_count=40)
TestRequests = Requests.TestCase


@given(SHAPES, st.integers(1, 4), st.lists(st.tuples(IDS, st.integers(0, 6), st.integers(0, 9)), max_size=25))
@settings(max_examples=60)
def test_every_request_ends_and_nothing_stays_pinned(
    shape: HybridShape, seqs: int, requests: list[tuple[list[int], int, int]]
) -> None:
    """Any shape, however little room it has for a form; some requests are aborted, some hits are broken."""
    cache = HybridCache(shape)
    engine = Engine(cache, Rates(100.0, 0.05, 1.0, seqs))
    begun: list[Sequence] = []
    for at, (ids, output, chance) in enumerate(requests):
        asked = prompt(ids, shape.unit)
        after = prompt([*ids, *[1] * output], shape.unit).hashes
        begun.append(Sequence(asked, output, lambda after=after: after))  # type: ignore[misc]
        engine.submit(begun[-1], at * 0.1)
        if chance == 0:
            engine.abort(begun[at // 2], at * 0.1)
        if chance == 1:
            cache.inject("eviction_interrupted")
    while (due := engine.next_time()) is not None:
        engine.advance(due)
    assert all(sequence.over for sequence in begun)
    assert all(sequence.cached_tokens < sequence.prompt.tokens for sequence in begun)
    assert not any(store.pinned or store.reserved for store in cache.stores.values())
    assert cache.clear()
