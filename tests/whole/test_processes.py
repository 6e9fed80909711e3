"""Several processes behind one port: they serve as one, and the end of one costs its own requests alone."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from loadtest.fleet import ROOT, ROUTER, RedisProcess, RouterProcess, find_redis, until
from loadtest.simworker import SimConfig
from loadtest.simworker.process import SimProcess, start_workers
from tests.whole.conftest import QUICK_HEALTH, require
from tests.whole.rig import ADMIN_KEY, AS_ADMIN, Call, samples, total

pytestmark = pytest.mark.redis

MODEL = "sim-model"
COUNT = 3
CHAT = "/v1/chat/completions"
# An answer of twenty tokens takes a second.
PACED = SimConfig(models=(MODEL,), prefill_tokens_per_second=500_000.0, decode_seconds_per_token=0.05)
QUICK = {**QUICK_HEALTH, "ROUTER_TIMEOUTS__DRAIN_DELAY": "0.1", "ROUTER_AUTH__ADMIN_KEY": ADMIN_KEY}


class Rig:
    """Workers, a Redis, and a router of three processes."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        require(find_redis(), "redis-server")
        self._stack = stack
        news = stack.enter_context(RedisProcess(directory))
        self.workers: list[SimProcess] = stack.enter_context(start_workers(2, PACED))
        urls = [worker.url for worker in self.workers]
        flags = ["--processes", str(COUNT)]
        self.router = RouterProcess(directory, urls, redis_url=news.url, flags=flags, environment=QUICK)
        stack.enter_context(self.router)
        self.http = stack.enter_context(httpx.Client(trust_env=False, timeout=20))
        for number in range(1, COUNT + 1):
            for _ in until(20, "every process to know its workers and the others"):
                mine = {"process": str(number)}
                ready = total(self.metrics(), "router_worker_state", state="ready", **mine) == len(urls)
                if ready and total(self.metrics(), "router_sync_peers", **mine) == COUNT - 1:
                    break

    @property
    def url(self) -> str:
        return self.router.url

    def metrics(self) -> str:
        return self.get("/metrics").text

    def get(self, path: str) -> httpx.Response:
        # Over a connection of its own, and so from any of the processes.
        with httpx.Client(trust_env=False, timeout=20) as client:
            return client.get(self.url + path, headers=AS_ADMIN)

    def post(self, path: str) -> httpx.Response:
        with httpx.Client(trust_env=False, timeout=20) as client:
            return client.post(self.url + path, headers=AS_ADMIN)

    def chat(self, text: str = "hello") -> httpx.Response:
        with httpx.Client(trust_env=False, timeout=20) as client:
            return client.post(self.url + CHAT, json=body(text, tokens=1))

    def stream(self, tokens: int = 20) -> Stream:
        stream = Stream(self.url, tokens)
        self._stack.callback(stream.close)
        return stream

    def children(self) -> list[int]:
        return children_of(self.router.pid)


class Stream:
    """A paced answer under way; it knows from its request id which process serves it."""

    def __init__(self, url: str, tokens: int) -> None:
        asked = json.dumps(body("stream", tokens=tokens, stream=True)).encode()
        self._call = Call(url, CHAT, asked, {"content-type": "application/json"})
        self._data = self._call.first()
        found = re.search(rb"x-request-id: (\w{12})", self._data)
        assert found is not None
        assert b"200 OK" in self._data
        self.process = found[1]

    def close(self) -> None:
        self._call.close()

    def runs(self) -> bool:
        """Whether more comes after what is here already."""
        try:
            self._call.socket.setblocking(False)
            while True:
                try:
                    if not self._call.socket.recv(65536):
                        return False
                except BlockingIOError:
                    self._call.socket.settimeout(30)
                    return bool(self._call.first())
        except ConnectionError:
            return False

    def whole(self) -> bool:
        """Read to the end: whether it is there."""
        try:
            self._data += self._call.rest()
        except ConnectionError:
            return False
        return b"data: [DONE]" in self._data


