"""Cases of many: streams, requests, prompts and workers in numbers that must not cost more than their share."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadtest.fleet import RouterProcess
from router.affinity import AffinityMap
from router.calibration import TokenRatios
from router.prompt import Form, read_prompt
from router.settings import Settings
from router.workers.health import Event
from router.workers.registry import Facts, Model, Registry
from router.workers.selection import Selector
from tests.whole.rig import CHAT, QUICK, Call, Lane, Rig, building, chat_body, group, text_of, together, total


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with building(tmp_path_factory.mktemp("scale")) as build:
        rig = build(group("wide", 1, max_num_seqs=4_000), group("cheap", 1, fixed_cost=True))
        yield rig


@contextmanager
def streams(rig: Rig, count: int, seconds: float) -> Iterator[list[Call]]:
    """Streams that begin at once and go on after so long."""
    fault = {"kind": "stall", "unit": "event", "after": 2, "seconds": seconds}
    calls = []
    try:
        for number in range(count):
            body = chat_body(f"{number}", model="wide", stream=True, max_tokens=8)
            calls.append(rig.open(body, fault=fault))
        yield calls
    finally:
        for call in calls:
            call.close()


def assert_complete(answer: bytes) -> None:
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"data: ") == 10
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_p37_a_worker_sees_all_of_150_streams_at_once(rig: Rig) -> None:
    with streams(rig, 150, 30.0) as calls:
        assert all(call.first().startswith(b"HTTP/1.1 200") for call in calls)
        records = [record for record in rig.records(rig.groups["wide"][0]) if record.outcome == "open"]
        assert len(records) == 150
        assert len({record.connection for record in records}) == 150


def test_p38_a_thousand_short_requests_come_back_each_to_its_sender(rig: Rig) -> None:
    def times(url: str) -> list[float]:
        def lane(number: int) -> list[float]:
            taken = []
            with Lane(url) as connection:
                for turn in range(50):
                    token = f"token-{number}-{turn}"
                    began = time.monotonic()
                    status, body = connection.post(CHAT, chat_body("hi", model="wide", max_tokens=1, sim_echo=token))
                    taken.append(time.monotonic() - began)
                    assert status == 200
                    assert token.encode() in body
            return taken

        return [seconds for taken in together(20, lane) for seconds in taken]

    direct = times(rig.groups["wide"][0].url)
    through = times(rig.front)
    rig.sent += len(through)
    assert len(through) == 1_000
    # No measurement, only a guard against something absurd: this machine may be busy with other tests.
    assert statistics.median(through) - statistics.median(direct) < 0.25


def test_p39_a_thousand_streams_leave_health_checks_their_turn(rig: Rig) -> None:
    with streams(rig, 1_000, 2.0) as calls:
        answers = []
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
            began = time.monotonic()
            status = rig.http.get(f"{rig.front}/health").status_code
            answers.append((status, time.monotonic() - began))
            time.sleep(0.05)
        assert {status for status, _ in answers} == {200}
        assert max(taken for _, taken in answers) < 20.0
        for call in calls:
            assert_complete(call.rest())
    assert rig.http.get(f"{rig.front}/ready").status_code == 200
    assert rig.rows("wide")[0]["state"] == "ready"


def test_p86_memory_levels_off_under_ever_new_prompts(rig: Rig, tmp_path: Path) -> None:
    blocks = 4_000
    settings = {**QUICK, "ROUTER_AFFINITY__MAX_BLOCKS": str(blocks), "ROUTER_LIMITS__DECISIONS": "100"}
    filler = text_of("an ever new prompt", 4_000)
    with RouterProcess(tmp_path, [rig.groups["cheap"][0].url], environment=settings) as router:
        router.wait_ready(1)

        def send(batch: int) -> int:
            def lane(number: int) -> None:
                with Lane(router.url) as connection:
                    for turn in range(200):
                        body = chat_body(f"{batch} {number} {turn} {filler}", model="cheap")
                        assert connection.post(CHAT, body)[0] == 200

            together(4, lane)
            return resident(router.pid)

        send(0)
        before = send(1)
        after = [send(batch) for batch in (2, 3)]
        metrics = router.metrics()
    assert total(metrics, "router_index_blocks") <= blocks
    assert total(metrics, "router_index_evictions_total", cause="capacity") > blocks
    assert max(after) - before < 6 << 20


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_p90_a_decision_costs_no_more_than_its_share_of_the_fleet() -> None:
    few, many = decision_seconds(50), decision_seconds(500)
    # Ten times as many workers to compare: ten times the time would be linear.
    assert many < 25 * few


def decision_seconds(workers: int) -> float:
    """The best of some decisions among so many workers, all of which hold the prompt's beginning."""
    registry = Registry()
    index = AffinityMap(200_000, 5_400, 10)
    selector = Selector(Settings(), registry, index, TokenRatios(), lambda: 0.5)
    for number in range(workers):
        worker = registry.add(f"http://10.0.{number // 250}.{number % 250 + 1}:8000", slots=1_000)
        registry.learn(worker, Facts(models={"m": Model("m", b"{}", 1 << 20)}))
        registry.feed(worker, Event.UP)
        index.set_epoch(worker.id, 1.0)
    body = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"shared by all " * 2_000)
    inquiry = selector.inquire(read_prompt(Form.CHAT, body))
    for worker in registry:
        index.record(worker.id, 1.0, inquiry.hashes, 1.0)
    best = float("inf")
    for _ in range(30):
        began = time.perf_counter()
        placement = selector.place(inquiry, 2.0)
        best = min(best, time.perf_counter() - began)
        assert placement is not None
        assert placement.decision.reason.value == "hit"
        placement.release()
    return best
