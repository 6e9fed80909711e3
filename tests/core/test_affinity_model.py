"""The ownership map against brute force: whatever happens in whatever order, both say the same."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, invariant, multiple, rule

from router.affinity import AffinityMap, Delta, Touch
from router.hashing import HASH_BITS, WIDTH_MASK
from tests.core.affinity_model import Model, Use, check_books

WORKERS = [f"w{number}" for number in range(3)]
workers = st.sampled_from(WORKERS)
# A prompt is a path down a tree of blocks; its hashes are the nodes on the way. Few ends, so that prompts meet.
ENDS = [(0, 0, 0, 0, 0, 0), (0, 0, 0, 1, 0, 0), (0, 1, 0, 1, 0, 1), (1, 1, 1, 1, 1, 1)]
DEEPEST = 6
paths = st.builds(lambda end, depth: end[:depth], st.sampled_from(ENDS), st.integers(1, DEEPEST))
rarely = st.integers(0, 9).map(lambda number: number == 9)


def node(path: tuple[int, ...]) -> int:
    """A block of any weight."""
    number = int("1" + "".join(map(str, path)), 3)
    return number | (number & WIDTH_MASK) << HASH_BITS


def hashes_of(path: tuple[int, ...]) -> list[int]:
    return [node(path[:depth]) for depth in range(1, len(path) + 1)]


def tree() -> dict[int, int | None]:
    """The block above each block."""
    chains = [hashes_of(end) for end in ENDS]
    return {block: above for chain in chains for block, above in zip(chain, [None, *chain], strict=False)}


PARENTS = tree()
LEAVES = [hashes_of(end) for end in ENDS]


class Histories(RuleBasedStateMachine):
    """Everything that can happen to a map, with a ceiling so low that it is always met."""

    claims: Bundle[tuple[Touch, Use]] = Bundle("claims")
    max_blocks: ClassVar[int] = 14

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.index = AffinityMap(self.max_blocks, ttl_seconds=100, tentative_seconds=10)
        self.model = Model(self.max_blocks, 100, 10, PARENTS)
        for worker in WORKERS:
            self.index.set_epoch(worker, 1.0)
            self.model.epochs[worker] = 1.0

    @rule(seconds=st.sampled_from([0.5, 9.5, 10.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(worker=workers, path=paths, late=rarely)
    def record(self, worker: str, path: tuple[int, ...], late: bool) -> None:
        hashes = hashes_of(path)
        epoch = self.model.epochs.get(worker)
        given = (epoch or 0.0) - (1.0 if late else 0.0)
        delta = self.index.record(worker, given, hashes, self.now)
        if epoch is None or late:
            assert delta is None
            return
        known = self.model.depth(worker, hashes, self.now, tentative=False)
        base = hashes[known - 1] if known else None
        assert delta == Delta(worker, epoch, base, tuple(hashes[known:]))
        self.model.add(Use(worker, hashes[::-1], self.now + 100, tentative=False), self.now)

    @rule(target=claims, worker=workers, path=paths)
    def claim(self, worker: str, path: tuple[int, ...]) -> tuple[Touch, Use] | MultipleResults[tuple[Touch, Use]]:
        hashes = hashes_of(path)
        touch = self.index.claim(worker, hashes, self.now)
        use = self.model.claim(worker, hashes, self.now) if worker in self.model.epochs else None
        if use is None:
            assert touch is None
            return multiple()
        assert touch is not None
        return touch, use

    @rule(claim=claims)
    def withdraw(self, claim: tuple[Touch, Use]) -> None:
        self.index.withdraw(claim[0])
        self.model.drop(claim[1])
        self.model.tidy()

    @rule(worker=workers, path=paths, shared=st.integers(0, DEEPEST), late=rarely, told=st.booleans())
    def news(self, worker: str, path: tuple[int, ...], shared: int, late: bool, told: bool) -> None:
        """What another replica would tell, who knows what this one knows, or less, or what it only claims."""
        hashes = hashes_of(path)
        epoch = self.model.epochs.get(worker)
        known = min(shared, self.model.depth(worker, hashes, self.now, tentative=not told))
        if not all(self.model.live(worker, block, self.now) for block in hashes[:known]):
            known = 0
        base = hashes[known - 1] if known else None
        given = Delta(worker, (epoch or 0.0) - (1.0 if late else 0.0), base, tuple(hashes[known:]))
        assert self.index.apply(given, self.now) is (epoch is not None and not late)
        if epoch is not None and not late:
            self.model.add(Use(worker, hashes[::-1], self.now + 100, tentative=False), self.now)

    @rule(worker=workers, size=st.sampled_from([None, None, 0, 10_000, 1_000_000, 20_000_000, 60_000_000]))
    def room(self, worker: str, size: int | None) -> None:
        self.index.set_capacity(worker, size)
        self.model.capacities[worker] = 1 << 60 if size is None else size
        self.model.shrink(worker)

    @rule(worker=workers, step=st.sampled_from([-1.0, 0.0, 1.0, 1.0]))
    def restart(self, worker: str, step: float) -> None:
        epoch = self.model.epochs.get(worker)
        new = (epoch or 0.0) + step
        changed = epoch is None or step > 0
        assert self.index.set_epoch(worker, new) is changed
        if changed:
            self.model.epochs[worker] = new
            self.model.forget(worker)

    @rule(worker=workers)
    def forget(self, worker: str) -> None:
        self.index.forget(worker)
        self.model.epochs.pop(worker, None)
        self.model.capacities.pop(worker, None)
        self.model.forget(worker)

    @rule(worker=workers)
    def clear(self, worker: str) -> None:
        self.index.clear(worker)
        self.model.forget(worker)

    @rule()
    def tick(self) -> None:
        self.index.tick(self.now)
        self.model.expire(self.now)

    @rule(path=paths)
    def ask(self, path: tuple[int, ...]) -> None:
        self.compare(hashes_of(path))

    def compare(self, hashes: list[int]) -> None:
        found, expected = self.index.match(hashes, self.now), self.model.match(hashes, self.now)
        if self.model.has_hole(hashes, self.now):
            # Nothing is made up, and the worker with the most is found where it has not lost all of it.
            assert found.items() <= expected.items()
        else:
            assert found == expected

    @invariant()
    def both_say_the_same(self) -> None:
        for hashes in LEAVES:
            self.compare(hashes)
        for worker in WORKERS:
            owned = sum(1 for name, _ in self.model.pairs if name == worker)
            assert self.index.blocks_of(worker) == owned
            assert self.index.epoch_of(worker) == self.model.epochs.get(worker)
        assert len(self.index) == len(self.model.pairs)

    @invariant()
    def the_books_agree(self) -> None:
        check_books(self.index)

    @invariant()
    def every_pair_has_its_age(self) -> None:
        """Seen through the map's own books, since a match shows only the deepest block."""
        for (worker, block), use in self.model.pairs.items():
            touch = self.index._holdings.touch_of(self.index._owners[worker], block)
            assert touch is not None
            assert touch.tentative is use.tentative
            assert not touch.lives(use.expires)
            assert touch.lives(use.expires - 1e-3)
            age = self.index.age(worker, block, self.now)
            assert (age is None) is (use.expires <= self.now)

    @invariant()
    def both_drop_the_same_next(self) -> None:
        for worker in WORKERS:
            mine: list[int] = []
            owner = self.index._owners.get(worker)
            touch = owner.oldest if owner is not None else None
            while touch is not None:
                mine += touch.blocks
                touch = touch.later
            assert mine == [block for name, block in self.model.order() if name == worker]

    @invariant()
    def what_it_holds_fits(self) -> None:
        for worker in WORKERS:
            size = self.model.bytes_of(worker)
            capacity = self.model.capacities.get(worker, 1 << 60)
            assert self.index.bytes_of(worker) == size <= capacity
            known = worker in self.model.epochs and 0 < capacity < 1 << 60
            assert self.index.fill(worker) == (size / capacity if known else 0.0)

    @invariant()
    def what_is_recorded_has_no_holes(self) -> None:
        """A recorded block's parent is recorded too: nothing is evicted or expires before what lies deeper."""
        for (worker, block), use in self.model.pairs.items():
            parent = PARENTS[block]
            if use.expires > self.now and not use.tentative and parent is not None:
                above = self.model.live(worker, parent, self.now)
                assert above is not None
                assert not above.tentative
                assert above.expires >= use.expires


