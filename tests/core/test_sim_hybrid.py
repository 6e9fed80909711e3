"""The cache of several forms: what a hit needs, what is kept, what is evicted, and what faults do to it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from loadtest.simworker.config import SimConfig
from loadtest.simworker.engine import Engine, Rates, Sequence
from loadtest.simworker.hybrid import FAULTS, HybridCache, HybridHold
from loadtest.simworker.shape import HybridShape, shape_of
from loadtest.simworker.stores import Form, Store
from loadtest.simworker.tokens import Prompt, Tokenizer

BLOCK, UNIT = 8, 2
KV, TAIL, STATE = Form.COMPRESSED_KV, Form.UNCOMPRESSED_TAIL, Form.RECURRENT_STATE
WINDOW, INDEX, DISK = Form.SWA_WINDOW, Form.INDEXER_STATE, Form.ON_DISK_PREFIX
ROOMY = {KV: 100, TAIL: 100, STATE: 100}
FIVE = {KV: 100, TAIL: 100, WINDOW: 400, INDEX: 100, DISK: 100}


def hybrid(unit: int = UNIT, capacity: dict[Form, int] | None = None, **more: int) -> HybridCache:
    return HybridCache(HybridShape(BLOCK, unit, capacity or ROOMY, **more))


def prompt(ids: range | list[int], unit: int = UNIT) -> Prompt:
    return Tokenizer(unit).ids(ids, 0)


def serve(cache: HybridCache, asked: Prompt) -> int:
    """A whole request; returns the cached tokens."""
    hold = cache.reserve(asked, asked.tokens)
    assert hold is not None
    cache.commit(hold, asked.hashes)
    cache.release(hold)
    return hold.cached_tokens


# -- where hits land -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "held_back", "tokens", "cached"),
    [
        (8, 0, 7, 0),
        (8, 0, 8, 0),  # one token is left to compute
        (8, 0, 9, 8),
        (8, 0, 21, 16),
        (2, 0, 7, 6),
        (2, 0, 21, 20),
        (8, 1, 15, 0),
        (8, 1, 17, 8),
        (2, 1, 21, 18),
    ],
)
def test_a_repeated_prompt_lands_on_its_last_boundary(unit: int, held_back: int, tokens: int, cached: int) -> None:
    cache = hybrid(unit, held_back=held_back)
    asked = prompt(range(tokens), unit)
    assert serve(cache, asked) == 0
    assert serve(cache, asked) == cached


def test_a_grown_prompt_resumes_where_the_state_of_the_last_one_was_kept() -> None:
    cache = hybrid()
    serve(cache, prompt(range(21)))
    assert serve(cache, prompt(range(40))) == 20


def test_a_branch_finds_nothing_at_first_and_the_state_there_from_then_on() -> None:
    cache = hybrid()
    serve(cache, prompt(range(40)))
    branched = [*range(30), *range(500, 520)]
    assert serve(cache, prompt(branched)) == 0
    assert cache.limited[STATE] == 1
    assert serve(cache, prompt([*range(30), *range(700, 720)])) == 30


def test_periodic_states_serve_branches_at_once() -> None:
    cache = hybrid(retention=2 * BLOCK)
    serve(cache, prompt(range(40)))
    assert serve(cache, prompt([*range(30), *range(500, 520)])) == 16


def test_the_end_of_every_scheduler_step_is_kept() -> None:
    cache = hybrid(step=10)
    serve(cache, prompt(range(40)))
    assert serve(cache, prompt([*range(25), *range(500, 520)])) == 20


def test_few_states_evict_each_other_and_those_met_again_stay() -> None:
    cache = hybrid(capacity=ROOMY | {STATE: 8}, step=8)
    talks = [list(range(start, start + 41)) for start in (0, 1000, 2000)]
    rounds = []
    for _ in range(4):
        rounds.append([serve(cache, prompt(talk)) for talk in talks])
        for talk in talks:
            talk.extend(range(talk[-1] + 1, talk[-1] + 5))
    assert rounds[:2] == [[0, 0, 0], [0, 0, 0]]
    assert rounds[2] == [40, 40, 40]  # what turn 2 saw of turn 1
    assert min(rounds[3]) > 40


def test_every_running_request_takes_a_state_block_from_the_cache() -> None:
    cache = hybrid(capacity=ROOMY | {STATE: 2})
    asked = prompt(range(21))
    serve(cache, asked)
    holds = [cache.reserve(asked, asked.tokens) for _ in range(3)]
    # The second one copied the state before it took its block.
    assert [None if hold is None else hold.cached_tokens for hold in holds] == [20, 20, None]
    assert cache.match(asked) == 0
    assert holds[0] is not None
    cache.release(holds[0])
    assert cache.reserve(asked, asked.tokens) is not None


@pytest.mark.parametrize("form", [KV, TAIL, STATE])
def test_a_hit_needs_every_form(form: Form) -> None:
    cache = hybrid()
    asked = prompt(range(21))
    serve(cache, asked)
    assert cache.match(asked) == 20
    cache.stores[form].clear()
    assert cache.match(asked) == 0


@pytest.mark.parametrize("form", [KV, TAIL, WINDOW, INDEX])
def test_of_five_forms_as_well(form: Form) -> None:
    cache = hybrid(capacity=FIVE, window=6)
    asked = prompt(range(21))
    serve(cache, asked)
    assert cache.match(asked) == 20
    cache.stores[form].clear()
    assert cache.match(asked) < 20


def test_a_window_that_has_moved_on_ends_the_hit() -> None:
    cache = hybrid(unit=8, capacity=FIVE, window=16)
    serve(cache, prompt(range(65), 8))
    assert serve(cache, prompt([*range(40), *range(500, 520)], 8)) == 0
    assert cache.limited[WINDOW] == 1


def test_blocks_the_gpu_has_no_room_for_come_back_from_disk_and_cost_a_wait() -> None:
    cache = HybridCache(
        HybridShape(BLOCK, BLOCK, {KV: 4, STATE: 50, DISK: 50}, load_tokens_per_second=100.0),
    )
    asked = prompt(range(25), BLOCK)
    serve(cache, asked)
    serve(cache, prompt(range(500, 530), BLOCK))
    hold = cache.reserve(asked, asked.tokens)
    assert hold is not None
    assert hold.cached_tokens == 24
    assert hold.load_seconds == pytest.approx(0.24)
    assert cache.loaded_blocks == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"unit": 3},
        {"retention": 12},
        {"capacity": {TAIL: 1}},
        {"capacity": {KV: 1, WINDOW: 1}, "window": 1},
        {"capacity": {KV: 0}},
    ],
)
def test_a_shape_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must|has blocks|needs room"):
        HybridCache(HybridShape(**{"block": BLOCK, "unit": UNIT, "capacity": ROOMY, **wrong}))


def test_switched_off_it_keeps_nothing() -> None:
    cache = HybridCache(HybridShape(BLOCK, UNIT, ROOMY), enabled=False)
    asked = prompt(range(21))
    assert [serve(cache, asked), serve(cache, asked)] == [0, 0]
    assert not any(len(store) for store in cache.stores.values())


def test_clear_is_refused_while_a_request_runs() -> None:
    cache = hybrid()
    asked = prompt(range(21))
    hold = cache.reserve(asked, asked.tokens)
    assert hold is not None
    assert not cache.clear()
    cache.commit(hold, asked.hashes)
    cache.release(hold)
    assert cache.clear()
    assert serve(cache, asked) == 0


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


# -- what always holds -----------------------------------------------------------------------------------------

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


def test_a_configuration_names_the_forms() -> None:
    base = SimConfig(block_size=16, num_gpu_blocks=10, prefix_match_unit=4)
    assert set(shape_of(dataclasses.replace(base, cache="hybrid")).capacity) == {KV, TAIL, STATE}
    five = shape_of(dataclasses.replace(base, cache="forms", disk_blocks=7))
    assert set(five.capacity) == {KV, TAIL, WINDOW, INDEX, DISK}
    assert five.capacity[DISK] == 7
    assert five.window == 16


@pytest.mark.parametrize(
    "wrong",
    [{"cache": "magic"}, {"cache": "hybrid", "prefix_match_unit": 5}, {"state_blocks": 0}, {"step_tokens": -1}],
)
def test_a_configuration_that_cannot_work_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must"):
        SimConfig(block_size=16, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "mode", "caching"),
    [
        ({"cache": "hybrid"}, "align", True),
        ({"cache": "hybrid", "enable_prefix_caching": False}, "none", False),
        ({"cache": "hybrid", "version": "0.20.0"}, "none", False),
        ({"cache": "hybrid", "version": "0.20.0", "mamba_cache_mode": "align"}, "align", True),
        ({"cache": "forms"}, "none", True),
        ({"cache": "attention", "mamba_cache_mode": "align"}, "align", True),
    ],
)
def test_releases_before_033_keep_state_only_if_told_to(more: dict[str, object], mode: str, caching: bool) -> None:
    config = SimConfig(**more)  # type: ignore[arg-type]
    assert (config.cache_mode, config.caching) == (mode, caching)
