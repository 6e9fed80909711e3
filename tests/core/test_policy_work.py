"""The rule that chooses by work."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.policy import Ask, Decision, Match, Reason, rendezvous
from router.policy_work import FIRST_FEW, View, choose_work, pressure, terms

INTERVAL = 60.0
TOKENS = 10_000


@dataclass(frozen=True)
class Work:
    """So much to compute before a new request, and so many that decode."""

    queued: float = 0.0
    decoding: int = 0

    def ahead(self, now: float) -> float:
        return self.queued


@dataclass(frozen=True)
class Candidate:
    id: str
    load: int = 0
    work: Work = field(default_factory=Work)
    turn: int = 0


def worker(name: str, load: int = 0, queued: float = 0.0, decoding: int = 0, turn: int = 0) -> Candidate:
    return Candidate(name, load, Work(queued, decoding), turn)


def held(tokens: int) -> Match:
    return Match(tokens // 128, tokens, None, tokens)


def ask(key: int = 1, **changed: object) -> Ask:
    return Ask(**({"blocks": 64, "prompt_tokens": TOKENS, "key": key} | changed))  # type: ignore[arg-type]


def choose(
    *candidates: Candidate, matches: dict[str, Match] | None = None, asked: Ask | None = None, view: View | None = None
) -> Decision[Candidate]:
    return choose_work(candidates, matches or {}, asked or ask(), view or View(0.0))


def test_the_holder_wins_while_its_queue_is_shorter_than_the_prefill_it_saves() -> None:
    for extra, winner, reason in ((9_999, "holder", Reason.HIT), (10_001, "free", Reason.SPILL)):
        decision = choose(worker("holder", load=3, queued=extra), worker("free"), matches={"holder": held(8_000)})
        assert (decision.worker.id, decision.reason) == (winner, reason)
        assert (decision.min_load, decision.slack) == (0, 10_000)
        assert (decision.runner_up is not None) == (reason is Reason.SPILL)


def test_a_long_prompt_counts_as_the_work_it_is() -> None:
    assert choose(worker("a", 1, 100_000), worker("b", 5, 4_000, decoding=4)).worker.id == "b"


def test_those_who_decode_count_a_thousand_tokens_each() -> None:
    assert choose(worker("a", decoding=3), worker("b", queued=2_999)).worker.id == "b"
    assert choose(worker("a", decoding=3), worker("b", queued=3_001)).worker.id == "a"


def test_what_is_expected_counts_and_what_is_certain_is_the_reason() -> None:
    """The deeper of two blocks is not known to hold more tokens until the engine can resume them."""
    matches = {"a": Match(10, 1_000, None, 1_500), "b": Match(10, 1_000, None, 1_600)}
    decision = choose(worker("a"), worker("b"), matches=matches)
    assert (decision.worker.id, decision.reason) == ("b", Reason.HIT)


def test_equals_are_told_apart_by_load_then_in_the_order_all_share() -> None:
    names = ("a", "b", "c")
    first = max(names, key=lambda name: rendezvous(name, 1))
    assert choose(*(worker(name) for name in names)).worker.id == first
    busy = [worker(name, load=int(name == first)) for name in names]
    assert choose(*busy).worker.id != first


def test_of_the_first_few_equals_the_one_that_rests_longest_takes_a_new_prefix() -> None:
    names = sorted("abcdefgh", key=lambda name: rendezvous(name, 1), reverse=True)
    fleet = [worker(name) for name in "abcdefgh"]
    for rests in names[:FIRST_FEW]:
        used = dict.fromkeys(names, 9.0) | {rests: 8.0}
        assert choose(*fleet, view=View(0.0, last_used=used.__getitem__)).worker.id == rests
        # Replicas that do not hear each other can't know of that.
        apart = choose(*fleet, asked=ask(cut_off=True), view=View(0.0, last_used=used.__getitem__))
        assert apart.worker.id == names[0]
    used = dict.fromkeys(names, 9.0) | dict.fromkeys(names[FIRST_FEW:], 8.0)
    assert choose(*fleet, view=View(0.0, last_used=used.__getitem__)).worker.id == names[0]


def test_prompts_without_a_block_go_round() -> None:
    """They seed nothing, so replicas need not agree on their worker."""
    found = choose(worker("a", turn=7), worker("b", turn=5), worker("c", turn=6), asked=ask(blocks=0))
    assert (found.worker.id, found.reason) == ("b", Reason.SHORT)


@pytest.mark.parametrize(
    ("matches", "asked", "reason"),
    [
        ({}, ask(), Reason.MISS),
        ({"a": Match(3, 0, Reason.BELOW_BLOCK_FLOOR)}, ask(), Reason.BELOW_BLOCK_FLOOR),
        ({"z": held(8_000)}, ask(), Reason.MISS),
        ({"a": held(8_000)}, ask(), Reason.HIT),
        ({}, ask(bypass=True), Reason.BYPASS),
    ],
)
def test_reasons_mean_what_they_mean_under_any_policy(matches: dict[str, Match], asked: Ask, reason: Reason) -> None:
    assert choose(worker("a"), worker("b"), matches=matches, asked=asked).reason is reason


def test_one_candidate_that_holds_nothing_leaves_no_choice() -> None:
    assert choose(worker("a")).reason is Reason.ONLY


def test_a_full_cache_costs_what_the_prompt_pushes_out_by_how_young_that_is() -> None:
    assert pressure(0.95, 0.0, INTERVAL) == 1.0
    assert pressure(0.95, 3 * INTERVAL, INTERVAL) == pytest.approx(1 / math.e)
    assert pressure(0.89, 0.0, INTERVAL) == 0.0
    assert pressure(1.0, math.inf, INTERVAL) == 0.0
    view = View(0.0, pressure={"a": 0.5, "b": 0.2}.__getitem__)
    assert choose(worker("a"), worker("b"), view=view).worker.id == "b"
    assert terms(worker("a"), {}, ask(), view).evicting == TOKENS * 0.5


def test_cut_off_replicas_seed_a_beginning_at_its_home_even_if_that_is_busier() -> None:
    names = ("a", "b", "c")
    home = max(names, key=lambda name: rendezvous(name, 1))
    for queued, goes_home in ((TOKENS // 2 - 1, True), (TOKENS // 2 + 1, False)):
        fleet = [worker(name, 1, queued if name == home else 0) for name in names]
        assert (choose(*fleet, asked=ask(cut_off=True)).worker.id == home) is goes_home
        assert choose(*fleet).worker.id != home
    other = next(name for name in names if name != home)
    holder = choose(*map(worker, names), asked=ask(cut_off=True), matches={other: held(100)})
    assert holder.worker.id == other


@given(
    st.lists(
        st.builds(worker, st.text("abcdefgh", min_size=1), st.integers(0, 9), st.floats(0, 1e6), st.integers(0, 64)),
        min_size=1,
        max_size=8,
        unique_by=lambda one: one.id,
    ),
    st.dictionaries(st.text("abcdefgh", min_size=1), st.builds(held, st.integers(0, 2 * TOKENS))),
)
def test_the_choice_has_the_smallest_sum_of_the_terms_shown(
    candidates: list[Candidate], matches: dict[str, Match]
) -> None:
    view = View(0.0, pressure=lambda name: len(name) / 10)
    scores = {one.id: terms(one, matches, ask(), view).score for one in candidates}
    decision = choose(*candidates, matches=matches, view=view)
    assert scores[decision.worker.id] == pytest.approx(min(scores.values()))
    assert choose(*reversed(candidates), matches=matches, view=view).worker == decision.worker
    most = max([matches[one.id].resumable for one in candidates if one.id in matches], default=0)
    assert (decision.reason is Reason.HIT) == (decision.match.resumable == most > 0)