def body(text: str, tokens: int, **more: object) -> dict[str, object]:
    return {"model": MODEL, "max_tokens": tokens, "messages": [{"role": "user", "content": text}], **more}


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(tmp_path, stack)


def test_requests_reach_all_processes_and_one_scrape_counts_them(rig: Rig) -> None:
    assert len(rig.children()) == COUNT
    answers = []
    for _ in until(20, "requests to reach all processes"):
        answers.append(rig.chat())
        if len({answer.headers["x-request-id"][:12] for answer in answers}) == COUNT:
            break
    assert {answer.status_code for answer in answers} == {200}
    text = rig.metrics()
    assert total(text, "router_requests_total", status="200") == len(answers)
    by_process = Counter[str]()
    for labels, value in samples(text, "router_requests_total"):
        by_process[labels["process"]] += int(value)
    served = Counter(answer.headers["x-request-id"][:12] for answer in answers)
    assert sorted(by_process.values()) == sorted(served.values())
    assert text.count("# TYPE router_requests_total counter") == 1
    assert {labels["process"] for labels, _ in samples(text, "router_processes")} == {"1", "2", "3"}


def test_a_decision_is_found_through_any_process(rig: Rig) -> None:
    request_id = rig.chat().headers["x-request-id"]
    for _ in range(2 * COUNT):
        found = rig.get(f"/router/decisions?request_id={request_id}").json()["decisions"]
        assert [record["request_id"] for record in found] == [request_id]


def test_a_prompt_that_one_process_served_is_known_to_all(rig: Rig) -> None:
    text = "what one of them has seen " * 60
    first = rig.chat(text)
    others = {first.headers["x-request-id"][:12]}
    for _ in until(20, "every process to be asked"):
        again = rig.chat(text + "and more")
        if again.headers["x-router-decision"].startswith("hit"):
            assert again.headers["x-router-worker"] == first.headers["x-router-worker"]
            others.add(again.headers["x-request-id"][:12])
        if len(others) == COUNT:
            break


def test_a_killed_process_loses_its_own_requests_alone_and_is_replaced(rig: Rig) -> None:
    streams = [rig.stream(tokens=10_000) for _ in range(12)]
    lives = {stream.process for stream in streams}
    victim = rig.children()[0]
    os.kill(victim, signal.SIGKILL)
    # What comes to the place of the dead waits there for its successor.
    answers = [rig.chat().status_code for _ in range(20)]
    for _ in until(20, "the death to be noticed"):
        if not alive(victim):
            break
    assert answers == [200] * 20
    outcome = {life: {stream.runs() for stream in streams if stream.process == life} for life in lives}
    assert all(len(same) == 1 for same in outcome.values())
    assert sum(same == {False} for same in outcome.values()) <= 1
    for _ in until(20, "the successor"):
        if len({labels["process"] for labels, _ in samples(rig.metrics(), "router_processes")}) == COUNT:
            break
    assert len(rig.children()) == COUNT
    assert victim not in rig.children()
    assert f"(pid {victim}) died (signal 9)" in rig.router.log.read_text()


def test_a_process_that_is_told_to_leave_is_replaced_and_loses_nothing(rig: Rig) -> None:
    streams = [rig.stream() for _ in range(12)]
    leaver = rig.children()[1]
    os.kill(leaver, signal.SIGTERM)
    for _ in until(20, "the one that leaves to end"):
        assert rig.chat().status_code == 200
        if not alive(leaver):
            break
    assert all(stream.whole() for stream in streams)
    for _ in until(20, "its successor"):
        if len({labels["process"] for labels, _ in samples(rig.metrics(), "router_processes")}) == COUNT:
            break


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_drain_finishes_what_runs_and_leaves_nothing_behind(rig: Rig, number: signal.Signals) -> None:
    streams = [rig.stream() for _ in range(12)]
    pids = rig.children()
    rig.router.signal(number)
    if number == signal.SIGTERM:
        # Service managers may signal the children too, which is the same signal and not a second one.
        for pid in pids:
            os.kill(pid, number)
    assert all(stream.whole() for stream in streams)
    assert rig.router.wait(20) == 0
    assert not any(alive(pid) for pid in pids)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", rig.router.port)) != 0


