"""What somebody waits for is written before anything is done that can wait: the request, and then the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest import path_cost
from loadtest.bench import canned
from loadtest.bench.bodies import MODEL
from loadtest.path_cost import Bench
from router.dataplane import sockets

BODY = b'{"model":"%b","messages":[{"role":"user","content":"%b"}]}' % (MODEL.encode(), b"word " * 400)


class Seen(Bench):
    """Notes what the router knows whenever it writes to a worker or to the client, and is told that one is asked."""

    def __init__(self, directory: Path) -> None:
        self.moments: list[tuple[str, int, int, int]] = []
        super().__init__(directory, asyncio.get_running_loop())
        self.router.dispatcher.sent_hooks.append(lambda: self._note("sent"))
        honest = self.worker._written

        def written(connection: object, data: bytes) -> None:
            self._note("request")
            honest(connection, data)

        self.worker._written = written  # type: ignore[method-assign]

    def _answered(self, data: bytes) -> None:
        self._note("answer")
        super()._answered(data)

    def _note(self, what: str) -> None:
        load = sum(worker.load for worker in self.router.registry)
        self.moments.append((what, load, len(self.router.dispatcher._ring), len(self.router.index)))


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Seen:
    monkeypatch.setattr(path_cost, "configure_logging", lambda settings: None)
    monkeypatch.setattr(sockets, "open_connection", sockets.open_connection)  # the bench sets its own
    return Seen(tmp_path)


def _answers(count: int) -> Iterator[bytes]:
    return iter([canned.chat_answer(len(BODY), 0)] * count)


async def test_request_and_answer_leave_before_lease_record_and_map_are_kept(bench: Seen) -> None:
    await bench.requests([BODY], list(_answers(1)))  # opens the connection of one worker
    first = next(iter(bench.router.dispatcher._ring.find()))
    blocks = len(bench.router.index)
    assert blocks == first.blocks > 0
    worker = bench.router.registry.get(first.worker)
    assert worker is not None
    bench.moments.clear()
    longer = BODY.replace(b"word ", b"word and word ")
    bench.worker.answers = _answers(1)
    for other in bench.router.registry:  # only the one that has a connection is left
        bench.router.registry.set_draining(other, other is not worker)
    bench.send(longer)
    for _ in range(20):
        await asyncio.sleep(0)
    (request, sent, answer) = bench.moments
    # The claim counts as held, so the map is larger as soon as the request is on its way, and not before.
    assert request == ("request", 0, 1, blocks)
    assert sent[:3] == ("sent", 1, 2)
    assert sent[3] > blocks
    assert answer[:3] == ("answer", 1, 2)
    record = bench.router.dispatcher._ring.find()[0]
    assert (record.outcome, record.status) == ("ok", 200)
    assert worker.load == 0


async def test_where_a_connection_must_be_opened_the_request_is_not_on_its_way_yet(bench: Seen) -> None:
    await bench.requests([BODY], list(_answers(1)))
    assert [what for what, *_ in bench.moments] == ["request", "answer"]
    assert bench.moments[0][1] == 1  # its worker is counted on while the connection is opened


@pytest.mark.interpreted
async def test_what_fails_after_a_whole_answer_is_not_counted_as_another_end(
    bench: Seen, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no verdict")

    monkeypatch.setattr(bench.router.verdicts, "join", fail)
    await bench.requests([BODY, BODY], list(_answers(2)))
    assert "no verdict" in caplog.text
    outcomes = {
        sample.labels["outcome"]: sample.value
        for family in bench.router.metrics.collect()
        for sample in family.samples
        if sample.name == "router_outcomes_total"
    }
    assert {outcome: count for outcome, count in outcomes.items() if count} == {"ok": 2.0}
    assert all(worker.load == 0 for worker in bench.router.registry)
