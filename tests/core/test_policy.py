"""The choice of a worker: tables of cases, and what holds for every case."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.policy import (
    POLICIES,
    Ask,
    Decision,
    Match,
    Reason,
    SlackTable,
    choose_least_loaded,
    choose_power_of_two,
    choose_round_robin,
    choose_slack,
    rendezvous,
)

TABLE = SlackTable()
ASK = Ask(blocks=64, prompt_tokens=12_800, key=1)
NEARLY_ONE = 1.0 - 2.0**-53


@dataclass(frozen=True, slots=True)
class Worker:
    id: str
    load: int = 0


def fleet(*loads: int) -> list[Worker]:
    """Workers a, b, c ... with these loads."""
    return [Worker(chr(ord("a") + number), load) for number, load in enumerate(loads)]


def held(**blocks: int) -> dict[str, Match]:
    """Matches by worker, 200 tokens to a block."""
    return {worker: Match(depth, depth * 200) for worker, depth in blocks.items()}


def useless(blocks: int, reason: Reason) -> Match:
    return Match(blocks, 0, reason)


# -- slack -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "slack"),
    [
        (0, 0),
        (999, 0),
        (1_000, 1),
        (3_999, 1),
        (4_000, 2),
        (7_999, 2),
        (8_000, 3),
        (31_999, 3),
        (32_000, 4),
        (10**9, 4),
    ],
)
def test_the_slack_grows_with_the_prompt(tokens: int, slack: int) -> None:
    assert TABLE.slack(tokens) == slack


def test_the_slack_table_is_a_setting() -> None:
    assert [SlackTable(((10, 5),), 7).slack(tokens) for tokens in (9, 10)] == [5, 7]
    assert SlackTable((), 2).slack(0) == 2


@pytest.mark.parametrize(
    ("loads", "matches", "tokens", "worker", "reason", "runner_up"),
    [
        # the deepest match wins, whoever it is and wherever it stands
        ((0, 0, 0), held(b=64), 12_800, "b", "hit", None),
        ((0, 0, 0), held(a=10, b=64, c=63), 12_800, "b", "hit", None),
        ((0, 0, 0), held(c=1), 12_800, "c", "hit", None),
        # up to the slack of its prompt, counted from the freest
        ((0, 3, 5), held(b=64), 12_800, "b", "hit", None),
        ((0, 4, 5), held(b=64), 12_800, "a", "spill", "b"),
        ((7, 10, 9), held(b=64), 12_800, "b", "hit", None),
        ((7, 11, 9), held(b=64), 12_800, "a", "spill", "b"),
        # which depends on the prompt
        ((0, 0, 9), held(a=1), 500, "a", "hit", None),
        ((1, 0, 9), held(a=1), 500, "b", "spill", "a"),
        ((1, 0, 9), held(a=5), 1_000, "a", "hit", None),
        ((2, 0, 9), held(a=5), 3_999, "b", "spill", "a"),
        ((2, 0, 9), held(a=20), 4_000, "a", "hit", None),
        ((3, 0, 9), held(a=64), 8_000, "a", "hit", None),
        ((4, 0, 9), held(a=64), 31_999, "b", "spill", "a"),
        ((4, 0, 9), held(a=64), 32_000, "a", "hit", None),
        ((5, 0, 9), held(a=64), 1_000_000, "b", "spill", "a"),
        # the next best that fits takes over, and that is still a spill
        ((0, 9, 2), held(b=64, c=40), 12_800, "c", "spill", "b"),
        ((0, 9, 9), held(b=64, c=40), 12_800, "a", "spill", "b"),
        ((0, 9, 8), held(b=40, c=64), 12_800, "a", "spill", "c"),
        # an equal match on a worker that fits is no loss
        ((0, 9, 2), held(b=64, c=64), 12_800, "c", "hit", None),
        # equal matches: the freer
        ((2, 1, 3), held(a=64, b=64, c=64), 12_800, "b", "hit", None),
        # a match that is worth nothing does not draw
        ((1, 0, 1), held(a=0), 12_800, "b", "miss", None),
        # no match: the freest
        ((2, 0, 1), {}, 12_800, "b", "miss", None),
        # nor does one of a worker that is no candidate
        ((2, 0, 1), held(z=64), 12_800, "b", "miss", None),
        ((2, 0, 1), held(z=64, a=5), 12_800, "a", "hit", None),
        # one candidate
        ((5,), {}, 12_800, "a", "only", None),
        ((5,), held(a=3), 12_800, "a", "hit", None),
        ((5,), held(z=3), 12_800, "a", "only", None),
    ],
)
def test_slack(
    loads: tuple[int, ...],
    matches: dict[str, Match],
    tokens: int,
    worker: str,
    reason: str,
    runner_up: str | None,
) -> None:
    candidates = fleet(*loads)
    for order in itertools.permutations(candidates):
        decision = choose_slack(order, matches, replace(ASK, prompt_tokens=tokens), TABLE)
        assert decision.worker.id == worker
        assert decision.reason == reason
        assert (decision.runner_up.id if decision.runner_up else None) == runner_up
        assert decision.match == matches.get(worker, Match())
        assert (decision.load, decision.min_load) == (decision.worker.load, min(loads))
        assert (decision.slack, decision.blocks) == (TABLE.slack(tokens), 64)


def test_tokens_that_can_be_resumed_count_before_blocks_that_are_shared() -> None:
    """An engine with coarse blocks may make less of a deeper match."""
    matches = {"a": Match(64, 1_600), "b": Match(40, 8_000)}
    assert choose_slack(fleet(0, 0), matches, ASK, TABLE).worker.id == "b"
    matches = {"a": Match(41, 8_000), "b": Match(40, 8_000)}
    assert choose_slack(fleet(1, 0), matches, ASK, TABLE).worker.id == "a"


def test_an_equal_gain_of_a_busy_worker_with_a_deeper_match_is_a_hit_and_says_who_it_was() -> None:
    matches = {"a": Match(60, 8_000), "b": Match(64, 8_000)}
    decision = choose_slack(fleet(0, 9), matches, ASK, TABLE)
    assert (decision.worker.id, decision.reason) == ("a", "hit")
    assert decision.runner_up is not None
    assert decision.runner_up.id == "b"


@pytest.mark.parametrize(
    ("candidates", "matches", "ask", "reason"),
    [
        (2, {}, ASK, Reason.MISS),
        (1, {}, ASK, Reason.ONLY),
        (2, {}, replace(ASK, blocks=0), Reason.SHORT),
        (1, {}, replace(ASK, blocks=0), Reason.SHORT),
        (2, {}, replace(ASK, blocks=0, bypass=True), Reason.BYPASS),
        (1, {}, replace(ASK, bypass=True), Reason.BYPASS),
        (2, {"a": useless(64, Reason.CACHE_DISABLED)}, ASK, Reason.CACHE_DISABLED),
        (2, {"b": useless(3, Reason.BELOW_BLOCK_FLOOR)}, ASK, Reason.BELOW_BLOCK_FLOOR),
        (1, {"a": useless(3, Reason.BELOW_BLOCK_FLOOR)}, ASK, Reason.BELOW_BLOCK_FLOOR),
        (2, {"z": useless(3, Reason.CACHE_DISABLED)}, ASK, Reason.MISS),
        (2, {"a": useless(3, Reason.CACHE_DISABLED)}, replace(ASK, blocks=0), Reason.SHORT),
        (2, {"a": Match(5, 0)}, ASK, Reason.MISS),
    ],
)
@pytest.mark.parametrize("policy", POLICIES)
def test_why_nothing_was_kept(
    policy: str, candidates: int, matches: dict[str, Match], ask: Ask, reason: Reason
) -> None:
    """The same words under every policy."""
    workers = fleet(*range(candidates))
    decisions = [POLICIES[policy](workers, matches, replace(ask, turn=turn), TABLE) for turn in range(2)]
    assert {decision.reason for decision in decisions} == {reason}


def test_a_match_that_is_worth_something_counts_beside_a_deeper_one_that_is_not() -> None:
    matches = {"a": useless(64, Reason.CACHE_DISABLED), "b": Match(1, 200)}
    decision = choose_slack(fleet(0, 1), matches, ASK, TABLE)
    assert (decision.worker.id, decision.reason) == ("b", "hit")


def test_the_deepest_of_several_worthless_matches_explains() -> None:
    matches = {"a": useless(3, Reason.BELOW_BLOCK_FLOOR), "b": useless(9, Reason.CACHE_DISABLED)}
    for order in itertools.permutations(matches):
        shuffled = {worker: matches[worker] for worker in order}
        for candidates in itertools.permutations(fleet(0, 0)):
            assert choose_slack(candidates, shuffled, ASK, TABLE).reason is Reason.CACHE_DISABLED


# -- shapes of load --------------------------------------------------------------------------------------------------


def serve(workers: dict[str, int], matches: dict[str, Match], ask: Ask) -> Decision[Worker]:
    """Choose, and take the lease."""
    decision = choose_slack([Worker(name, load) for name, load in workers.items()], matches, ask, TABLE)
    workers[decision.worker.id] += 1
    return decision


def test_one_hot_worker_does_not_switch_affinity_off_for_the_others() -> None:
    """Turns of one conversation, one at a time, while another worker is buried."""
    for _ in range(10):
        assert serve({"a": 500, "b": 2, "c": 0, "d": 1}, held(b=64), ASK).worker.id == "b"


def test_a_miss_goes_to_the_freest_however_little_it_holds() -> None:
    loads = {"a": 30, "b": 0, "c": 0, "d": 0}
    chosen = Counter(serve(loads, {}, replace(ASK, key=key)).worker.id for key in range(20))
    assert chosen["a"] == 0
    assert sorted(chosen.values()) == [6, 7, 7]


def test_a_worker_that_fails_at_once_is_the_freest_until_it_is_no_candidate() -> None:
    """Load alone would draw everything to it, so ejection has to take it out of the candidates; then nothing goes."""
    failing = {"a": 0, "b": 2, "c": 2}
    assert choose_slack([Worker(*item) for item in failing.items()], {}, ASK, TABLE).worker.id == "a"
    rest = {"b": 2, "c": 2}
    chosen = Counter(serve(rest, held(a=64), replace(ASK, key=key)).worker.id for key in range(100))
    assert sorted(chosen) == ["b", "c"]
    assert max(chosen.values()) - min(chosen.values()) <= 1


def test_distinct_prompts_at_once_spread_evenly() -> None:
    loads = {"a": 0, "b": 0, "c": 0}
    for key in range(12):
        serve(loads, {}, replace(ASK, key=key))
    assert loads == {"a": 4, "b": 4, "c": 4}


def test_a_burst_of_one_prompt_stays_together_within_the_slack() -> None:
    """The first claims its blocks; the others follow until waiting would cost more than the cache saves."""
    loads = dict.fromkeys("abcd", 0)
    matches: dict[str, Match] = {}
    reasons = []
    for _ in range(8):
        decision = serve(loads, matches, ASK)
        matches[decision.worker.id] = Match(64, 12_800)
        reasons.append(decision.reason)
    assert reasons[:4] == ["miss", "hit", "hit", "hit"]
    assert sorted(loads.values()) == [0, 0, 4, 4]
    assert reasons[4] == "spill"


# -- ties ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 8, 40])
def test_all_replicas_choose_alike_whatever_their_order(size: int) -> None:
    workers = [Worker(f"{number:08x}") for number in range(size)]
    draw = random.Random(size)
    for key in range(50):
        ask = replace(ASK, key=key)
        everyone = {worker.id: Match(64, 12_800) for worker in workers}
        cold = choose_slack(workers, {}, ask, TABLE).worker
        tied = choose_slack(workers, everyone, ask, TABLE).worker
        free = choose_least_loaded(workers, {}, ask, TABLE).worker
        assert cold == tied == free
        for _ in range(3):
            other = draw.sample(workers, size)
            assert choose_slack(other, {}, ask, TABLE).worker == cold
            assert choose_slack(other, everyone, ask, TABLE).worker == tied


def test_a_worker_that_leaves_moves_only_its_own_prompts() -> None:
    workers = [Worker(f"{number:08x}") for number in range(8)]
    homes = [choose_slack(workers, {}, replace(ASK, key=key), TABLE).worker for key in range(500)]
    for key, home in enumerate(homes):
        if home != workers[3]:
            rest = workers[:3] + workers[4:]
            assert choose_slack(rest, {}, replace(ASK, key=key), TABLE).worker == home


@pytest.mark.parametrize("size", [2, 3, 8, 50])
@pytest.mark.parametrize("kind", ["random", "consecutive", "high bits only"])
def test_distinct_keys_spread_evenly(size: int, kind: str) -> None:
    """Chi-squared within five standard deviations of its mean, for ids as they are: eight hex digits."""
    draw = random.Random(7)
    workers = [Worker(f"{draw.getrandbits(32):08x}") for _ in range(size)]
    per_worker = 200
    keys = {
        "random": [draw.getrandbits(64) for _ in range(size * per_worker)],
        "consecutive": list(range(size * per_worker)),
        "high bits only": [number << 48 for number in range(size * per_worker)],
    }[kind]
    counts = Counter(choose_slack(workers, {}, replace(ASK, key=key), TABLE).worker.id for key in keys)
    chi = sum((counts[worker.id] - per_worker) ** 2 / per_worker for worker in workers)
    freedom = size - 1
    assert chi < freedom + 5 * (2 * freedom) ** 0.5


def test_the_weight_of_a_worker_depends_on_worker_and_key_alone() -> None:
    assert rendezvous("905487f1", 12345) == rendezvous("905487f1", 12345)
    weights = {rendezvous(worker, key) for worker in ("a", "b", "905487f1") for key in (0, 1, (1 << 64) - 1)}
    assert len(weights) == 9
    assert all(0 <= weight < 1 << 64 for weight in weights)


# -- properties ------------------------------------------------------------------------------------------------------

matches_found = st.builds(
    lambda blocks, tokens, withheld: Match(blocks, 0 if withheld else tokens, withheld),
    st.integers(1, 64),
    st.sampled_from([0, 1, 200, 3_200, 12_800]),
    st.sampled_from([None, None, None, Reason.CACHE_DISABLED, Reason.BELOW_BLOCK_FLOOR]),
)
cases = st.tuples(
    st.lists(st.integers(0, 8), min_size=1, max_size=7),
    st.dictionaries(st.sampled_from("abcdefgz"), matches_found, max_size=6),
    st.builds(
        Ask,
        blocks=st.integers(0, 64),
        prompt_tokens=st.sampled_from([0, 999, 1_000, 4_000, 8_000, 32_000, 10**6]),
        key=st.integers(0, (1 << 64) - 1),
        draw=st.tuples(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True)),
        turn=st.integers(0, 100),
        bypass=st.booleans(),
    ),
)


@settings(max_examples=200)
@given(cases, st.sampled_from(sorted(POLICIES)), st.randoms(use_true_random=False))
def test_whatever_is_asked(case: tuple[list[int], dict[str, Match], Ask], policy: str, shuffle: random.Random) -> None:
    loads, matches, ask = case
    candidates = fleet(*loads)
    decision = POLICIES[policy](candidates, matches, ask, TABLE)
    assert decision.worker in candidates
    assert decision.load == decision.worker.load
    assert decision.min_load == min(loads)
    assert decision.blocks == ask.blocks
    assert decision.match == matches.get(decision.worker.id, Match())
    deepest = max((matches[each.id].resumable for each in candidates if each.id in matches), default=0)
    if decision.reason is Reason.HIT:
        assert decision.match.resumable == deepest > 0
    elif decision.reason in (Reason.SPILL, Reason.MISS):
        assert decision.match.resumable < deepest or deepest == 0
        assert len(candidates) > 1
    else:
        assert deepest == 0
    assert (decision.reason is Reason.BYPASS) == (ask.bypass and deepest == 0)
    mixed = shuffle.sample(candidates, len(candidates))
    if policy in ("slack", "least_loaded"):
        assert POLICIES[policy](mixed, dict(reversed(matches.items())), ask, TABLE) == decision


@settings(max_examples=200)
@given(cases)
def test_affinity_is_a_preference_and_never_a_queue(case: tuple[list[int], dict[str, Match], Ask]) -> None:
    loads, matches, ask = case
    candidates = fleet(*loads)
    decision = choose_slack(candidates, matches, ask, TABLE)
    limit = min(loads) + TABLE.slack(ask.prompt_tokens)
    assert decision.load <= limit
    fitting = [each for each in candidates if each.load <= limit and matches.get(each.id, Match()).resumable > 0]
    if fitting:
        assert decision.match.resumable == max(matches[each.id].resumable for each in fitting)
    else:
        assert decision.load == min(loads)
    if decision.runner_up is not None:
        assert decision.runner_up.load > limit
        assert matches[decision.runner_up.id].resumable >= decision.match.resumable
    assert (decision.reason is not Reason.SPILL) or decision.runner_up is not None


# -- the policies for comparison -------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0.0, 0.25, 0.5, NEARLY_ONE])
@pytest.mark.parametrize("second", [0.0, 0.25, 0.5, NEARLY_ONE])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_two_choices_take_two_different_workers_and_the_freer_of_them(first: float, second: float, size: int) -> None:
    candidates = [Worker(str(number), number) for number in range(size)]
    low = choose_power_of_two(candidates, {}, replace(ASK, draw=(first, second)), TABLE).worker
    busiest_first = [Worker(str(number), size - number) for number in range(size)]
    high = choose_power_of_two(busiest_first, {}, replace(ASK, draw=(first, second)), TABLE).worker
    assert (low.id != high.id) is (size > 1)
    assert str(int(first * size)) in (low.id, high.id)


def test_two_choices_take_every_pair_equally_often() -> None:
    size, grid = 4, 12
    pairs: Counter[frozenset[str]] = Counter()
    for first, second in itertools.product(range(grid), repeat=2):
        draw = (first / grid, second / grid)
        ids = set()
        for loads in (range(size), range(size, 0, -1)):
            candidates = [Worker(str(number), load) for number, load in enumerate(loads)]
            ids.add(choose_power_of_two(candidates, {}, replace(ASK, draw=draw), TABLE).worker.id)
        pairs[frozenset(ids)] += 1
    assert len(pairs) == 6
    assert set(pairs.values()) == {grid * grid // 6}


def test_two_equal_choices_take_the_first_drawn() -> None:
    assert choose_power_of_two(fleet(1, 1, 1), {}, replace(ASK, draw=(0.5, 0.0)), TABLE).worker.id == "b"


def test_round_robin_takes_turns() -> None:
    chosen = [choose_round_robin(fleet(9, 0, 0), {}, replace(ASK, turn=turn), TABLE).worker.id for turn in range(7)]
    assert "".join(chosen) == "abcabca"


def test_least_loaded_looks_at_nothing_else() -> None:
    decision = choose_least_loaded(fleet(2, 1, 2), held(a=64), ASK, TABLE)
    assert (decision.worker.id, decision.reason, decision.slack) == ("b", "miss", 0)


def test_blind_policies_say_when_they_were_lucky() -> None:
    assert choose_round_robin(fleet(0, 0), held(a=64, b=3), replace(ASK, turn=0), TABLE).reason is Reason.HIT
    assert choose_round_robin(fleet(0, 0), held(a=64, b=3), replace(ASK, turn=1), TABLE).reason is Reason.MISS
    assert choose_round_robin(fleet(0, 0), held(a=3, z=64), replace(ASK, turn=0), TABLE).reason is Reason.HIT
