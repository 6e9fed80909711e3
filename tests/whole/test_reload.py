"""Settings that change under traffic: taken over without a request lost, or refused and the old ones kept."""

from __future__ import annotations

import dataclasses
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from loadtest.fleet import RouterProcess, until
from loadtest.simworker import SimProcess
from router.workers.registry import worker_id
from tests.whole.conftest import FAST, MODEL
from tests.whole.rig import CANARY, CHAT, chat_body, raise_descriptor_limit, samples, total


@dataclass
class Live:
    """A replica whose settings stand in a file, and its workers."""

    router: RouterProcess
    file: Path
    urls: list[str]
    settings: dict[str, Any] = field(default_factory=dict)

    def write(self, **settings: Any) -> None:
        """Other settings in the file, in place of those of the same names."""
        self.settings |= settings
        self.file.write_text(yaml.safe_dump(self.settings))

    def reloaded(self, result: str, count: float) -> None:
        """Wait until so many attempts have had this result."""
        for _ in until(15, f"{count} reloads: {result}"):
            if total(self.router.metrics(), "router_config_reloads_total", result=result) == count:
                return

    def ready(self, *urls: str) -> None:
        """Wait until exactly these workers are there and ready."""
        wanted = {worker_id(url): "ready" for url in urls}
        for _ in until(15, "the workers"):
            if {row["id"]: row["state"] for row in self.router.get("/router/workers")["workers"]} == wanted:
                return

    def chat(self, text: str = "hello", key: str = "", **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        body = chat_body(text, model=MODEL, **more)
        return httpx.post(self.router.url + CHAT, json=body, headers=headers, trust_env=False, timeout=30)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    raise_descriptor_limit()
    workers = SimProcess(FAST, count=3)
    workers.launch()
    try:
        workers.wait_ready()
        file = tmp_path / "router.yaml"
        settings: dict[str, Any] = {
            "workers": workers.urls[:2],
            "health": {"interval": 0.2, "timeout": 0.2},
            "auth": {"admin_key": "canary-of-the-admin"},
        }
        file.write_text(yaml.safe_dump(settings))
        with RouterProcess(tmp_path, [], config=file) as router:
            replica = Live(router, file, workers.urls, settings)
            replica.ready(*workers.urls[:2])
            yield replica
    finally:
        workers.stop()


@contextmanager
def traffic(live: Live, lanes: int = 4) -> Iterator[Counter[int]]:
    """Short requests and a few streams meanwhile, each on a connection that is kept; the statuses of all.

    0 is a broken connection, -1 a stream without its end.
    """
    statuses: Counter[int] = Counter()
    ended = threading.Event()

    def lane(number: int) -> None:
        with httpx.Client(trust_env=False, timeout=30) as client:
            turn = 0
            while not ended.is_set():
                turn += 1
                body = chat_body(f"{number} {turn}", model=MODEL, stream=number == 0, max_tokens=20)
                try:
                    answer = client.post(live.router.url + CHAT, json=body)
                except httpx.HTTPError:
                    statuses[0] += 1
                else:
                    cut = number == 0 and answer.status_code == 200 and not answer.text.endswith("data: [DONE]\n\n")
                    statuses[-1 if cut else answer.status_code] += 1

    threads = [threading.Thread(target=lane, args=(number,)) for number in range(lanes)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_workers_come_and_go_with_the_file_and_no_request_is_lost(live: Live) -> None:
    with traffic(live) as statuses:
        for count, names in enumerate(([2], [0, 1, 2], [1], [0, 1]), 1):
            urls = [live.urls[name] for name in names]
            live.write(workers=urls)
            live.router.signal(signal.SIGHUP)
            live.reloaded("ok", count)
            live.ready(*urls)
            before = statuses.total()
            for _ in until(15, "requests after the change"):
                if statuses.total() > before + 20:
                    break
    assert set(statuses) == {200}
    assert live.router.alive


def test_a_file_is_followed_without_a_signal_and_a_bad_one_changes_nothing(live: Live) -> None:
    with traffic(live) as statuses:
        live.write(limits={"choices": 2}, decision_headers=False)
        live.reloaded("ok", 1)
        assert live.chat(n=3).status_code == 400
        assert "x-router-worker" not in live.chat().headers
        good = live.file.read_text()
        live.file.write_text(good + "\nhealth: {fal: 3}\n")
        live.reloaded("refused", 1)
        live.file.write_text("workers: [ftp://a]\n")
        live.reloaded("refused", 2)
        assert live.chat(n=3).status_code == 400
        live.ready(*live.urls[:2])
        live.file.write_text(good.replace("choices: 2", "choices: 4"))
        live.reloaded("ok", 2)
        assert live.chat(n=3).status_code == 200
    assert set(statuses) == {200}
    log = live.router.log.read_text()
    assert "line 1: workers.0: " in log or "line 1: workers.0.url: " in log
    assert CANARY not in log


def test_keys_change_without_a_restart(live: Live, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alpha canary-key-1\n")
    assert live.chat().status_code == 200
    live.write(
        auth={"admin_key": "canary-of-the-admin", "keys_file": str(keys)}, tenancy={"salt_secret": "canary-salt"}
    )
    live.reloaded("ok", 1)
    assert [live.chat(key=key).status_code for key in ("", "canary-key-1", "canary-key-2")] == [401, 200, 401]
    keys.write_text("alpha canary-key-1\nalpha canary-key-2\nbeta canary-key-3\n")
    live.reloaded("ok", 2)
    assert [live.chat(key=key).status_code for key in ("canary-key-1", "canary-key-2")] == [200, 200]
    keys.write_text("alpha canary-key-2\nbroken\n")
    live.reloaded("refused", 1)
    assert [live.chat(key=key).status_code for key in ("canary-key-1", "canary-key-2")] == [200, 200]
    keys.write_text("alpha canary-key-2\n")
    live.reloaded("ok", 3)
    assert [live.chat(key=key).status_code for key in ("canary-key-1", "canary-key-2")] == [401, 200]
    metrics = live.router.metrics()
    assert {labels["tenant"] for labels, _ in samples(metrics, "router_tenant_blocks")} == {"alpha", "default"}
    assert "canary" not in metrics + live.router.log.read_text()


def test_other_slots_and_limits_take_effect_and_nothing_known_is_lost(live: Live) -> None:
    text = "what was said before the change " * 300
    first = live.chat(text)
    live.write(
        workers=[{"url": url, "slots": 7} for url in live.urls[:2]],
        policy={"name": "slack", "slack_above": 9},
        timeouts={"first_byte": 100.0, "keep_alive": 90.0},
        affinity={"max_blocks": 50_000},
        calibration={"correct": False},
    )
    live.reloaded("ok", 1)
    again = live.chat(text)
    assert again.headers["x-router-worker"] == first.headers["x-router-worker"]
    assert again.headers["x-router-decision"].startswith("hit")
    assert {row["slots"] for row in live.router.get("/router/workers")["workers"]} == {7}
    assert "changed, and in force after a restart: calibration.correct" in live.router.log.read_text()


def test_each_worker_gets_its_own_key_and_a_new_one_without_a_restart(live: Live, tmp_path: Path) -> None:
    locked = [SimProcess(dataclasses.replace(FAST, api_key=f"canary-key-{number}")) for number in range(2)]
    try:
        for process in locked:
            process.launch()
        for process in locked:
            process.wait_ready()
        first, second = (process.url for process in locked)
        wrong = [{"url": first, "api_key": "canary-key-0"}, {"url": second, "api_key": "canary-key-0"}]
        live.write(workers=wrong)
        live.reloaded("ok", 1)
        for _ in until(15, "the one whose key is right"):
            states = {row["id"]: row["state"] for row in live.router.get("/router/workers")["workers"]}
            if states == {worker_id(first): "ready", worker_id(second): "starting"}:
                break
        live.write(workers=[wrong[0], {"url": second, "api_key": "canary-key-1"}])
        live.reloaded("ok", 2)
        live.ready(first, second)
        served = {live.chat(f"{number}").headers["x-router-worker"] for number in range(12)}
        assert served == {worker_id(first), worker_id(second)}
        for number, process in enumerate(locked):
            keys = {dict(record.headers)[b"authorization"] for record in process.requests(path=CHAT)}
            assert keys == {b"Bearer canary-key-%d" % number}
        assert "canary" not in live.router.log.read_text()
    finally:
        for process in locked:
            process.stop()
