"""From a prompt to a worker: filters before the choice, what operators set about caches, and the reasons given."""

from __future__ import annotations

import math
from typing import Any

import pytest

from router.affinity import AffinityMap
from router.cachemodel import CacheProfile, Group, Kind
from router.calibration import TokenRatios
from router.errors import ModelNotFound, Unavailable
from router.policy import Reason
from router.prompt import Form, Prompt
from router.settings import CacheSettings, ModelSettings, Settings
from router.workers.health import Event
from router.workers.inquiry import worth
from router.workers.registry import Facts, Model, Registry, Worker
from router.workers.selection import Inquiry, Placement, Selector, profile_of

TEXT = b"a beginning that is shared. " * 400


class Fleet:
    """Workers that are ready and serve one model, and the selector before them."""

    def __init__(self, workers: int = 3, *, slots: int = 4, window: int | None = None, **settings: Any) -> None:
        self.registry = Registry()
        self.index = AffinityMap(10_000, 60, 10)
        self.selector = Selector(Settings(**settings), self.registry, self.index, TokenRatios(), lambda: 0.5)
        self.workers = [self.add(number, slots, window) for number in range(workers)]

    def add(self, number: int, slots: int, window: int | None) -> Worker:
        worker = self.registry.add(f"http://10.0.0.{number + 1}:8000", slots=slots)
        self.learn(worker, window=window)
        self.registry.feed(worker, Event.UP)
        self.index.set_epoch(worker.id, worker.epoch)
        return worker

    def learn(self, worker: Worker, *, window: int | None = None, profile: CacheProfile | None = None) -> None:
        facts = Facts(models={"m": Model("m", b"{}", window)}, profile=profile or CacheProfile())
        self.registry.learn(worker, facts)

    def inquire(self, text: bytes = TEXT, **fields: Any) -> Inquiry:
        return self.selector.inquire(Prompt(Form.CHAT, "m", prefix=text, size=len(text), **fields))

    def place(self, text: bytes = TEXT, *, now: float = 0.0, tried: tuple[str, ...] = ()) -> Placement:
        placement = self.selector.place(self.inquire(text), now, tried)
        assert placement is not None
        return placement

    def warm(self, text: bytes = TEXT) -> Worker:
        """Let some worker serve the prompt; it owns it from now on."""
        placement = self.place(text)
        placement.own(0.0)
        placement.release()
        return placement.worker


def test_who_served_the_beginning_is_chosen_again() -> None:
    fleet = Fleet()
    owner = fleet.warm()
    placement = fleet.place(TEXT + b"and more " * 100)
    assert placement.worker is owner
    assert placement.decision.reason is Reason.HIT


def test_the_lease_tells_what_the_worker_is_going_to_hold() -> None:
    """The other replicas hear of it, before the worker has answered."""
    fleet = Fleet()
    owner = fleet.warm()
    known = fleet.inquire().hashes
    placement = fleet.place(TEXT + b"and more " * 1_000)
    claim = placement.lease.claim
    assert placement.worker is owner
    assert claim is not None
    assert (claim.above, claim.blocks) == (known[-1], tuple(placement.inquiry.hashes[: len(known) - 1 : -1]))
    assert claim.blocks


def test_news_of_a_worker_that_was_removed_meanwhile_is_worth_nothing() -> None:
    fleet = Fleet()
    owner = fleet.warm()
    inquiry = fleet.inquire()
    found = worth(inquiry, {"gone": 3, owner.id: 3}, fleet.registry)
    assert list(found) == [owner.id]
    assert found[owner.id].blocks == 3


def test_a_full_owner_is_passed_over_and_the_reason_is_a_spill() -> None:
    fleet = Fleet(slots=1)
    owner = fleet.warm()
    assert fleet.place().worker is owner
    placement = fleet.place()
    assert placement.worker is not owner
    assert placement.decision.reason is Reason.SPILL
    assert placement.decision.runner_up is owner
    decision, _, candidates = fleet.selector.preview(fleet.inquire(), 0.0)
    assert (decision.reason, len(candidates)) == (Reason.SPILL, 3)


