"""The cache of several forms: what a hit needs, what is kept and evicted, and how it is configured."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from loadtest.simworker.config import SimConfig
from loadtest.simworker.hybrid import HybridCache
from loadtest.simworker.shape import HybridShape, shape_of
from loadtest.simworker.stores import Form
from tests.core.sim_hybrid_rig import (
    BLOCK,
    DISK,
    FIVE,
    INDEX,
    KV,
    ROOMY,
    STATE,
    TAIL,
    UNIT,
    WINDOW,
    hybrid,
    prompt,
    serve,
)

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
