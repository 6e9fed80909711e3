"""Cases of workers that are not plain vLLM, and of settings that must either work or be refused."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.fleet import ROOT, ROUTER, RouterProcess, free_port, until
from tests.whole.rig import CHAT, QUICK, Rig, building, chat_body, group, text_of

WORKER_KEY = "canary-of-the-workers"
HYBRID: dict[str, Any] = {"mamba_cache_mode": "align", "max_model_len": 65_536}
CONFIG = """
policy:
  short_tokens: 200
models:
  no-reuse: {reuse: "off"}
  watched: {reuse: observe}
  no-cache: {cache: {enabled: false}}
  coarse: {cache: {hit_unit: 2048}}
"""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    directory = tmp_path_factory.mktemp("workers")
    config = directory / "router.yaml"
    config.write_text(CONFIG)
    settings = ("no-reuse", "watched", "no-cache", "coarse", "ordinary")
    with building(directory) as build:
        rig = build(
            group("plain", 2, metrics=False),
            group("locked", 1, api_key=WORKER_KEY),
            group("hybrid-528", 1, block_size=528, mamba_block_size=528, **HYBRID),
            group("hybrid-768", 1, block_size=16, mamba_block_size=768, sliding_window=1024, **HYBRID),
            group("several", 2, models=settings),
            config=config,
            settings={"ROUTER_AUTH__WORKER_API_KEY": WORKER_KEY},
        )
        rig.secrets.add(WORKER_KEY)
        yield rig


def reason(rig: Rig, model: str, text: str) -> str:
    answer = rig.chat(text, model=model)
    assert answer.status_code == 200, answer.text
    return str(answer.headers["x-router-decision"]).partition(";")[0]


def test_a_replica_listens_once_it_has_looked_at_its_workers(rig: Rig, tmp_path: Path) -> None:
    slow = rig.groups["plain"][0]
    slow.add_faults({"path": "/health", "action": {"kind": "status", "status": 200, "delay": 0.4}, "times": 20})
    nobody = f"http://127.0.0.1:{free_port()}"
    patient = {**QUICK, "ROUTER_HEALTH__TIMEOUT": "2"}
    try:
        with RouterProcess(tmp_path, [slow.url, nobody], environment=patient) as router:
            answer = rig.http.post(router.url + CHAT, json=chat_body("the very first", model="plain"))
            assert answer.status_code == 200
    finally:
        slow.clear_faults()


def test_p31_a_worker_without_metrics_is_counted_by_the_router_itself(rig: Rig) -> None:
    assert {row["state"] for row in rig.rows("plain")} == {"ready"}
    assert {row["engine"]["running"] for row in rig.rows("plain")} == {None}
    before = rig.counts("plain")
    with rig.holding(10, "plain"):
        now = rig.counts("plain")
    assert [after - then for after, then in zip(now, before, strict=True)] == [5, 5]
    log = rig.routers[0].log.read_text()
    for row in rig.rows("plain"):
        assert f"worker {row['id']}: its cache, load and restarts are not known exactly: /metrics: status 404" in log


@pytest.mark.parametrize(("model", "block"), [("hybrid-528", 528), ("hybrid-768", 768)])
def test_p83_a_hybrid_with_inflated_blocks_is_ready_and_falls_back(rig: Rig, model: str, block: int) -> None:
    [row] = rig.rows(model)
    assert row["state"] == "ready"
    assert row["cache"]["hit_unit"] == block
    # Less than a block is shared: affinity stands aside and says so.
    short = text_of(f"{model} short", 2_400)
    assert reason(rig, model, short) == "only"
    assert reason(rig, model, short) == "below_block_floor"
    long = text_of(f"{model} long and shared", 24_000)
    assert reason(rig, model, long) == "only"
    answer = rig.chat(long, model=model)
    assert answer.headers["x-router-decision"].startswith("hit; match=")
    resumable = int(answer.headers["x-router-decision"].partition("resumable=")[2].partition(";")[0])
    assert resumable > 0
    assert resumable % block == 0


def test_p93_reuse_off_is_visible(rig: Rig) -> None:
    text = text_of("routed by load alone", 4_000)
    assert [reason(rig, "no-reuse", text) for _ in range(2)] == ["bypass", "bypass"]


def test_p93_observe_predicts_and_does_not_steer(rig: Rig) -> None:
    text = text_of("watched but not steered", 4_000)
    assert reason(rig, "watched", text) == "miss"
    body = chat_body(text, model="watched")
    terms = rig.explain(body)
    assert terms["reuse"] == "observe"
    assert max(row["matched_blocks"] for row in terms["workers"]) > 0
    assert terms["reason"] == "miss"


def test_p93_a_cache_said_to_be_off_is_not_counted_on(rig: Rig) -> None:
    text = text_of("the operator knows better", 4_000)
    assert reason(rig, "no-cache", text) == "miss"
    assert reason(rig, "no-cache", text) == "cache_disabled"


def test_p93_a_hit_unit_that_was_set_is_used(rig: Rig) -> None:
    below, above = text_of("less than the unit", 6_000), text_of("far more than the unit", 24_000)
    reason(rig, "coarse", below)
    assert reason(rig, "coarse", below) == "below_block_floor"
    reason(rig, "coarse", above)
    answer = rig.chat(above, model="coarse")
    decision = answer.headers["x-router-decision"]
    assert decision.startswith("hit; match=")
    assert int(decision.partition("resumable=")[2].partition(";")[0]) in {2048, 4096}


def test_p93_short_prompts_are_routed_by_load_once_a_length_is_set(rig: Rig) -> None:
    text = text_of("short by the setting", 700)
    assert [reason(rig, "ordinary", text) for _ in range(2)] == ["short", "short"]
    longer = f"{text} {text_of('grown', 3_000)}"
    assert reason(rig, "ordinary", longer) == "hit"


def test_p93_settings_that_mean_nothing_stop_the_start(tmp_path: Path) -> None:
    config = tmp_path / "router.yaml"
    config.write_text("policy: {nmae: slack}\nmodels: {m: {reuse: sometimes}}\nlimits: {body_bytes: 0}\nworkes: []\n")
    words = [*ROUTER, "serve", "--config", str(config), "--port", "0"]
    environment = {**os.environ, "ROUTER_POLICY__NAME": "fastest"}
    ended = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode not in (0, None)
    for problem in ("nmae", "name", "reuse", "body_bytes", "workes"):
        assert problem in ended.stderr
    assert "Traceback" not in ended.stderr


def test_p94_probes_and_requests_carry_the_workers_key(rig: Rig) -> None:
    [row] = rig.rows("locked")
    assert row["state"] == "ready"
    answer = rig.post(
        CHAT, chat_body("with a key of its own", model="locked"), headers={"authorization": "Bearer mine"}
    )
    assert answer.status_code == 200
    record = rig.records(rig.groups["locked"][0])[-1]
    assert [value for name, value in record.headers if name.lower() == b"authorization"] == [
        b"Bearer " + WORKER_KEY.encode()
    ]
    for _ in until(5, "another look at its models"):
        looks = rig.groups["locked"][0].requests(path="/v1/models")
        if len(looks) > 1:
            break
    assert {look.status for look in looks} == {200}