def test_a_hangup_has_every_process_read_the_settings_again(rig: Rig) -> None:
    pids = rig.children()
    rig.router.signal(signal.SIGHUP)
    for _ in until(20, "all processes to read the settings"):
        if rig.router.log.read_text().count("settings read again") >= COUNT:
            break
    assert rig.children() == pids
    assert rig.chat().status_code == 200


def test_a_second_signal_ends_all_at_once(rig: Rig) -> None:
    streams = [rig.stream(tokens=10_000) for _ in range(6)]
    pids = rig.children()
    rig.router.signal(signal.SIGTERM)
    for _ in until(10, "the drain to begin"):
        if rig.router.log.read_text().count("draining: not ready any more") == COUNT:
            break
    rig.router.signal(signal.SIGTERM)
    assert rig.router.wait(20) == 0
    assert not any(alive(pid) for pid in pids)
    assert not any(stream.whole() for stream in streams)


def test_processes_whose_parent_was_killed_finish_what_runs_and_end(rig: Rig) -> None:
    streams = [rig.stream() for _ in range(6)]
    pids = rig.children()
    rig.router.kill()
    assert all(stream.whole() for stream in streams)
    for _ in until(20, "all processes to end"):
        if not any(alive(pid) for pid in pids):
            break


def test_a_change_of_the_fleet_is_made_on_all_and_outlives_a_process(rig: Rig) -> None:
    worker = rig.get("/router/workers").json()["workers"][0]["id"]
    assert rig.post(f"/router/workers/{worker}/drain").status_code == 200
    os.kill(rig.children()[0], signal.SIGKILL)
    for _ in until(20, "the successor"):
        text = rig.metrics()
        if len({labels["process"] for labels, _ in samples(text, "router_processes")}) == COUNT:
            break
    for _ in range(3 * COUNT):
        rows = {row["id"]: row["draining"] for row in rig.get("/router/workers").json()["workers"]}
        assert rows[worker]
        assert sum(rows.values()) == 1


def test_two_routers_never_share_a_port_unawares(rig: Rig, tmp_path: Path) -> None:
    words = [*ROUTER, "serve", "--port", str(rig.router.port), "--processes", "2"]
    words += ["--redis", "redis://127.0.0.1:1", "--worker", rig.workers[0].url]
    second = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert second.returncode == 1
    assert "can't listen on 127.0.0.1" in second.stderr


def test_processes_that_never_stay_alive_are_given_up(tmp_path: Path) -> None:
    code = (
        "from router import processes, restarts\n"
        "from router.settings import Settings\n"
        "restarts.FIRST_SECONDS = 0.001\n"
        "def die(settings, listener, member): raise SystemExit(3)\n"
        "processes.serve = die\n"
        "print('code', processes.run(Settings(processes=2, port=0)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout == "code 1\n"
    assert "no process stays alive: giving up" in done.stderr


def test_settings_that_turn_out_to_be_wrong_end_it_at_once(tmp_path: Path) -> None:
    words = [
        *ROUTER,
        "serve",
        "--port",
        "0",
        "--processes",
        "2",
        "--worker",
        "http://127.0.0.1:1",
    ]
    environment = {**os.environ, "ROUTER_DECISION_FILE__PATH": str(tmp_path / "nowhere" / "decisions.jsonl")}
    done = subprocess.run(
        [*words, "--redis", "redis://127.0.0.1:1"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "decision_file.path: can't write" in done.stderr
    assert done.stdout == ""


def test_several_processes_without_redis_are_refused() -> None:
    words = [*ROUTER, "serve", "--processes", "2", "--worker", "http://127.0.0.1:1"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "prefix-router: 2 processes share what they know over Redis: name it with --redis URL, or run one\n"
    )