class RoomyHistories(Histories):
    """The same where nothing is evicted."""

    max_blocks = 10_000


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=40, stateful_step_count=40)
TestRoomyHistories = RoomyHistories.TestCase
TestRoomyHistories.settings = settings(max_examples=20, stateful_step_count=40)


steps = st.lists(
    st.tuples(st.integers(0, 1), workers, paths, st.sampled_from([0.0, 0.5, 50.0, 100.0])), min_size=1, max_size=40
)


def play(first: AffinityMap, second: AffinityMap, steps: list[tuple[int, str, tuple[int, ...], float]]) -> float:
    """Uses recorded by one of two maps, told to the other."""
    now = 0.0
    for worker in WORKERS:
        first.set_epoch(worker, 1.0)
        second.set_epoch(worker, 1.0)
    for at, worker, path, seconds in steps:
        now += seconds
        mine, other = (first, second) if at == 0 else (second, first)
        delta = mine.record(worker, 1.0, hashes_of(path), now)
        assert delta is not None
        assert other.apply(delta, now)
    return now


@settings(max_examples=60)
@given(steps, st.sampled_from([9, 15, 10_000]), st.sampled_from([None, 0, 100_000, 5_000_000, 30_000_000]))
def test_two_replicas_that_tell_each_other_everything_agree(
    steps: list[tuple[int, str, tuple[int, ...], float]], ceiling: int, capacity: int | None
) -> None:
    first, second = (AffinityMap(ceiling, ttl_seconds=100, tentative_seconds=10) for _ in range(2))
    for index in (first, second):
        index.set_capacity(WORKERS[0], capacity)
    now = play(first, second, steps)
    for hashes in LEAVES:
        assert first.match(hashes, now) == second.match(hashes, now)
    assert first.statistics() == second.statistics()
    assert first.evictions == second.evictions
    for worker in WORKERS:
        assert first.bytes_of(worker) == second.bytes_of(worker)
        assert first.fill(worker) == second.fill(worker) <= 1.0
        assert first.oldest_age(worker, now) == second.oldest_age(worker, now)


