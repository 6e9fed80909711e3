"""The block cache of the simulated worker."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from loadtest.simworker.cache import BlockCache, Hold
from loadtest.simworker.tokens import Prompt, Tokenizer

BLOCK = 4
TOKENIZER = Tokenizer(BLOCK)


def prompt(*ids: int) -> Prompt:
    return TOKENIZER.ids(ids, 0)


def serve(cache: BlockCache, asked: Prompt, output: int = 0) -> int:
    """A whole request; returns the cached tokens."""
    hold = cache.reserve(asked, asked.tokens + output)
    assert hold is not None
    cache.commit(hold, asked.hashes)
    cache.release(hold)
    return hold.cached_tokens


def test_nothing_is_cached_at_first_and_whole_blocks_afterwards() -> None:
    cache = BlockCache(BLOCK, 100)
    asked = prompt(*range(10))
    assert serve(cache, asked) == 0
    assert serve(cache, asked) == 8


def test_an_aligned_identical_prompt_recomputes_its_last_block() -> None:
    cache = BlockCache(BLOCK, 100)
    asked = prompt(*range(12))
    serve(cache, asked)
    assert serve(cache, asked) == 8


def test_a_grown_prompt_finds_what_it_shares() -> None:
    cache = BlockCache(BLOCK, 100)
    serve(cache, prompt(*range(12)))
    assert serve(cache, prompt(*range(20))) == 12
    assert serve(cache, prompt(*range(9), 99, 98, 97, 96, 95)) == 8


def test_the_least_recently_used_prompt_goes_first_and_its_end_before_its_beginning() -> None:
    cache = BlockCache(BLOCK, 6)
    first, second = prompt(*range(100, 113)), prompt(*range(200, 209))
    serve(cache, first)  # three whole blocks
    serve(cache, second)  # two
    serve(cache, prompt(*range(300, 309)))  # needs three, one of them private: evicts two of the first prompt
    assert cache.match(first) == 4
    assert cache.match(second) == 8
    assert cache.evicted == 2


def test_blocks_of_running_requests_stay() -> None:
    cache = BlockCache(BLOCK, 4)
    running = prompt(*range(12))
    hold = cache.reserve(running, 12)
    assert hold is not None
    cache.commit(hold, running.hashes)
    assert cache.reserve(prompt(*range(50, 58)), 8) is None
    assert serve(cache, prompt(1, 2, 3)) == 0
    assert cache.match(running) == 8
    cache.release(hold)
    assert cache.reserve(prompt(*range(50, 58)), 8) is not None


def test_switched_off_it_never_matches() -> None:
    cache = BlockCache(BLOCK, 10, enabled=False)
    asked = prompt(*range(12))
    assert [serve(cache, asked), serve(cache, asked)] == [0, 0]
    assert cache.resident == 0


def test_clear_is_refused_while_a_request_runs() -> None:
    cache = BlockCache(BLOCK, 10)
    asked = prompt(*range(12))
    hold = cache.reserve(asked, 12)
    assert hold is not None
    assert not cache.clear()
    cache.release(hold)
    assert cache.clear()
    assert cache.match(asked) == 0


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.lists(st.integers(0, 2), min_size=1, max_size=60))
def test_the_match_is_the_shared_whole_blocks(stored: list[int], asked: list[int]) -> None:
    cache = BlockCache(BLOCK, 100)
    serve(cache, prompt(*stored))
    shared = 0
    for one, other in zip(stored, asked, strict=False):
        if one != other:
            break
        shared += 1
    expected = min(shared, len(stored) // BLOCK * BLOCK, len(asked) - 1) // BLOCK * BLOCK
    assert cache.match(prompt(*asked)) == expected


class CacheMachine(RuleBasedStateMachine):
    """Any interleaving of requests keeps the books."""

    blocks = 12
    holds = Bundle("holds")

    def __init__(self) -> None:
        super().__init__()
        self.cache = BlockCache(BLOCK, self.blocks)
        self.running = 0

    @rule(target=holds, ids=st.lists(st.integers(0, 1), min_size=1, max_size=24), output=st.integers(0, 12))
    def admit(self, ids: list[int], output: int) -> tuple[Hold | None, Prompt]:
        asked = prompt(*ids)
        matched = self.cache.match(asked)
        hold = self.cache.reserve(asked, asked.tokens + output)
        if hold is not None:
            self.running += 1
            assert hold.cached_tokens == matched < asked.tokens
        return hold, asked

    @rule(entry=holds, depth=st.integers(0, 6))
    def compute(self, entry: tuple[Hold | None, Prompt], depth: int) -> None:
        hold, asked = entry
        if hold is not None and (hold.blocks or hold.private):
            self.cache.commit(hold, asked.hashes[:depth])
            done = min(len(hold.blocks) * BLOCK, (asked.tokens - 1) // BLOCK * BLOCK)
            assert self.cache.match(asked) >= done

    @rule(entry=consumes(holds))
    def finish(self, entry: tuple[Hold | None, Prompt]) -> None:
        if entry[0] is not None:
            self.cache.release(entry[0])
            self.running -= 1

    @precondition(lambda self: self.running == 0)
    @rule()
    def idle_means_unused(self) -> None:
        assert self.cache.usage == 0.0

    @invariant()
    def never_more_than_it_has(self) -> None:
        assert 0.0 <= self.cache.usage <= 1.0
        assert self.cache.resident <= self.blocks


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestCacheMachine = CacheMachine.TestCase