def test_a_full_worker_that_owns_nothing_makes_no_spill() -> None:
    fleet = Fleet(slots=1)
    fleet.place(b"one " * 300)
    placement = fleet.place(b"two " * 300)
    assert placement.decision.reason is Reason.MISS
    assert placement.decision.runner_up is None


def test_nobody_is_chosen_while_all_are_full() -> None:
    fleet = Fleet(slots=1)
    placements = [fleet.place() for _ in range(3)]
    assert fleet.selector.place(fleet.inquire(), 0.0) is None
    placements[0].release()
    assert fleet.place().worker is placements[0].worker


def test_a_worker_that_refused_is_spared_for_its_time() -> None:
    fleet = Fleet()
    owner = fleet.warm()
    fleet.selector.spare(owner, 5.0)
    assert fleet.place(now=4.9).worker is not owner
    assert fleet.place(now=5.0).worker is owner


def test_nobody_is_spared_where_all_have_refused() -> None:
    fleet = Fleet()
    owner = fleet.warm()
    for worker in fleet.workers:
        fleet.selector.spare(worker, 5.0)
    assert fleet.place(now=1.0).worker is owner


def test_what_a_worker_keeps_is_asked_of_it_though_it_is_spared() -> None:
    fleet = Fleet()
    keeper = fleet.workers[1]
    fleet.selector.spare(keeper, 5.0)
    inquiry = fleet.inquire()
    inquiry.pinned = keeper.id
    placement = fleet.selector.place(inquiry, 1.0)
    assert placement is not None
    assert placement.worker is keeper


def test_a_keeper_that_is_gone_does_not_stop_the_request() -> None:
    fleet = Fleet()
    inquiry = fleet.inquire()
    inquiry.pinned = "00000000"
    assert fleet.selector.place(inquiry, 0.0) is not None


def test_workers_that_were_tried_are_not_asked_again() -> None:
    fleet = Fleet()
    owner = fleet.warm()
    assert fleet.place(tried=(owner.id,)).worker is not owner
    with pytest.raises(Unavailable):
        fleet.place(tried=tuple(worker.id for worker in fleet.workers))


def test_a_window_must_hold_prompt_and_answer_if_any_does() -> None:
    fleet = Fleet(window=1_000)
    wide = fleet.workers[2]
    fleet.learn(wide, window=20_000)
    candidates = fleet.selector.candidates(fleet.inquire(b"x" * 4_000, max_tokens=10_000), 0.0)
    assert list(candidates) == [wide]
    # Only the engine counts tokens exactly: where none seems to fit, the widest may refuse.
    assert list(fleet.selector.candidates(fleet.inquire(b"x" * 4_000, max_tokens=90_000), 0.0)) == [wide]
    assert len(fleet.selector.candidates(fleet.inquire(b"x" * 400), 0.0)) == 3


def test_an_unknown_model_is_the_clients_error_and_an_unready_fleet_is_not() -> None:
    fleet = Fleet()
    with pytest.raises(ModelNotFound):
        fleet.selector.inquire(Prompt(Form.CHAT, "other"))
    with pytest.raises(Unavailable):
        Fleet(0).selector.inquire(Prompt(Form.CHAT, "m"))


def test_prompts_below_the_set_length_are_remembered_but_do_not_steer() -> None:
    fleet = Fleet(policy={"short_tokens": 500})
    short = b"w" * 1_600  # 400 tokens
    owner = fleet.warm(short)
    placement = fleet.place(short)
    assert placement.decision.reason is Reason.SHORT
    placement.release()
    grown = fleet.place(short + b"v" * 1_600)
    assert grown.decision.reason is Reason.HIT
    assert grown.worker is owner


def test_reuse_that_is_observed_or_off() -> None:
    observed = Fleet(models={"m": ModelSettings(reuse="observe")})
    observed.warm()
    placement = observed.place()
    assert placement.decision.reason is Reason.MISS
    assert max(match.blocks for match in observed.selector.matches(observed.inquire(), 0.0).values()) > 0
    off = Fleet(models={"m": ModelSettings(reuse="off")})
    off.warm()
    assert off.place().decision.reason is Reason.BYPASS
    assert off.index.statistics() == {worker.id: 0 for worker in off.workers}


