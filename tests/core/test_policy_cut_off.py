"""While other replicas can't be heard, a beginning that nobody is known to hold goes where all of them would put it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.policy import Ask, Decision, Match, Reason, SlackTable, choose_slack, rendezvous

TABLE = SlackTable()
NAMES = ("a", "b", "c", "d")


@dataclass(frozen=True)
class Seen:
    id: str
    load: int


def choose(
    loads: dict[str, int], *, cut_off: bool, tokens: int = 5_000, key: int = 1, matches: dict[str, Match] | None = None
) -> Decision[Seen]:
    candidates = [Seen(name, load) for name, load in loads.items()]
    return choose_slack(candidates, matches or {}, Ask(10, tokens, key, cut_off=cut_off), TABLE)


def home_of(key: int) -> str:
    return max(NAMES, key=lambda name: rendezvous(name, key))


loads = st.fixed_dictionaries({name: st.integers(0, 6) for name in NAMES})


@given(loads, st.integers(0, 2**64 - 1), st.sampled_from([100, 2_000, 5_000, 40_000]))
def test_the_home_is_chosen_while_it_is_busier_by_no_more_than_the_slack(
    loads: dict[str, int], key: int, tokens: int
) -> None:
    decision = choose(loads, cut_off=True, tokens=tokens, key=key)
    home = home_of(key)
    if loads[home] <= min(loads.values()) + TABLE.slack(tokens):
        assert decision.worker.id == home
    else:
        assert decision.worker.load == min(loads.values())
    assert decision.reason is Reason.MISS


@given(loads, loads, st.integers(0, 2**64 - 1))
def test_replicas_with_little_to_do_seed_alike_whatever_each_sees(
    here: dict[str, int], there: dict[str, int], key: int
) -> None:
    few_here, few_there = ({name: load % 3 for name, load in seen.items()} for seen in (here, there))
    chosen = {choose(seen, cut_off=True, key=key).worker.id for seen in (few_here, few_there)}
    assert chosen == {home_of(key)}


@given(loads, st.integers(0, 2**64 - 1))
def test_with_the_others_in_hearing_the_freest_is_chosen(loads: dict[str, int], key: int) -> None:
    assert choose(loads, cut_off=False, key=key).worker.load == min(loads.values())


@pytest.mark.parametrize("name", NAMES)
def test_who_is_known_to_hold_it_comes_first(name: str) -> None:
    decision = choose(dict.fromkeys(NAMES, 1), cut_off=True, matches={name: Match(5, 1_000)})
    assert (decision.worker.id, decision.reason) == (name, Reason.HIT)


def test_a_spill_goes_to_the_freest() -> None:
    key = 1
    home, other = home_of(key), next(name for name in NAMES if name != home_of(key))
    seen = dict.fromkeys(NAMES, 1) | {other: 9, home: 2}
    decision = choose(seen, cut_off=True, key=key, matches={other: Match(5, 1_000)})
    assert (decision.worker.load, decision.reason) == (1, Reason.SPILL)
