"""Small and cold traffic through two real replicas, real Redis and simulated workers, with the default policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.whole.rig import CHAT, Json, Rig, building, chat_body, group, text_of, together

pytestmark = pytest.mark.redis
FLEETS = {"two": 2, "four": 4, "eight": 8}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with building(tmp_path_factory.mktemp("small-traffic")) as build:
        fleets = [group(name, count, prefill_tokens_per_second=50_000.0) for name, count in FLEETS.items()]
        rig = build(*fleets, replica_count=2)
        rig.acquainted()
        yield rig


def send(rig: Rig, number: int, text: str, model: str) -> str:
    """One streamed request through one of the replicas; the worker that served it."""
    answer = rig.chat(text, model=model, via=rig.routers[number % 2].url, stream=True)
    assert answer.status_code == 200, answer.text
    worker: str = answer.headers["x-router-worker"]
    return worker


@pytest.mark.parametrize("tokens", [2_000, 6_000, 20_000])
@pytest.mark.parametrize("model", FLEETS)
def test_a_burst_of_equal_cold_prompts_over_two_replicas_goes_to_two_workers_at_most(
    rig: Rig, model: str, tokens: int
) -> None:
    text = text_of(f"the same {tokens} tokens for {model}", 4 * tokens)
    counts = Counter(together(16, lambda number: send(rig, number, text, model)))
    assert len(counts) <= 2, counts


@pytest.mark.parametrize("tokens", [2_000, 8_000])
@pytest.mark.parametrize("model", FLEETS)
def test_a_burst_of_distinct_cold_prompts_over_two_replicas_spreads(rig: Rig, model: str, tokens: int) -> None:
    texts = [text_of(f"{number} of 16 with {tokens} tokens for {model}", 4 * tokens) for number in range(16)]
    counts = Counter(together(16, lambda number: send(rig, number, texts[number], model)))
    assert len(counts) == FLEETS[model]
    # What both replicas sent in the same few milliseconds may have met.
    assert max(counts.values()) <= 16 / FLEETS[model] + 3, counts


def test_a_burst_behind_a_cold_prefix_goes_to_two_workers_at_most(rig: Rig) -> None:
    shared = text_of("tools that all of them share", 80_000)
    counts = Counter(together(8, lambda number: send(rig, number, f"{shared} and request {number}", "four")))
    assert len(counts) <= 2, counts


def test_long_prompts_one_after_another_spread(rig: Rig) -> None:
    counts = Counter(send(rig, number, text_of(f"document {number}", 8_000), "four") for number in range(40))
    assert len(counts) == 4
    assert max(counts.values()) <= 14, counts


def test_prompts_of_five_words_spread(rig: Rig) -> None:
    counts = Counter(send(rig, number, f"{number} small words", "four") for number in range(20))
    assert len(counts) == 4
    assert max(counts.values()) <= 8, counts


def test_sessions_played_strictly_in_turn_stick_and_spread(rig: Rig) -> None:
    sessions: list[list[Json]] = [
        [{"role": "user", "content": text_of(f"session {number}", 8_000)}] for number in range(8)
    ]
    homes: dict[int, str] = {}
    for turn in range(3):
        for number, messages in enumerate(sessions):
            body = chat_body("", model="four") | {"messages": messages}
            via = rig.routers[turn % 2].url
            if turn:
                rig.heard(body, via=via)
            worker = rig.post(CHAT, body, via=via).headers["x-router-worker"]
            assert homes.setdefault(number, worker) == worker
            messages += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": text_of("more", 900)}]
    counts = Counter(homes.values())
    assert len(counts) >= 3
    assert max(counts.values()) <= 4, counts