WINDOWED = CacheProfile(block_size=16, groups=(Group(Kind.SLIDING_WINDOW, 16, 1024),))


@pytest.mark.parametrize(
    ("cache", "profile", "unit", "enabled"),
    [
        ({}, CacheProfile(block_size=16), 16, None),
        ({"enabled": False}, CacheProfile(block_size=16), 16, False),
        ({"enabled": True}, CacheProfile(enabled=False), 16, True),
        ({"block_size": 64}, CacheProfile(block_size=16), 64, None),
        ({"hit_unit": 4}, CacheProfile(block_size=16), 4, None),
        ({"hit_unit": 48}, CacheProfile(block_size=16), 48, None),
        ({"hit_unit": 5}, CacheProfile(block_size=16), 5, None),
        ({"block_size": 528, "hit_unit": 16}, CacheProfile(block_size=16), 16, None),
        ({"hit_unit": 8}, WINDOWED, 8, None),
        ({"enabled": False}, WINDOWED, 16, False),
    ],
    ids=str,
)
def test_what_an_operator_sets_about_a_cache_is_what_counts(
    cache: dict[str, Any], profile: CacheProfile, unit: int, enabled: bool | None
) -> None:
    fleet = Fleet(models={"m": ModelSettings(cache=CacheSettings(**cache))})
    for worker in fleet.workers:
        fleet.learn(worker, profile=profile)
    found = profile_of(fleet.workers[0], fleet.inquire())
    assert (found.unit, found.enabled) == (unit, enabled)
    assert found.capacity_tokens == profile.capacity_tokens
    owner = fleet.warm()
    placement = fleet.place()
    if enabled is False:
        assert placement.decision.reason is Reason.CACHE_DISABLED
        return
    assert placement.worker is owner
    assert placement.decision.match.resumable % unit == 0
    assert placement.step(2_800) >= unit
    assert placement.predicted(2_800) % unit == 0


def test_a_claim_steers_until_it_is_withdrawn() -> None:
    fleet = Fleet()
    first = fleet.place()
    second = fleet.place()
    assert second.worker is first.worker
    assert second.decision.reason is Reason.HIT
    first.release()
    second.release()
    assert fleet.place().decision.reason is Reason.MISS
    assert [worker.load for worker in fleet.workers].count(0) == 2


def test_work_learns_after_what_time_prefixes_are_used_again() -> None:
    fleet = Fleet(policy={"name": "work"})
    fleet.warm()
    assert fleet.registry.work.interval == 60.0
    fleet.place(TEXT, now=30.0).release()
    assert fleet.registry.work.interval == pytest.approx(60.0 - 0.02 * 30.0)
    fleet.place(TEXT + b"x" * 3 * len(TEXT), now=40.0).release()  # a quarter of it is no re-use of it
    assert fleet.registry.work.interval == pytest.approx(60.0 - 0.02 * 30.0)


def test_work_spares_a_full_cache_whose_oldest_entry_is_young() -> None:
    fleet = Fleet(policy={"name": "work"})
    owner = fleet.warm()
    fleet.index.set_capacity(owner.id, fleet.index.bytes_of(owner.id))
    inquiry = fleet.inquire(b"something else. " * 300)
    _, matches, candidates = fleet.selector.preview(inquiry, 1.0)
    terms = fleet.selector.terms(inquiry, candidates, matches, 1.0)
    assert terms[owner.id].evicting == pytest.approx(inquiry.tokens * math.exp(-1 / 180), rel=1e-3)
    assert all(terms[worker.id].evicting == 0 for worker in fleet.workers if worker is not owner)


def test_the_very_same_prompt_that_waits_somewhere_is_expected_to_be_there_whole() -> None:
    fleet = Fleet(policy={"name": "work"})
    first = fleet.place()
    second = fleet.place()
    assert second.worker is first.worker
    assert second.lease.uncached <= fleet.workers[0].facts.profile.unit
    first.own(0.0)
    first.release()
    second.release()
    assert not fleet.registry.work.twins
    assert fleet.place().lease.uncached > 50
