"""What replicas tell each other of their requests, and what they make of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.affinity import AffinityMap
from router.sync_codec import MAX_MESSAGE, News, encode, open_envelope, read
from router.sync_pack import pack
from router.sync_steps import (
    ANSWERED,
    ENDED,
    MAX_ANSWERED,
    MAX_WAITING,
    STARTED,
    STARTED_SILENT,
    Open,
    Openings,
    Step,
    Steps,
    open_at,
)
from router.sync_work import OwnWork, TheirWork
from router.work import Key, Waiting
from router.workers.registry import Lease, Registry, Worker

# Of 512 bytes each.
BLOCKS = tuple(range(1 << 10, 21 << 10, 1 << 10))


class Replica:
    def __init__(self) -> None:
        self.registry = Registry()
        self.index = AffinityMap(10_000, 60.0, 10.0)
        self.dropped = {"unknown_worker": 0}
        self.own = OwnWork(self.registry, 10_000)
        self.theirs = TheirWork(self.registry, self.index, lambda: 0.0, self.dropped)
        self.registry.hooks.step.append(self.own.add)
        self.sequence = 0
        for number in range(2):
            worker = self.registry.add(f"http://10.0.0.{number + 1}:8000", slots=9)
            self.registry.set_epoch(worker, 1.0)
            self.index.set_epoch(worker.id, 1.0)

    @property
    def worker(self) -> Worker:
        return next(iter(self.registry))

    def lease(self, tokens: int, *, claim: bool = False, whole: int = 0, silent: bool = False) -> Lease:
        lease = Lease(self.registry, self.worker, tokens, whole=whole, silent=silent)
        if claim:
            lease.claim = self.index.claim(self.worker.id, BLOCKS, 0.0)
        return lease

    def hear(self, other: Replica, *, account: bool = False) -> None:
        for message in other.own.account() if account else other.own.messages():
            other.sequence += 1
            data = encode("print", "other", other.sequence, message)
            envelope = open_envelope(data, "print")
            told = read(envelope)
            assert isinstance(told, Steps | Openings)
            for _ in range(2):  # the link may deliver twice
                self.theirs.take(envelope.sender, envelope.sequence, told)

    @property
    def ahead(self) -> float:
        return self.worker.work.ahead(0.0)


def steps(replica: Replica) -> list[tuple[int, int]]:
    """Number and kind of what the replica would tell now."""
    found: list[tuple[int, int]] = []
    for message in replica.own.messages():
        assert isinstance(message, Steps)
        found += [(step.number, step.what) for step in message.steps]
    return found


def test_a_start_is_heard_with_its_tokens_and_what_the_worker_will_hold() -> None:
    one, two = Replica(), Replica()
    lease = one.lease(5_000, claim=True, silent=True)
    two.hear(one)
    assert two.ahead == 5_000
    assert two.worker.work.waiting[("other", lease.key[1])].silent
    assert two.index.match(BLOCKS, 0.0) == {two.worker.id: len(BLOCKS)}
    lease.end()
    two.hear(one)
    assert (two.ahead, two.index.match(BLOCKS, 0.0)) == (0.0, {})


def test_what_is_to_be_computed_for_both_is_counted_once() -> None:
    one, two = Replica(), Replica()
    one.lease(5_000, claim=True)
    two.lease(5_000, claim=True)
    one.hear(two)
    two.hear(one)
    assert one.ahead == two.ahead == 5_000


def test_a_part_that_is_known_is_not_counted() -> None:
    one, two = Replica(), Replica()
    two.index.record(two.worker.id, 1.0, BLOCKS[:15], 0.0)
    one.lease(4_000, claim=True)
    two.hear(one)
    assert two.ahead == 1_000


def test_equal_prompts_are_counted_once_though_no_block_is_told() -> None:
    one, two = Replica(), Replica()
    one.lease(5_000, whole=7)
    two.lease(5_000, whole=7)
    two.lease(10, whole=8)
    two.hear(one)
    assert two.ahead == 5_010


def test_a_claim_outlives_the_first_byte_until_the_news_of_it_comes() -> None:
    one, two = Replica(), Replica()
    lease = one.lease(5_000, claim=True)
    two.hear(one)
    lease.first_byte()
    lease.end()
    two.hear(one)
    assert (two.ahead, len(two.worker.work.answered)) == (0.0, 0)
    assert two.index.match(BLOCKS, 0.0)
    assert not two.index.match(BLOCKS, 11.0)


def test_what_is_over_before_anybody_has_heard_of_it_stays_untold() -> None:
    one = Replica()
    for silent in (False, True):
        brief = one.lease(5_000, claim=True, silent=silent)
        brief.first_byte()
        brief.end()
    assert not one.own.messages()
    lasting = one.lease(100)
    brief = one.lease(200)
    brief.end()
    lasting.first_byte()
    assert steps(one) == [(lasting.key[1], STARTED), (lasting.key[1], ANSWERED)]


def test_of_a_silent_request_that_was_heard_of_the_end_says_all() -> None:
    one, two = Replica(), Replica()
    lease = one.lease(5_000, silent=True)
    two.hear(one)
    lease.first_byte()
    lease.end()
    assert steps(one) == [(lease.key[1], ENDED)]
    one, two = Replica(), Replica()
    lease = one.lease(5_000, silent=True)
    two.hear(one)
    lease.first_byte()
    two.hear(one)
    assert len(two.worker.work.answered) == 1
    lease.end()
    two.hear(one)
    assert (two.ahead, len(two.worker.work.answered)) == (0.0, 0)


def test_the_oldest_steps_give_way() -> None:
    one = Replica()
    one.own = OwnWork(one.registry, 2)
    leases = [one.lease(100) for _ in range(3)]
    for lease in leases:
        one.own.add(lease, "started")
    leases[1].end()
    one.own.add(leases[1], "ended")
    assert steps(one) == [(leases[2].key[1], STARTED)]


def test_a_replica_that_is_gone_leaves_no_claim() -> None:
    one, two = Replica(), Replica()
    one.lease(5_000, claim=True)
    two.hear(one)
    two.registry.drop_replica("other")
    two.theirs.drop("other")
    assert not two.index.match(BLOCKS, 0.0)


def test_a_replica_that_is_gone_leaves_no_work_though_its_counts_were_never_heard() -> None:
    one, two = Replica(), Replica()
    one.lease(5_000)
    one.lease(100).first_byte()
    two.hear(one)
    assert not two.worker.remote
    assert (len(two.worker.work.waiting), len(two.worker.work.answered)) == (1, 1)
    two.registry.drop_replica("other")
    assert (two.ahead, len(two.worker.work.waiting), len(two.worker.work.answered)) == (0.0, 0, 0)


def test_an_account_says_it_all_whatever_was_heard_before() -> None:
    one, two = Replica(), Replica()
    leases = [one.lease(100 * number, silent=number == 3) for number in range(1, 5)]
    two.hear(one)
    leases[0].first_byte()
    leases[1].end()
    one.own.clear()
    two.hear(one, account=True)
    queue = two.worker.work
    assert (set(queue.waiting), queue.answered) == (
        {("other", leases[2].key[1]), ("other", leases[3].key[1])},
        {("other", leases[0].key[1])},
    )
    assert queue.waiting[("other", leases[2].key[1])] == Waiting(300, silent=True)


def test_a_late_message_is_passed_over() -> None:
    two = Replica()
    start = Steps([Step(two.worker.id, 1, STARTED, 70)])
    two.theirs.take("other", 4, Steps([Step(two.worker.id, 1, ENDED)]))
    two.theirs.take("other", 3, start)
    assert two.ahead == 0.0
    two.theirs.take("third", 3, start)
    assert two.ahead == 70


def test_unknown_workers_and_broken_blocks_do_no_harm() -> None:
    two = Replica()
    steps = [Step("nobody", 1, what) for what in (STARTED, STARTED_SILENT, ANSWERED, ENDED)]
    two.theirs.take("other", 1, Steps([*steps, Step(two.worker.id, 1, STARTED, 70, 1_000, 0, None, b"odd")]))
    two.theirs.take("other", 2, Openings([Open("nobody", [(1, 2, 500, False, 3)], [4])]))
    assert (two.ahead, two.dropped["unknown_worker"]) == (70, 2)


@pytest.mark.parametrize("what", ["steps", "open"])
def test_whatever_there_is_to_tell_fits_into_messages(what: str) -> None:
    one, two = Replica(), Replica()
    worker = one.worker
    leases = [Lease(one.registry, worker, 1 << 35, whole=(1 << 64) - 1) for _ in range(MAX_WAITING + 500)]
    for lease in leases[:500]:
        lease.first_byte()
    if what == "steps":
        for lease in leases:
            lease.claim = one.index.claim(worker.id, [(1 << 64) - 1 - lease.key[1] * 200 - n for n in range(130)], 0.0)
    two.hear(one, account=what == "open")
    assert len(two.worker.work.waiting) == MAX_WAITING
    assert len(two.worker.work.answered) == 500


def test_an_account_beyond_all_bounds_is_cut() -> None:
    everything: dict[Key, Waiting | None] = {("", number): None for number in range(MAX_ANSWERED + 9)}
    everything |= {("", (1 << 52) + number): Waiting(1e12, True, (1 << 64) - 1) for number in range(MAX_WAITING + 9)}
    one = open_at("é" * 64, everything)
    assert (len(one.waiting), len(one.answered)) == (MAX_WAITING, MAX_ANSWERED)
    assert len(encode("p" * 64, "s" * 64, 1 << 53, Openings([one]))) <= MAX_MESSAGE


NUMBERS = st.integers(0, 1 << 53)
STEPS = st.builds(
    Step,
    st.text(max_size=16),
    NUMBERS,
    st.integers(STARTED, ENDED),
    st.integers(0, 10**12),
    st.integers(0, 1_000),
    st.integers(0, (1 << 64) - 1),
    st.none() | st.integers(0, (1 << 64) - 1),
    st.lists(st.integers(0, (1 << 64) - 1), max_size=8).map(pack),
)
OPENINGS = st.builds(
    Open,
    st.text(max_size=16),
    st.lists(
        st.tuples(NUMBERS, st.integers(0, 10**12), st.integers(0, 1_000), st.booleans(), st.integers(0, (1 << 64) - 1)),
        max_size=5,
    ),
    st.lists(NUMBERS, max_size=5),
)


@given(st.one_of(st.lists(STEPS, max_size=6).map(Steps), st.lists(OPENINGS, max_size=6).map(Openings)))
def test_what_is_read_is_what_was_written(message: Steps | Openings) -> None:
    told = read(open_envelope(encode("print", "sender", 1, message), "print"))
    assert not isinstance(told, News)
    assert told == message
