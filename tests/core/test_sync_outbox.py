"""What waits to be told, and the order in which it is told."""

from __future__ import annotations

import msgspec

from router.affinity import Delta
from router.sync_codec import Digest, Message, News
from router.sync_outbox import Outbox
from router.sync_pack import encoded
from router.sync_steps import Openings, Steps
from router.workers.registry import Lease, Registry, Worker

EPOCH = 5.0


class Box:
    """An outbox that hears of a registry with two workers, as the sync would put it there."""

    def __init__(self, most: int = 100) -> None:
        self.registry = Registry()
        self.outbox = Outbox(self.registry, most)
        self.registry.hooks.step.append(lambda lease, _: self.outbox.changed.add(lease.worker.id))
        self.registry.hooks.step.append(self.outbox.work.add)
        self.workers = [self.registry.add(f"http://10.0.0.{number}:8000", slots=9) for number in (1, 2)]
        for worker in self.workers:
            self.registry.set_epoch(worker, EPOCH)

    def lease(self, worker: int = 0) -> Lease:
        return Lease(self.registry, self.workers[worker], 100)

    def delta(self, block: int) -> Delta:
        return Delta(self.workers[0].id, EPOCH, None, (block,))

    def encoded(self, block: int) -> msgspec.Raw:
        return encoded(self.workers[0].id, EPOCH, None, (block,))

    def all(self) -> list[Message]:
        found: list[Message] = []
        while (message := self.outbox.next()) is not None:
            found.append(message)
        return found

    def rows(self) -> dict[str, int]:
        """Requests in flight by worker, of those workers of which something is told now."""
        return {
            row.worker: row.in_flight for message in self.all() if isinstance(message, News) for row in message.rows
        }

    def named(self, worker: int = 0) -> Worker:
        return self.workers[worker]


def test_ownership_goes_before_the_end_of_requests_and_questions_go_last() -> None:
    box = Box()
    lease = box.lease()
    box.all()
    box.outbox.post(Digest([]))
    lease.end()
    box.outbox.deltas.append(box.encoded(1))
    news, steps, digest = box.all()
    assert isinstance(news, News)
    assert isinstance(steps, Steps)
    assert isinstance(digest, Digest)
    assert (len(news.encoded), [row.in_flight for row in news.rows]) == (1, [0])
    assert not box.all()


def test_a_load_that_is_what_the_others_know_is_not_told_again() -> None:
    box = Box()
    first, second = box.lease(), box.lease()
    assert box.rows() == {box.named().id: 2}
    second.end()
    second = box.lease()
    assert box.rows() == {}
    first.end()
    assert box.rows() == {box.named().id: 1}
    second.end()
    assert box.rows() == {box.named().id: 0}


def test_an_epoch_is_told_though_the_load_is_the_same() -> None:
    box = Box()
    box.lease()
    box.all()
    box.registry.set_epoch(box.named(), EPOCH + 1)
    box.outbox.changed.add(box.named().id)
    assert box.rows() == {box.named().id: 1}


def test_after_a_break_everything_that_changes_is_told() -> None:
    box = Box()
    lease = box.lease()
    box.all()
    box.outbox.post(Digest([]))
    box.outbox.cut_off()
    assert not box.all()
    box.outbox.changed.add(box.named().id)
    assert box.rows() == {box.named().id: 1}
    box.outbox.deltas.append(box.encoded(1))
    lease.end()
    box.outbox.cut_off()
    assert [len(message.encoded) for message in box.all() if isinstance(message, News)] == [1]


def test_a_statement_tells_all_loads_and_is_what_the_others_know() -> None:
    box = Box()
    lease = box.lease(worker=1)
    news = box.outbox.statement("heartbeat", 7, heard=True)
    assert (news.kind, news.blocks) == ("heartbeat", 7)
    assert {row.worker: row.in_flight for row in news.rows} == {box.named(0).id: 0, box.named(1).id: 1}
    steps, account = box.all()
    assert isinstance(steps, Steps)
    assert isinstance(account, Openings)
    # What the account tells has been heard of, so its end must be told.
    lease.end()
    assert [type(message) for message in box.all()] == [News, Steps]


def test_what_is_under_way_is_not_told_where_nobody_listens() -> None:
    box = Box()
    box.lease()
    box.outbox.work.clear()
    box.outbox.statement("heartbeat", 0, heard=False)
    assert not box.all()


def test_the_oldest_ownership_gives_way_when_the_box_is_full() -> None:
    box = Box(most=2)
    gone = []
    for block in range(3):
        gone.append(box.outbox.make_room())
        box.outbox.deltas.append(box.encoded(block))
    assert gone == [False, False, True]
    assert list(box.outbox.deltas) == [box.encoded(1), box.encoded(2)]


def test_a_worker_that_was_removed_is_not_told_of() -> None:
    box = Box()
    box.lease()
    box.registry.remove(box.named())
    assert box.rows() == {}
