"""Cases of replicas that stand still, of clocks that are set, and of prompts that are long, hot, or full of images."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from loadtest.fleet import RouterProcess, until
from tests.whole.rig import CHAT, QUICK, Rig, building, chat_body, group, text_of

# Read by the interpreter of a replica before anything else: its wall clock is wrong by what stands in a file.
STEPPED = """
import os, time
_true = time.time
def _wrong():
    with open(os.environ["STEP_FILE"]) as file:
        return _true() + float(file.read())
time.time = _wrong
"""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with building(tmp_path_factory.mktemp("lifecycle")) as build:
        rig = build(group("pair", 2, max_model_len=2_000_000, num_gpu_blocks=200_000), replica_count=2, nginx=True)
        yield rig


def test_l7_a_replica_that_stands_still_stops_nobody_but_its_own(rig: Rig) -> None:
    still, other = rig.routers
    still.signal(signal.SIGSTOP)
    try:
        for number in range(10):
            assert rig.chat(f"meanwhile {number}", model="pair", via=other.url).status_code == 200
        through = 0
        for number in range(6):
            body = json.dumps(chat_body(f"through {number}", model="pair")).encode()
            headers = {"content-type": "application/json"}
            try:
                answer = httpx.post(rig.front + CHAT, content=body, headers=headers, timeout=2, trust_env=False)
            except httpx.TimeoutException:
                rig.countable = False  # its client left, before or after the replica read it
            else:
                rig.sent += 1
                through += answer.status_code == 200
        assert through >= 2
    finally:
        still.signal(signal.SIGCONT)
    for router in rig.routers:
        assert rig.chat("afterwards", model="pair", via=router.url).status_code == 200


@pytest.mark.parametrize("hours", [1, -1])
def test_l10_a_clock_that_is_set_expires_nothing(rig: Rig, tmp_path: Path, hours: int) -> None:
    step = tmp_path / "step"
    step.write_text("0")
    (tmp_path / "sitecustomize.py").write_text(STEPPED)
    environment = {**QUICK, "PYTHONPATH": str(tmp_path), "STEP_FILE": str(step)}
    environment["ROUTER_AFFINITY__TTL_SECONDS"] = "600"
    with RouterProcess(tmp_path, [worker.url for worker in rig.groups["pair"]], environment=environment) as router:
        router.wait_ready(2)
        text = text_of(f"kept for {hours}", 8_000)
        first = rig.chat(text, model="pair", via=router.url)
        step.write_text(str(hours * 3600))
        for _ in range(3):
            again = rig.chat(text, model="pair", via=router.url)
            assert again.headers["x-router-worker"] == first.headers["x-router-worker"]
            assert again.headers["x-router-decision"].startswith("hit"), again.headers["x-router-decision"]
        states = {worker["state"] for worker in router.get("/router/workers")["workers"]}
        assert states == {"ready"}
        # These were counted by a replica of their own.
        rig.sent -= 4


def test_p33_long_prompts_and_images_are_routed_without_a_tokenizer(rig: Rig) -> None:
    image = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + base64.b64encode(b"p" * 500_000).decode()},
    }
    content = [{"type": "text", "text": "four pictures"}, image, image, image, image]
    pictures = {"model": "pair", "max_tokens": 2, "messages": [{"role": "user", "content": content}]}
    for body in (chat_body(text_of("a long story", 900_000), model="pair"), pictures):
        explained = rig.explain(body)
        assert explained["reason"] in ("miss", "hit", "short")
        assert rig.post(CHAT, body).status_code == 200
    for worker in rig.groups["pair"]:
        assert not [record for record in worker.requests() if "tokenize" in record.path]


def test_s4_a_prefix_made_hot_on_a_busy_worker_draws_nobody_into_its_queue(rig: Rig) -> None:
    hot = text_of("hot prefix", 12_000)
    owner = rig.worker(rig.chat(hot, model="pair", via=rig.routers[0].url).headers["x-router-worker"])
    url = rig.routers[0].url
    stall = {"kind": "stall", "seconds": 30}
    calls = []
    try:
        with rig.only(owner, "pair"):
            for number in range(20):
                body = chat_body(text_of(f"queue {number}", 20_000), model="pair")
                calls.append(rig.open(body, via=url, fault=stall))
            for _ in until(20, "the queue to be there"):
                if sum("queue" in str(record.body) for record in rig.records(owner, bodies=True)) >= 20:
                    break
        answer = rig.chat(hot, model="pair", via=url)
        assert answer.status_code == 200
        assert rig.worker(answer.headers["x-router-worker"]) is not owner
        assert answer.headers["x-router-decision"].startswith("spill")
    finally:
        for call in calls:
            call.close()


def test_s5_what_tells_workers_apart_can_be_hidden(rig: Rig, tmp_path: Path) -> None:
    environment = {**QUICK, "ROUTER_DECISION_HEADERS": "false"}
    with RouterProcess(tmp_path, [rig.groups["pair"][0].url], environment=environment) as router:
        router.wait_ready(1)
        answer = rig.chat("hidden", model="pair", via=router.url)
        rig.sent -= 1
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("x-router")]
