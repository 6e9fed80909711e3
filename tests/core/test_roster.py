"""Large fleets: the short list leads to the choice that a look at everybody would make."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.affinity import AffinityMap
from router.calibration import TokenRatios
from router.errors import Unavailable
from router.policy import Reason
from router.prompt import Form, Prompt
from router.settings import Settings
from router.work import Waiting
from router.workers import roster
from router.workers.health import Event
from router.workers.registry import Facts, Lease, Model, Registry, Worker
from router.workers.roster import EQUALS, HOLDERS, MOST, SMALL_FLEET, Rank, Rosters, by_load, by_work
from router.workers.selection import Inquiry, Placement, Selector

TEXT = b"a beginning that is shared. " * 400


class Fleet:
    def __init__(
        self, workers: int, policy: str, *, slots: int = 64, windows: tuple[int | None, ...] = (None,)
    ) -> None:
        self.registry = Registry()
        self.index = AffinityMap(100_000, 60, 10)
        chosen = Settings(policy={"name": policy})  # type: ignore[arg-type]
        self.selector = Selector(chosen, self.registry, self.index, TokenRatios(), lambda: 0.5)
        self.plain = Selector(chosen, self.registry, self.index, TokenRatios(), lambda: 0.5)
        self.plain._rosters.rank_by(None)
        self.workers = [self.add(number, slots, windows[number % len(windows)]) for number in range(workers)]
        self.leases: list[Lease] = []

    def add(self, number: int, slots: int = 64, window: int | None = None) -> Worker:
        worker = self.registry.add(f"http://10.0.{number // 250}.{number % 250 + 1}:8000", slots=slots)
        self.registry.learn(worker, Facts(models={"m": Model("m", b"{}", window)}))
        self.registry.feed(worker, Event.UP)
        self.index.set_epoch(worker.id, worker.epoch)
        return worker

    def inquire(self, text: bytes = TEXT, **fields: Any) -> Inquiry:
        return self.selector.inquire(Prompt(Form.CHAT, "m", prefix=text, size=len(text), **fields))

    def place(self, text: bytes = TEXT) -> Placement:
        placement = self.selector.place(self.inquire(text), 1.0)
        assert placement is not None
        return placement

    def disturb(self, rng: random.Random, steps: int) -> None:
        """Requests come and go on this replica and another, and workers change their state."""
        acts: list[Callable[[Worker], object]] = [
            lambda worker: self.leases.append(Lease(self.registry, worker, rng.choice((0, 10, 3_000, 40_000)))),
            lambda worker: self.leases.append(Lease(self.registry, worker, rng.randrange(9_000), silent=True)),
            lambda worker: [lease.first_byte() for lease in self.leases[rng.randrange(9) :: 9]],  # type: ignore[func-returns-value]
            lambda worker: [self.leases.pop().end() for _ in self.leases[:1]],  # type: ignore[func-returns-value]
            lambda worker: self.registry.set_remote(worker, "other", rng.randrange(3)),
            lambda worker: self.remote(worker, rng.randrange(20_000)),
            lambda worker: self.registry.set_draining(worker, rng.random() < 0.5),
            lambda worker: self.registry.feed(worker, rng.choice(list(Event))),
            lambda worker: self.registry.set_epoch(worker, worker.epoch + 1),
        ]
        for _ in range(steps):
            rng.choices(acts, (8, 1, 6, 2, 1, 1, 1, 1, 1))[0](rng.choice(self.workers))

    def remote(self, worker: Worker, tokens: int) -> None:
        worker.work.started(("other", tokens), Waiting(tokens), 0.0)
        self.registry.moved(worker)


def score(fleet: Fleet, inquiry: Inquiry, worker: Worker) -> float:
    terms = fleet.plain.terms(inquiry, [worker], fleet.plain.matches(inquiry, 1.0), 1.0)
    return terms[worker.id].score


@given(
    st.integers(0, 1 << 32), st.integers(SMALL_FLEET + 1, 50), st.integers(0, 400), st.sampled_from(["work", "slack"])
)
def test_the_choice_is_as_good_as_if_everybody_had_been_looked_at(
    seed: int, workers: int, steps: int, policy: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roster, "MOST", 1_000)
        rng = random.Random(seed)
        fleet = Fleet(workers, policy, slots=6, windows=(None, 2_000, 9_000))
        fleet.selector.preview(fleet.inquire(), 0.0)
        fleet.disturb(rng, steps)
        for worker in rng.sample(fleet.workers, rng.randrange(HOLDERS + 1)):
            hashes = fleet.inquire().hashes[: rng.randrange(23)]
            fleet.index.record(worker.id, fleet.index.epoch_of(worker.id) or 0.0, hashes, 0.0)
        if rng.random() < 0.3:
            for selector in (fleet.selector, fleet.plain):
                selector.spare(fleet.workers[seed % workers], 5.0)
        inquiry = fleet.inquire(TEXT + b"and more. " * rng.randrange(50))
        try:
            decision, _, _ = fleet.plain.preview(inquiry, 1.0)
        except Unavailable:
            with pytest.raises(Unavailable):
                fleet.selector.preview(inquiry, 1.0)
            return
        listed, _, _ = fleet.selector.preview(inquiry, 1.0)
        if policy == "work":
            assert score(fleet, inquiry, listed.worker) == score(fleet, inquiry, decision.worker)
        else:
            assert (listed.load, listed.min_load, listed.slack) == (decision.load, decision.min_load, decision.slack)
            # One of a large fleet alone is no case of its own.
            assert (listed.reason is decision.reason) or decision.reason is Reason.ONLY
        assert listed.match.resumable == decision.match.resumable or policy == "work"


@pytest.mark.parametrize("policy", ["work", "slack"])
def test_only_a_few_are_looked_at_however_many_there_are(policy: str) -> None:
    fleet = Fleet(500, policy)
    fleet.disturb(random.Random(1), 3_000)
    seen = [fleet.place().evidence for _ in range(roster.SMALL_FLEET)]
    looked = [len(evidence[0]) for evidence in seen if evidence is not None]
    assert looked
    assert max(looked) <= HOLDERS + MOST + EQUALS


@pytest.mark.parametrize("policy", ["work", "slack"])
def test_cold_prompts_spread_and_every_replica_puts_them_in_the_same_place(policy: str) -> None:
    one, two = Fleet(100, policy), Fleet(100, policy)
    counts: Counter[str] = Counter()
    for number in range(2_000):
        text = b"%d is a new beginning. " % number * 40
        worker = one.selector.preview(one.inquire(text), 0.0)[0].worker.id
        assert two.selector.preview(two.inquire(text), 0.0)[0].worker.id == worker
        counts[worker] += 1
    assert len(counts) == 100
    assert max(counts.values()) <= 45  # 20 on average; by hashing alone the largest of 100 is about 33


def test_a_worker_more_moves_few_cold_prompts() -> None:
    one, two = Fleet(60, "work"), Fleet(61, "work")
    texts = [b"%d is a new beginning. " % number * 40 for number in range(500)]
    moved = sum(
        one.selector.preview(one.inquire(text), 0.0)[0].worker.id
        != two.selector.preview(two.inquire(text), 0.0)[0].worker.id
        for text in texts
    )
    # Only those whose eight include the new one, and of these one in eight or so.
    assert moved <= 60


def test_who_holds_the_beginning_is_found_among_hundreds() -> None:
    for policy in ("work", "slack"):
        fleet = Fleet(300, policy)
        first = fleet.place()
        first.own(0.0)
        first.release()
        again = fleet.place(TEXT + b"and more. " * 30)
        assert (again.worker, again.decision.reason) == (first.worker, Reason.HIT)


def test_nobody_is_chosen_while_all_of_a_large_fleet_are_full() -> None:
    fleet = Fleet(20, "work", slots=1)
    held = [fleet.place(b"%d " % number * 900) for number in range(20)]
    assert len({placement.worker for placement in held}) == 20
    assert fleet.selector.place(fleet.inquire(), 0.0) is None
    held[7].release()
    assert fleet.place().worker is held[7].worker


def test_models_of_the_same_workers_share_a_roster_and_many_pools_have_none() -> None:
    registry = Registry()
    for number in range(40):
        registry.add(f"http://10.0.0.{number + 1}:8000", slots=1)
    pool = tuple(registry)
    rosters = Rosters(by_load)
    assert rosters.of("small", pool[:SMALL_FLEET]) is None
    assert rosters.of("a", pool) is rosters.of("b", tuple(registry)) is not None
    made = [rosters.of(f"m{number}", pool[: 20 + number]) for number in range(12)]
    assert [one is None for one in made] == [number >= roster.MAX_ROSTERS - 1 for number in range(12)]
    # The fleet has changed: what was known of all pools is void.
    assert rosters.of("a", pool[1:]) is not None
    assert rosters.of("m11", pool[:31]) is not None


def ready(workers: int, host: str = "10.0.0") -> tuple[Registry, tuple[Worker, ...]]:
    registry = Registry()
    for number in range(workers):
        worker = registry.add(f"http://{host}.{number + 1}:8000", slots=9)
        registry.feed(worker, Event.UP)
    return registry, tuple(registry)


@pytest.mark.parametrize("size", [300, 30_000])
def test_prompts_are_spread_over_all_that_are_equal(size: int) -> None:
    """Whether they are long enough for a block or not: each leads to some workers on the ring, together to all."""
    fleet = Fleet(200, "work")
    known = Rosters(by_work).of("m", fleet.workers)
    assert known is not None
    keys = [fleet.inquire(b"%d " % number * (size // 4)).key for number in range(2_000)]
    led_to = Counter(worker for key in keys for worker in known.lowest(key, lambda worker: True))
    assert len(led_to) == 200
    assert max(led_to.values()) < 8 * 2_000 * EQUALS / 200


@pytest.mark.parametrize("rank", [by_load, by_work])
def test_a_roster_knows_its_pool_from_the_beginning_and_nobody_else(rank: Rank) -> None:
    registry, pool = ready(40)
    leases = [Lease(registry, worker, 9_000) for worker in pool[:30]]
    known = Rosters(rank).of("m", pool)
    assert known is not None
    idle = known.lowest(7, lambda worker: True)
    assert len(idle) == EQUALS
    assert set(idle) < set(pool[30:])
    assert known.lowest(7, lambda worker: worker is pool[0]) in ([], [pool[0]])
    others, (other,) = ready(1, "10.0.1")
    leases += [Lease(others, other, 9_000) for _ in range(5)]
    known.move(other)
    assert known.lowest(7, lambda worker: worker is other) == []
    assert known.least_work(7, 0.0, lambda worker: worker is other) == []
    assert len(leases) == 35
