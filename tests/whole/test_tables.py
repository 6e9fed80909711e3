"""The tables of `scripts/run --tables` have the shape of what operators measured on real fleets."""

from __future__ import annotations

import functools

import pytest

from loadtest.tables import CHATS, TABLES, Table, Turn, as_text, main


@functools.cache
def table(name: str) -> Table:
    return TABLES[name]()


def shares(turns: list[Turn]) -> list[float]:
    """The time of each turn over that of the first."""
    return [turn.seconds / turns[0].seconds for turn in turns]


def test_a_blind_rule_pays_for_every_change_of_worker() -> None:
    first, second, *_ = table("blind").turns
    assert first.worker != second.worker
    assert second.cached == 0
    assert second.seconds > first.seconds


def test_with_affinity_every_turn_after_the_first_costs_a_tenth() -> None:
    turns = table("affinity").turns
    assert len({turn.worker for turn in turns}) == 1
    assert max(shares(turns)[1:]) < 0.15
    assert sum(turn.seconds for turn in turns) < 0.7 * sum(turn.seconds for turn in table("blind").turns)


def test_a_hybrid_whose_caching_is_off_is_flat() -> None:
    turns = table("hybrid_off").turns
    assert all(0.95 < share < 1.05 for share in shares(turns))
    assert not any(turn.cached for turn in turns)


def test_with_it_every_repeat_costs_a_third() -> None:
    turns = table("hybrid_on").turns
    one, other = table("hybrid_on").of("prompt 1"), table("hybrid_on").of("prompt 2")
    assert turns[-1].name == "prompt 1"  # after another one had been through
    assert all(0.2 < share < 0.4 for talk in (one, other) for share in shares(talk)[1:])


def test_a_long_conversation_on_a_hybrid_keeps_its_worker_and_half_of_its_prompt() -> None:
    turns = table("hybrid_conversation").turns
    assert len({turn.worker for turn in turns}) == 1
    assert all(0.4 < share < 0.7 for share in shares(turns)[1:])


@pytest.mark.parametrize("tokens", CHATS)
def test_ordinary_chats_get_nothing_from_coarse_blocks(tokens: int) -> None:
    turns = table("floor").of(f"~{tokens:,} tokens")
    assert [turn.cached for turn in turns] == [0] * 4
    assert all(1 <= share < 1.15 for share in shares(turns))


@pytest.mark.parametrize("tokens", CHATS)
def test_a_match_unit_pays_from_the_third_turn_on(tokens: int) -> None:
    turns = table("match_unit").of(f"~{tokens:,} tokens")
    first, second, *later = shares(turns)
    assert second >= first
    assert all(share < 0.3 for share in later)


def test_a_table_is_printed_with_its_shares(capsys: pytest.CaptureFixture[str]) -> None:
    printed = as_text(Table("Title", [Turn("p", "A", 5_600, 0, 2.0), Turn("p", "B", 5_700, 5_600, 0.5)]))
    assert printed.splitlines()[0] == "Title:"
    assert "| p | B | 5,700 | 5,600 | 0.50 s | 25% |" in printed
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "no such table" in capsys.readouterr().err
