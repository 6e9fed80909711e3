"""Cases of several replicas: what one learns the others know, and none of them is missed when it goes."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.fleet import RouterProcess, until
from tests.whole.rig import CHAT, QUICK, Json, Rig, building, chat_body, group, text_of, together, total

pytestmark = [pytest.mark.redis, pytest.mark.nginx]
SECRET = "canary-of-the-hash-secret"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with building(tmp_path_factory.mktemp("replicas")) as build:
        rig = build(
            group("trio", 3, decode_seconds_per_token=0.02),
            replica_count=2,
            nginx=True,
            settings={"ROUTER_AFFINITY__HASH_SECRET": SECRET, "ROUTER_TIMEOUTS__DRAIN_DELAY": "0.3"},
        )
        rig.secrets.add(SECRET)
        yield rig


def test_p78_turns_through_alternating_replicas_stay_on_their_worker(rig: Rig) -> None:
    kept = followed = 0
    for number in range(8):
        # Long enough to be worth a request more in flight: the news that the last one has ended may be late.
        messages: list[Json] = [{"role": "user", "content": text_of(f"conversation {number}", 9_000)}]
        worker = None
        for turn in range(4):
            replica = rig.routers[turn % 2].url
            body = {"model": "trio", "max_tokens": 2, "messages": messages}
            if turn:
                rig.heard(body, via=replica)
            answer = rig.post(CHAT, body, via=replica)
            landed = answer.headers["x-router-worker"]
            if worker is not None:
                followed += 1
                kept += landed == worker
            worker = landed
            messages = [*messages, answer.json()["choices"][0]["message"], {"role": "user", "content": f"more {turn}"}]
    assert kept >= 0.95 * followed


def test_p78_load_of_one_replica_counts_at_the_other(rig: Rig) -> None:
    before = rig.counts("trio")
    with rig.holding(9, "trio", via=rig.routers[0].url):
        for _ in until(5, "the other replica to hear of it"):
            if total(rig.routers[1].metrics(), "router_worker_load") == 9:
                break
        with rig.holding(9, "trio", via=rig.routers[1].url):
            now = rig.counts("trio")
    assert [after - then for after, then in zip(now, before, strict=True)] == [6, 6, 6]


def test_p84_replicas_with_different_hash_secrets_raise_an_alarm(rig: Rig, tmp_path: Path) -> None:
    assert rig.redis is not None
    alarms = [dropped(router) for router in rig.routers]
    urls = [worker.url for worker in rig.workers]
    settings = {**QUICK, "ROUTER_AFFINITY__HASH_SECRET": "another"}
    with RouterProcess(tmp_path, urls, redis_url=rig.redis.url, environment=settings) as stranger:
        stranger.wait_ready(3)
        for _ in until(5, "an alarm everywhere"):
            mine = [dropped(router) > before for router, before in zip(rig.routers, alarms, strict=True)]
            if all(mine) and dropped(stranger) > 0:
                break
    for router in rig.routers:
        assert "WARNING router.sync" in router.log.read_text()


def dropped(router: RouterProcess) -> float:
    return total(router.metrics(), "router_sync_dropped_total", cause="fingerprint")


def test_p77_a_rolling_restart_cuts_no_stream(rig: Rig) -> None:
    leaving, staying = rig.routers
    calls = [
        rig.open(chat_body(f"{number}", model="trio", stream=True, max_tokens=75), via=leaving.url)
        for number in range(50)
    ]
    beginnings = [call.first() for call in calls]
    leaving.signal(signal.SIGTERM)
    for _ in until(2, "the drain to begin"):
        if "draining: not ready any more, 50 requests in flight" in leaving.log.read_text():
            break
    assert rig.http.get(f"{staying.url}/ready").status_code == 200
    # Meanwhile others come through nginx, whichever replica it meets.
    statuses = {rig.chat(f"meanwhile {number}", model="trio").status_code for number in range(20)}
    answers = [beginning + call.rest() for beginning, call in zip(beginnings, calls, strict=True)]
    assert statuses == {200}
    for answer in answers:
        assert answer.count(b"data: ") == 77
        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert leaving.wait(10) == 0
    came_back(rig, leaving)
    # What the old process counted went with it.
    rig.sent = int(rig.metric("router_outcomes_total"))


def test_p79_what_a_replica_knew_survives_its_death(rig: Rig) -> None:
    dying, other = rig.routers
    prompts = [text_of(f"warmed through the one that dies {number}", 3_000) for number in range(6)]
    workers = [rig.chat(text, model="trio", via=dying.url).headers["x-router-worker"] for text in prompts]
    for text in prompts:
        rig.heard(chat_body(text, model="trio"), via=other.url)
    dying.kill()
    answers = [rig.chat(text, model="trio") for text in prompts]  # through nginx, which finds the other by itself
    assert [answer.headers["x-router-worker"] for answer in answers] == workers
    assert all(answer.headers["x-router-decision"].startswith("hit; match=") for answer in answers)
    came_back(rig, dying)
    rig.sent = int(rig.metric("router_outcomes_total"))


def test_p77_a_restart_of_every_replica_under_traffic_fails_nobody(rig: Rig) -> None:
    ended = False

    def client(number: int) -> list[str]:
        answers: list[str] = []
        while not ended:
            answer = rig.chat(f"{number} {len(answers)}", model="trio")
            answers.append("ok" if answer.status_code == 200 else answer.text)
            time.sleep(0.01)
        return answers

    def restarts() -> list[str]:
        nonlocal ended
        try:
            for router in rig.routers:
                router.signal(signal.SIGTERM)
                assert router.wait(20) == 0
                came_back(rig, router)
                time.sleep(2.2)  # nginx comes back to a replica after fail_timeout
        finally:
            ended = True
        return []

    lanes = together(5, lambda number: client(number) if number else restarts())
    answers = Counter(answer for lane in lanes for answer in lane)
    assert set(answers) == {"ok"}
    assert answers["ok"] > 100
    rig.sent = int(rig.metric("router_outcomes_total"))


def came_back(rig: Rig, router: RouterProcess) -> None:
    """Start a replica again at its address."""
    router.start()
    router.wait_ready(3)
    rig.acquainted()