@settings(max_examples=40)
@given(steps, st.lists(st.tuples(workers, paths), max_size=5))
def test_a_claim_on_one_replica_changes_nothing_on_the_other(
    steps: list[tuple[int, str, tuple[int, ...], float]], claims: list[tuple[str, tuple[int, ...]]]
) -> None:
    first, second = (AffinityMap(10_000, ttl_seconds=100, tentative_seconds=10) for _ in range(2))
    now = play(first, second, steps)
    touches = [first.claim(worker, hashes_of(path), now) for worker, path in claims]
    for worker, path in claims:
        delta = first.record(worker, 1.0, hashes_of(path), now)
        assert delta is not None
        assert second.apply(delta, now)
    for touch in touches:
        if touch is not None:
            first.withdraw(touch)
    for hashes in LEAVES:
        assert first.match(hashes, now) == second.match(hashes, now)


@settings(max_examples=60)
@given(steps, st.lists(st.tuples(workers, paths), min_size=1, max_size=6), st.data())
def test_withdrawn_claims_leave_what_was_there_before(
    steps: list[tuple[int, str, tuple[int, ...], float]],
    claims: list[tuple[str, tuple[int, ...]]],
    data: st.DataObject,
) -> None:
    first, second = (AffinityMap(10_000, ttl_seconds=100, tentative_seconds=10) for _ in range(2))
    now = play(first, second, steps)
    before = [first.match(hashes, now) for hashes in LEAVES]
    held = first.statistics()
    touches = [touch for worker, path in claims if (touch := first.claim(worker, hashes_of(path), now)) is not None]
    for touch in data.draw(st.permutations(touches)):
        first.withdraw(touch)
    assert [first.match(hashes, now) for hashes in LEAVES] == before
    # A claim takes over what had expired, and does not give it back.
    assert all(held[worker] >= blocks for worker, blocks in first.statistics().items())
    check_books(first)
