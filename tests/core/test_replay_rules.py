"""Rules in a replay: the product's through its own code, policy `work`, and the others by their formulas."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.policy import POLICIES
from router.replay import peers
from router.replay.catalogue import GROUPS, PEERS, UnknownRule, names_of, rule_of
from router.replay.counts import Counted
from router.replay.fleet import Fleet, Scenario
from router.replay.generate import generate
from router.replay.product import ProductRule, prompt_of, synthetic_prefix
from router.replay.rules import MakeRule, Setting
from router.replay.shadow import Shadow
from router.replay.trace import ID_TOKENS, Request, Trace
from router.replay.worker import Engine, Job, ModelledWorker


def setting(workers: int = 4, seed: int = 0) -> Setting:
    engine = Engine()
    return Setting(engine, [ModelledWorker(engine) for _ in range(workers)], 0, random.Random(seed))


def job(number: int, ids: tuple[int, ...], output: int = 10, opening: int = 0) -> Job:
    return Job(number, Request(0.0, ids, len(ids) * ID_TOKENS, output, None, opening), len(ids) * ID_TOKENS)


def blocks(family: int, count: int) -> tuple[int, ...]:
    return tuple(family * 1_000 + block for block in range(count))


def send(rule: Counted, ids: tuple[int, ...], number: int, now: float = 0.0) -> int:
    sent = job(number, ids)
    sent.worker = rule.place(sent, now)
    return sent.worker


# -- the shadow of a cache -------------------------------------------------------------------------------------


def test_a_shadow_forgets_the_least_recently_used_and_children_first() -> None:
    shadow = Shadow(6.0)
    shadow.use((1, 2, 3), (1.0, 1.0, 1.0), 0.0)
    shadow.use((11, 12), (1.0, 1.0), 1.0)
    shadow.use((21, 22), (1.0, 1.0), 2.0)
    assert [shadow.depth(keys) for keys in ((1, 2, 3), (11, 12), (21, 22))] == [2, 2, 2]
    assert (shadow.fill, shadow.oldest(5.0), shadow.age(12, 5.0)) == (1.0, 5.0, 4.0)


def test_an_empty_shadow_has_no_age() -> None:
    assert Shadow(1.0).oldest(1.0) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8), st.sampled_from([0.5, 1.0, 3.0])), max_size=60))
def test_a_shadow_has_no_holes_and_counts_right(uses: list[tuple[int, int, float]]) -> None:
    shadow = Shadow(20.0)
    for now, (family, depth, weight) in enumerate(uses):
        shadow.use(blocks(family, depth), [weight] * depth, float(now))
        assert shadow.tokens <= shadow.capacity
        assert shadow.tokens == pytest.approx(sum(tokens for tokens, _ in shadow._held.values()))
        for other in range(4):
            held = [block in shadow._held for block in blocks(other, 8)]
            assert held == sorted(held, reverse=True)
            assert shadow.depth(blocks(other, 8)) == sum(held)


# -- the product's code ----------------------------------------------------------------------------------------


def test_equal_ids_are_equal_bytes_up_to_where_they_end() -> None:
    first, second = synthetic_prefix((1, 2, 3), 6_000), synthetic_prefix((1, 2, 4), 5_000)
    assert (len(first), len(second)) == (6_000, 5_000)
    assert first[:4_096] == second[:4_096]
    assert first[4_096:4_104] != second[4_096:4_104]
    assert synthetic_prefix((-1,), 8) == b"\xff" * 8


def test_the_products_slack_keeps_a_conversation_through_its_own_map() -> None:
    rule = ProductRule(setting(), "slack")
    first = job(1, blocks(1, 8))
    first.worker = rule.place(first, 0.0)
    assert rule.answered(first, 1.0) is not None
    rule.ended(first, 2.0)
    for number in range(2, 10):
        again = job(number, blocks(1, 7 + number))
        assert rule.place(again, float(number)) == first.worker
        assert again.believed == ID_TOKENS - 64  # half a block of 512 bytes may be shared too
        rule.answered(again, number + 0.5)
        rule.ended(again, number + 0.5)
    assert all(worker.load == 0 for worker in rule.workers)


def test_beyond_the_horizon_of_32_kb_only_the_ladder_tells_prompts_apart() -> None:
    found = {}
    for horizon in (None, "dense", "ladder", "whole"):
        rule = ProductRule(setting(), "slack", horizon)
        believed = []
        for number, family in enumerate((7, 8, 7)):
            sent = job(number, (*blocks(1, 40), *blocks(family, 20)))
            sent.worker = rule.place(sent, float(number))
            rule.answered(sent, number + 0.5)
            believed.append(sent.believed // ID_TOKENS)
        found[horizon] = believed
    # Half of the block after the last one that matched is taken to be shared.
    assert found["dense"] == [60, 43, 43]
    assert found["whole"] == [60, 19, 0]
    assert found["ladder"] == found[None]
    assert found["ladder"][0] == 60
    assert 17 <= found["ladder"][1] <= 25
    assert 0 <= found["ladder"][2] <= 4


def test_replicas_of_the_product_tell_one_another_of_owners_and_loads() -> None:
    trace = Trace("t", tuple(Request(float(at), blocks(1, 8), 8 * ID_TOKENS, 5) for at in range(30)))
    fleet = Fleet(trace, rule_of("slack"), Scenario(workers=4, replicas=2, seed=3))
    jobs = fleet.run()
    assert {one.replica for one in jobs} == {0, 1}
    assert len({one.worker for one in jobs}) == 1
    for rule in fleet.rules:
        assert isinstance(rule, ProductRule)
        rule.hear_open(1 - fleet.rules.index(rule), dict.fromkeys(range(4), ()), 99.0)
        assert all(worker.load == 0 for worker in rule.workers)


# -- policy work -----------------------------------------------------------------------------------------------


def test_work_prefers_the_holder_until_its_queue_costs_more_than_it_saves() -> None:
    rule = ProductRule(setting(), "work", "whole")
    first = job(1, blocks(1, 20))
    first.worker = home = rule.place(first, 0.0)
    rule.answered(first, 1.0)
    rule.ended(first, 1.0)
    for number in range(2, 30):
        sent = job(number, (*blocks(1, 20), *blocks(number, 2)))
        sent.worker = rule.place(sent, 2.0)
        if sent.worker != home:
            break
        assert sent.believed == 768  # half a block of the tail is taken to be shared
    # The holder saves 20.5 blocks of 512 at 1.25 a token.
    assert number - 2 == 1 + int(1.25 * 20.5 * 512 / 768)


def test_work_believes_of_a_cache_what_fits_into_it() -> None:
    small = replace(setting(1), engine=Engine(cache_tokens=20 * ID_TOKENS))
    rule = ProductRule(small, "work", "whole")
    for number, family in enumerate((1, 2, 1)):
        sent = job(number, blocks(family, 12))
        sent.worker = rule.place(sent, float(number))
        rule.answered(sent, number + 0.5)
        rule.ended(sent, number + 0.5)
        believed = sent.believed
    # Four were evicted, and half a block is taken to be shared beyond what is known.
    assert believed == 3.5 * ID_TOKENS


def test_equal_prompts_on_two_replicas_meet_where_the_first_of_them_went() -> None:
    arrivals = [Request(10.0 + number / 50, blocks(1, 40), 40 * ID_TOKENS, 5) for number in range(16)]
    fleet = Fleet(Trace("t", tuple(arrivals)), rule_of("work"), Scenario(replicas=2, delay=0.01, seed=3))
    jobs = fleet.run()
    assert {one.replica for one in jobs} == {0, 1}
    assert len({one.worker for one in jobs}) <= 2


def test_work_on_two_replicas_that_hear_nothing_but_heartbeats_ends_empty() -> None:
    trace = generate("short", 200, 1)
    fleet = Fleet(trace, rule_of("work"), Scenario(replicas=2, loss=0.5, delay=0.02, pace=0.05, silent=0.3))
    jobs = fleet.run()
    end = max(one.ended for one in jobs)
    for number, rule in enumerate(fleet.rules):
        assert isinstance(rule, ProductRule)
        rule.hear_open(1 - number, dict.fromkeys(range(8), ()), end)
        assert all(not worker.work.waiting and not worker.work.answered for worker in rule.workers)


# -- other routers' rules --------------------------------------------------------------------------------------


def test_cache_aware_follows_a_match_over_three_tenths_and_leaves_it_when_loads_are_uneven() -> None:
    rule = peers.SglangCacheAware(setting())
    home = send(rule, blocks(1, 10), 0)
    assert send(rule, (*blocks(1, 4), *blocks(2, 6)), 1) == home
    assert send(rule, (*blocks(1, 3), *blocks(3, 7)), 2) != home
    for number in range(3, 70):
        if send(rule, blocks(1, 10), number) != home:
            break
    assert rule.load[home] == 65


def test_aibrix_leaves_a_holder_that_is_eight_ahead_or_unusually_busy() -> None:
    rule = peers.AIBrixPrefixCache(setting())
    home = send(rule, blocks(1, 10), 0)
    # One busy worker of four is more than a standard deviation above the mean.
    assert send(rule, blocks(1, 10), 1) != home
    rule = peers.AIBrixPrefixCache(setting())
    home = send(rule, blocks(1, 10), 0)
    rule.load = [3, 3, 3, 3]
    assert send(rule, blocks(1, 10), 1) == home
    rule.load = [12, 12, 12, 12]
    rule.load[(home + 1) % 4] = 3
    assert send(rule, blocks(1, 10), 2) == (home + 1) % 4


def test_ray_takes_a_tenth_for_a_match_and_else_the_smallest_tree() -> None:
    rule = peers.RayPrefixAffinity(setting(2))
    home = send(rule, blocks(1, 20), 0)
    other = 1 - home
    assert send(rule, (*blocks(1, 2), *blocks(2, 18)), 1) == home
    assert send(rule, (*blocks(1, 1), *blocks(3, 19)), 2) == other


def test_the_affinity_filter_lets_go_when_the_holders_are_18_seconds_behind() -> None:
    rule = peers.LlmDAffinityFilter(setting())
    home = send(rule, blocks(1, 10), 0)
    for number in range(1, 5):
        assert send(rule, (*blocks(1, 8), *blocks(number + 1, 2)), number) == home
    rule.uncached[home] += int(18.1 * rule.setting.engine.prefill_rate)
    assert send(rule, (*blocks(1, 8), *blocks(9, 2)), 6) != home


def test_the_weighted_sum_gives_up_a_match_for_an_idle_worker_with_room() -> None:
    made = setting(2)
    rule = peers.LlmDSum(made)
    home = send(rule, blocks(1, 10), 0)
    assert send(rule, blocks(1, 10), 1) == home
    for number in range(9):
        made.fleet[home].waiting.append(job(100 + number, blocks(5, 1)))
    assert send(rule, blocks(1, 10), 2) == home  # 3 for the match against 2 for the queue
    assert send(rule, (*blocks(1, 3), *blocks(2, 7)), 3) == 1 - home


def test_cold_prompts_go_where_the_last_one_was_longest_ago() -> None:
    rule = peers.LlmDSum(setting(3))
    turns = [send(rule, blocks(family, 4), family) for family in range(1, 7)]
    assert sorted(turns[:3]) == [0, 1, 2]
    assert turns[3:] == turns[:3]


def test_event_mode_sees_what_the_caches_hold() -> None:
    made = setting()
    rule = peers.SmgEvents(made)
    made.fleet[2].cache.admit(blocks(1, 4), 0, 2_048)
    made.fleet[3].cache.admit(blocks(1, 2), 0, 1_024)
    assert send(rule, blocks(1, 8), 0) == 2
    assert send(rule, blocks(2, 8), 1) == 0


def test_dynamo_adds_prefill_and_distinct_decode_blocks() -> None:
    made = setting(2)
    rule = peers.DynamoCost(made)
    made.fleet[0].cache.admit(blocks(1, 10), 0, 5_120)
    assert send(rule, blocks(1, 10), 0) == 0
    # Worker 0 now costs 10 blocks of decode, none of them new for this prompt, and none of prefill: worker 1 20.
    assert send(rule, blocks(1, 10), 1) == 0
    # 60 blocks of prefill and 10 and 60 of decode against 60 and 60.
    assert send(rule, blocks(2, 60), 2) == 1


def test_bounded_hashing_keeps_a_key_until_its_worker_is_a_quarter_above_the_mean() -> None:
    rule = peers.BoundedHashing(setting())
    found = [send(rule, blocks(1, 4), number) for number in range(8)]
    assert max(rule.load) <= math.ceil(1.25 * 8 / 4)
    assert found[0] == send(peers.BoundedHashing(setting()), blocks(1, 4), 0)
    spread = {send(rule, blocks(family, 4), family) for family in range(10, 30)}
    assert len(spread) == 4


@pytest.mark.parametrize("make", [*PEERS.values()], ids=[*PEERS])
def test_lost_news_is_made_good_by_heartbeats(make: Callable[[Setting], Counted]) -> None:
    rule = make(setting())
    theirs = job(1, blocks(1, 4))
    theirs.replica, theirs.worker, theirs.believed = 1, 2, 2_048
    rule.hear_open(1, {2: ((theirs, False),)}, 1.0)
    assert (rule.load[2], rule.waiting[2], rule.prefill[2]) == (1, 1, 2_048)
    rule.hear_open(1, {2: ((theirs, True),)}, 2.0)
    assert (rule.load[2], rule.waiting[2], rule.prefill[2]) == (1, 0, 0)
    rule.hear_open(1, {2: ()}, 3.0)
    assert (rule.load[2], rule.prompts[2], rule.uncached[2]) == (0, 0, 0)


# -- all of them -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*GROUPS["all"], "slack@ladder", "work@dense"])
def test_every_rule_serves_a_mix_over_two_replicas_and_keeps_count(name: str) -> None:
    trace = generate("mix", 150, 1)
    fleet = Fleet(trace, rule_of(name), Scenario(replicas=2, delay=0.01, pace=2.0, estimate_error=0.2))
    jobs = fleet.run()
    assert all(one.arrived < one.first <= one.ended for one in jobs)
    assert len({one.worker for one in jobs}) == 8
    for rule in fleet.rules:
        if isinstance(rule, Counted):
            rule.hear_open(1 - fleet.rules.index(rule), {}, 1e9)
            assert rule.load == rule.waiting == rule.prefill == rule.prompts == rule.uncached == [0] * 8


def test_the_same_seed_gives_the_same_replay() -> None:
    trace = generate("mix", 100, 1)
    for name in ("work", "slack", "power_of_two"):
        first, second = (Fleet(trace, rule_of(name), Scenario(seed=5)).run() for _ in range(2))
        assert [(one.worker, one.first, one.ended) for one in first] == [
            (one.worker, one.first, one.ended) for one in second
        ]


def test_a_follower_comes_its_think_time_after_the_end_before() -> None:
    requests = (Request(0.0, blocks(1, 2), 1_024, 20), Request(3.0, blocks(1, 4), 2_048, 5, after=0))
    first, second = Fleet(Trace("t", requests), rule_of("round_robin"), Scenario(pace=7.0)).run()
    assert second.arrived == pytest.approx(first.ended + 3.0)


def test_patience_ends_a_replay_that_is_hopeless() -> None:
    requests = tuple(Request(0.0, blocks(number, 30), 30 * ID_TOKENS, 5) for number in range(40))
    make: MakeRule = rule_of("round_robin")
    for patience, overrun in ((10.0, True), (1_000.0, False)):
        fleet = Fleet(Trace("t", requests), make, Scenario(workers=1), patience)
        fleet.run()
        assert fleet.overrun is overrun


def test_estimates_err_around_the_truth() -> None:
    trace = generate("cold", 400, 1)
    fleet = Fleet(trace, rule_of("round_robin"), Scenario(estimate_error=0.25))
    logs = [math.log(one.estimate / one.request.prompt_tokens) for one in fleet.jobs]
    assert abs(sum(logs) / len(logs)) < 0.05
    assert 0.2 < math.sqrt(sum(value**2 for value in logs) / len(logs)) < 0.3
    assert prompt_of(fleet.jobs[0]).tokens == fleet.jobs[0].estimate


def test_names_stand_for_rules_groups_and_horizons() -> None:
    assert names_of("own, work,sglang") == ["work", *POLICIES, "sglang"]
    assert names_of("slack@ladder,perfect") == ["slack@ladder", "perfect"]
    for bad in ("nobody", "slack@deep", "sglang@whole", "perfect@whole", ""):
        with pytest.raises(UnknownRule):
            names_of(bad)
