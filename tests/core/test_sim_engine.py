"""The engine of the simulated worker, in model time."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.simworker.cache import BlockCache
from loadtest.simworker.engine import Engine, Phase, Rates, Sequence
from loadtest.simworker.tokens import Tokenizer

TOKENIZER = Tokenizer(4)


def engine(
    *, blocks: int = 1000, prefill: float = 100.0, decode: float = 0.5, scale: float = 1.0, seqs: int = 8
) -> Engine:
    return Engine(BlockCache(4, blocks), Rates(prefill, decode, scale, seqs))


def sequence(ids: range, output: int = 1) -> Sequence:
    prompt = TOKENIZER.ids(ids, 0)
    return Sequence(prompt, output, lambda: prompt.hashes)


def run(played: Engine) -> list[Sequence]:
    changed = []
    while (due := played.next_time()) is not None:
        changed += played.advance(due)
    return changed


def test_time_is_uncached_tokens_then_steps() -> None:
    played = engine()
    first = sequence(range(100), output=3)
    played.submit(first, 10.0)
    run(played)
    assert (first.started_at, first.first_token_at, first.finish_at) == (10.0, 11.0, 12.0)
    second = sequence(range(100), output=1)
    played.submit(second, 20.0)
    run(played)
    assert second.cached_tokens == 96
    assert second.first_token_at == pytest.approx(20.04)
    assert second.prefill_seconds == pytest.approx(0.04)


def test_the_scale_changes_times_and_not_costs() -> None:
    played = engine(scale=0.01)
    asked = sequence(range(100), output=3)
    played.submit(asked, 0.0)
    run(played)
    assert asked.first_token_at == pytest.approx(0.01)
    assert asked.finish_at == pytest.approx(0.02)
    assert asked.prefill_seconds == 1.0


def test_prefills_queue_and_decodes_overlap() -> None:
    played = engine()
    several = [sequence(range(n * 1000, n * 1000 + 100), output=5) for n in range(3)]
    for asked in several:
        played.submit(asked, 0.0)
    assert (played.running, played.waiting) == (1, 2)
    run(played)
    assert [asked.first_token_at for asked in several] == [1.0, 2.0, 3.0]
    assert [asked.finish_at for asked in several] == [3.0, 4.0, 5.0]


def test_one_waiting_for_the_same_prompt_finds_it_computed() -> None:
    played = engine()
    first, second = sequence(range(100)), sequence(range(100))
    played.submit(first, 0.0)
    played.submit(second, 0.0)
    run(played)
    assert second.cached_tokens == 96


def test_running_is_limited() -> None:
    played = engine(seqs=2, decode=10.0)
    several = [sequence(range(n * 1000, n * 1000 + 100), output=2) for n in range(3)]
    for asked in several:
        played.submit(asked, 0.0)
    played.advance(5.0)
    assert (played.running, played.waiting) == (2, 1)
    played.advance(11.0)
    assert several[0].phase is Phase.DONE
    assert several[2].started_at == 11.0


def test_a_full_cache_makes_them_wait() -> None:
    played = engine(blocks=30, decode=10.0)
    first, second = sequence(range(100), output=2), sequence(range(1000, 1100), output=2)
    played.submit(first, 0.0)
    played.submit(second, 0.0)
    played.advance(10.0)
    assert second.phase is Phase.WAITING
    run(played)
    assert second.started_at == first.finish_at


def test_events_keep_their_time_however_late_they_are_played() -> None:
    played = engine()
    first, second = sequence(range(100)), sequence(range(1000, 1100))
    played.submit(first, 0.0)
    played.submit(second, 0.0)
    played.advance(500.0)
    assert (second.started_at, second.finish_at) == (1.0, 2.0)


@pytest.mark.parametrize(("at", "phase"), [(0.5, Phase.WAITING), (1.5, Phase.PREFILL), (2.5, Phase.DECODE)])
def test_an_abort_frees_everything_in_every_phase(at: float, phase: Phase) -> None:
    played = engine()
    first, second = sequence(range(100)), sequence(range(1000, 1100), output=10)
    played.submit(first, 0.0)
    played.submit(second, 0.0)
    played.advance(at)
    assert second.phase is phase
    played.abort(second, at)
    run(played)
    assert second.phase is Phase.ABORTED
    assert (played.running, played.waiting, played.cache.usage) == (0, 0, 0.0)
    assert played.totals.finished["abort"] == 1


def test_an_aborted_prefill_keeps_the_blocks_it_finished() -> None:
    played = engine()
    first = sequence(range(100))
    played.submit(first, 0.0)
    played.abort(first, 0.5)
    again = sequence(range(100))
    played.submit(again, 1.0)
    assert again.cached_tokens == 48


def test_a_waiting_request_follows_an_aborted_prefill_at_once() -> None:
    played = engine()
    first, second = sequence(range(100)), sequence(range(1000, 1100))
    played.submit(first, 0.0)
    played.submit(second, 0.0)
    played.abort(first, 0.25)
    assert (second.phase, second.started_at) == (Phase.PREFILL, 0.25)


def test_reset_aborts_all() -> None:
    played = engine()
    several = [sequence(range(n * 1000, n * 1000 + 100), output=5) for n in range(4)]
    for asked in several:
        played.submit(asked, 0.0)
    played.advance(1.5)
    assert set(played.reset(1.5)) == set(several)
    assert all(asked.phase is Phase.ABORTED for asked in several)
    assert played.next_time() is None


def test_counters_are_in_tokens() -> None:
    played = engine()
    for _ in range(2):
        played.submit(sequence(range(100), output=3), 0.0)
        run(played)
    totals = played.totals
    assert (totals.queries, totals.hits, totals.prompt_tokens, totals.generation_tokens) == (200, 96, 200, 6)
    assert totals.finished["length"] == 2


@given(
    st.lists(
        st.tuples(st.floats(0, 5), st.integers(1, 40), st.integers(1, 5), st.floats(0, 5)), min_size=1, max_size=20
    )
)
def test_every_request_ends_and_nothing_is_left(plan: list[tuple[float, int, int, float]]) -> None:
    """Whatever is submitted and aborted when: prefills never overlap, and the books are empty at the end."""
    played = engine(blocks=14, seqs=3)
    submitted = []
    for at, size, output, _ in sorted(plan):
        asked = sequence(range(size), output)
        played.submit(asked, at)
        submitted.append(asked)
    impatient = [(5.0 + patience, asked) for asked, (*_, patience) in zip(submitted, sorted(plan), strict=True)]
    for at, asked in sorted(impatient, key=lambda pair: pair[0]):
        if at < 7.5:
            played.abort(asked, at)
    run(played)
    assert all(asked.over for asked in submitted)
    assert (played.running, played.waiting, played.cache.usage) == (0, 0, 0.0)
    spans = sorted((s.started_at, s.first_token_at) for s in submitted if s.phase is Phase.DONE)
    assert all(before[1] <= after[0] + 1e-9 for before, after in itertools.pairwise(spans))
