"""Small and cold traffic, with no sign of load but the router's own leases."""

from __future__ import annotations

from collections import Counter

import pytest

from router.affinity import AffinityMap
from router.cachemodel import CacheProfile
from router.calibration import TokenRatios
from router.prompt import Form, Prompt
from router.settings import Settings
from router.workers.health import State
from router.workers.registry import Facts, Model, Registry
from router.workers.selection import Placement, Selector

POLICIES = ("work", "slack")


class Fleet:
    """Workers that nothing is known of but what this router has sent to them."""

    def __init__(self, workers: int, policy: str) -> None:
        self.now = 0.0
        self.registry = Registry(lambda: self.now)
        self.index = AffinityMap(200_000, 5_400.0, 300.0)
        settings = Settings(policy={"name": policy})  # type: ignore[arg-type]
        self.selector = Selector(settings, self.registry, self.index, TokenRatios(), lambda: 0.5)
        for number in range(workers):
            worker = self.registry.add(f"http://10.0.0.{number + 1}:8000", slots=1_024)
            worker.state = State.READY
            self.registry.learn(worker, Facts(models={"m": Model("m", b"{}")}, profile=CacheProfile(enabled=True)))
            self.index.set_epoch(worker.id, 1.0)
            worker.epoch = 1.0

    def place(self, text: bytes) -> Placement:
        prompt = Prompt(Form.CHAT, "m", stream=True, prefix=text, size=len(text))
        placement = self.selector.place(self.selector.inquire(prompt), self.now)
        assert placement is not None
        return placement

    def serve(self, text: bytes) -> str:
        """A request from its arrival to its end, before the next one comes."""
        placement = self.place(text)
        self.answer(placement, 2.0)
        return placement.worker.id

    def answer(self, placement: Placement, seconds: float = 0.0) -> None:
        self.now += seconds
        placement.lease.first_byte()
        placement.own(self.now)
        self.now += 1.0
        placement.release()

    def burst(self, texts: list[bytes]) -> Counter[str]:
        """Requests that all arrive before any is answered."""
        placements = [self.place(text) for text in texts]
        for placement in placements:
            self.answer(placement)
        return Counter(placement.worker.id for placement in placements)


def text(tokens: int, name: object) -> bytes:
    """A prompt of so many tokens that shares nothing with one of another name."""
    return (f"{name} says this and that. ".encode() * tokens)[: 4 * tokens]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("tokens", [2_000, 20_000])
def test_long_prompts_one_after_another_spread(policy: str, tokens: int) -> None:
    fleet = Fleet(4, policy)
    counts = Counter(fleet.serve(text(tokens, number)) for number in range(40))
    # Almost equally, where it is looked at who rests; by hashing alone where it is not.
    least, most = (8, 12) if policy == "work" else (4, 18)
    assert len(counts) == 4
    assert least <= min(counts.values()) <= max(counts.values()) <= most, counts


@pytest.mark.parametrize("policy", POLICIES)
def test_prompts_of_five_words_spread(policy: str) -> None:
    fleet = Fleet(4, policy)
    counts = Counter(fleet.serve(b"%d small words to you" % number) for number in range(20))
    if policy == "work":
        assert sorted(counts.values()) == [5, 5, 5, 5]
    else:
        assert len(counts) == 4
        assert max(counts.values()) <= 10, counts


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_five_words_over_and_over_are_no_reason_to_stay(policy: str) -> None:
    fleet = Fleet(4, policy)
    counts = Counter(fleet.serve(b"five words for you all") for _ in range(20))
    assert len(counts) == (4 if policy == "work" else 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_sessions_played_strictly_in_turn_stick_and_spread(policy: str) -> None:
    fleet = Fleet(4, policy)
    sessions = {number: text(3_000, f"session {number}") for number in range(8)}
    homes: dict[int, str] = {}
    for turn in range(6):
        for number in sessions:
            worker = fleet.serve(sessions[number])
            assert homes.setdefault(number, worker) == worker
            sessions[number] += text(400, f"turn {turn} of {number}")
    counts = Counter(homes.values())
    if policy == "work":
        assert sorted(counts.values()) in ([2, 2, 2, 2], [1, 2, 2, 3])
    else:
        assert len(counts) >= 3


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("workers", [2, 4, 8, 40])
def test_a_burst_behind_a_cold_prefix_goes_to_two_workers_at_most(policy: str, workers: int) -> None:
    shared = text(20_000, "the tools")
    counts = Fleet(workers, policy).burst([shared + text(300, f"request {number}") for number in range(8)])
    assert len(counts) <= 2, counts


@pytest.mark.parametrize("workers", [2, 4, 8, 40])
@pytest.mark.parametrize("tokens", [2_000, 6_000, 20_000, 100_000])
def test_a_burst_of_equal_cold_prompts_goes_to_two_workers_at_most(workers: int, tokens: int) -> None:
    counts = Fleet(workers, "work").burst([text(tokens, "the same")] * 16)
    assert len(counts) <= 2, counts


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("tokens", [2_000, 20_000])
def test_distinct_prompts_at_once_go_half_and_half(policy: str, tokens: int) -> None:
    counts = Fleet(2, policy).burst([text(tokens, f"{number:02}") for number in range(16)])
    assert sorted(counts.values()) == [8, 8]


@pytest.mark.parametrize("policy", POLICIES)
def test_short_prompts_at_once_spread_though_they_are_little_work(policy: str) -> None:
    fleet = Fleet(4, policy)
    busy = [fleet.place(text(200, number)) for number in range(3)]
    for placement in busy:
        placement.lease.first_byte()
    counts = Counter(fleet.place(b"%d small words to you" % number).worker.id for number in range(41))
    counts.update(placement.worker.id for placement in busy)
    assert sorted(counts.values()) == [11, 11, 11, 11]


def test_one_very_long_prompt_counts_as_the_work_it_is() -> None:
    fleet = Fleet(2, "work")
    long = fleet.place(text(100_000, "a book"))
    others = [fleet.place(text(4_000, number)) for number in range(20)]
    assert all(placement.worker is not long.worker for placement in others)
    for placement in others[:10]:
        fleet.answer(placement)
    fleet.answer(long, 20.0)
    # What was computed is no work any more: those that are still to be computed weigh more than its answer.
    assert fleet.place(text(4_000, "and another")).worker is long.worker
