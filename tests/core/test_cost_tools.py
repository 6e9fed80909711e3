"""The tools that measure single steps do these steps."""

from __future__ import annotations

from loadtest import decision_cost, sync_cost


def test_news_that_is_taken_apart_is_made_and_taken_in() -> None:
    lines = sync_cost.apart(messages=4, each=2)
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| a message without content",
        "| a first turn, 64 blocks",
        "| a follow-up, 6 blocks",
        "| a use",
        "| a heartbeat, 8 workers",
    ]
    assert all(line.count(" us |") == 2 for line in lines[2:])


def test_a_full_index_is_full_and_decisions_in_it_are_hits() -> None:
    selector = decision_cost.fleet(3)
    decision_cost.fill(selector, 3)
    assert decision_cost.MOST_BLOCKS - len(selector.index) < decision_cost.FILL_BLOCKS
    assert decision_cost.decision(3, filled=True, seed=1, prompts=2) > 0
