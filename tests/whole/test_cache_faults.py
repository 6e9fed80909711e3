"""Caches that do not keep what they promise: the answer is right, the metrics say why, and the map learns from it."""

from __future__ import annotations

import dataclasses
from typing import Any

import httpx
import pytest

from loadtest.conversation import Shape, user_turns
from loadtest.fleet import RouterProcess, until
from loadtest.simworker import SimConfig
from loadtest.simworker.process import SimProcess
from router.workers.registry import worker_id
from tests.whole.conftest import MODEL, Builder, Rig
from tests.whole.rig import total

FORMS = SimConfig(
    models=(MODEL,),
    cache="forms",
    block_size=256,
    prefix_match_unit=32,
    num_gpu_blocks=64,
    disk_blocks=400,
    time_scale=0.0,
    enable_prompt_tokens_details=True,
)
DENSE = SimConfig(models=(MODEL,), time_scale=0.0, enable_prompt_tokens_details=True, dev_mode=True)
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def dense(build_shared: Builder) -> Rig:
    return build_shared(workers=1, config=DENSE)


class Talk:
    """A conversation of prompts of 3,000 tokens and more, through one replica."""

    def __init__(self, router: RouterProcess, seed: int, headers: dict[str, str] | None = None) -> None:
        self._url = router.url
        self._headers = headers
        self._texts = iter(user_turns(seed, Shape(turns=12, first_tokens=3_000, growth_tokens=200, answer_tokens=8)))
        self.messages: list[dict[str, str]] = []
        self.answer = ""

    @property
    def body(self) -> dict[str, Any]:
        return {"model": MODEL, "max_tokens": 6, "messages": self.messages}

    def ask(self) -> dict[str, Any]:
        """The user's next turn, with its answer; returns the decision's record."""
        self.messages.append({"role": "user", "content": next(self._texts)})
        reply = ask(self._url, self.body)
        self.answer = reply.json()["choices"][0]["message"]["content"]
        asked = dict(self.body, messages=[*self.messages])
        self.messages.append({"role": "assistant", "content": self.answer})
        return {**self._record(reply.headers["x-request-id"]), "body": asked}

    def _record(self, name: str) -> dict[str, Any]:
        url = f"{self._url}/router/decisions?request_id={name}"
        records: list[dict[str, Any]] = httpx.get(url, headers=self._headers, trust_env=False, timeout=10).json()[
            "decisions"
        ]
        return records[0]


def ask(url: str, body: dict[str, Any]) -> httpx.Response:
    answer = httpx.post(url + CHAT, json=body, trust_env=False, timeout=30)
    assert answer.status_code == 200
    return answer


def said(url: str, body: dict[str, Any]) -> str:
    text: str = ask(url, body).json()["choices"][0]["message"]["content"]
    return text


def row(router: RouterProcess, worker: str) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in router.get("/router/workers")["workers"] if row["id"] == worker)
    return found


def fallbacks(router: RouterProcess, **labels: str) -> float:
    return total(router.metrics(), "router_post_hit_fallbacks_total", **labels)


def other_than(rig: Rig, worker: str) -> SimProcess:
    return next(process for process in rig.workers if worker_id(process.url) != worker)


def push_out(rig: Rig, worker: str) -> None:
    """Fill a worker's GPU with other prompts, so that what it had lies on its disk; the router sees nothing of it."""
    for seed in range(900, 906):
        (text,) = user_turns(seed, Shape(turns=1, first_tokens=4_000))
        said(rig.worker(worker).url, {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": text}]})


@pytest.mark.parametrize("fault", ["eviction_interrupted", "load_failure", "version_mismatch"])
def test_a_worker_that_falls_back_is_counted_and_met_again(build: Builder, fault: str) -> None:
    rig = build(workers=2, config=FORMS)
    router = rig.routers[0]
    other = Talk(router, 7)
    assert other.ask()["reason"] == "miss"
    assert other.ask()["verdict"] == "confirmed"
    talk = Talk(router, 1)
    worker = talk.ask()["worker"]
    if fault == "load_failure":
        push_out(rig, worker)
    rig.worker(worker).break_hits(fault)
    broken = talk.ask()
    # The worker is believed to hold it, and computes it anew.
    assert (broken["worker"], broken["reason"], broken["verdict"]) == (worker, "hit", "fell_short")
    assert broken["reported_cached_tokens"] < 0.5 * broken["predicted_cached_tokens"]
    # What it says is what a worker says that never had a cache of it.
    assert talk.answer == said(other_than(rig, worker).url, broken["body"])
    assert fallbacks(router, worker=worker, cause="not_resident") == fallbacks(router) == 1
    # It is true again what the map says, so the next turn goes there and meets all of it.
    healed = talk.ask()
    assert (healed["worker"], healed["reason"], healed["verdict"]) == (worker, "hit", "confirmed")
    assert healed["reported_cached_tokens"] > 0.9 * broken["reported_prompt_tokens"]
    assert fallbacks(router) == 1
    hits = row(router, worker)["hits"]
    assert hits["fell_short"] == 1
    assert hits["precision"] < 1.0
    assert row(router, worker)["epoch"] == pytest.approx(rig.worker(worker).state()["started_at"], abs=0.1)


def test_a_branch_behind_what_was_missing_is_forgotten(build: Builder) -> None:
    rig = build(workers=1, config=DENSE)
    router = rig.routers[0]
    talk = Talk(router, 1)
    talk.ask()
    talk.ask()
    blocks = row(router, rig.worker_ids[0])["blocks"]
    httpx.post(rig.workers[0].url + "/reset_prefix_cache", trust_env=False, timeout=10)
    # The first two thirds of the first message, then something else.
    text = talk.messages[0]["content"]
    half = {"role": "user", "content": text[: len(text) // 3 * 2] + " and now something else " * 40}
    ask(router.url, {"model": MODEL, "max_tokens": 2, "messages": [half]})
    for _ in until(5, "the branch to be forgotten"):
        if row(router, rig.worker_ids[0])["blocks"] < blocks:
            break
    assert total(router.metrics(), "router_index_evictions_total", cause="disproved") > 5
    explained = httpx.post(f"{router.url}/router/explain", json=talk.body, trust_env=False, timeout=10).json()
    assert 0.4 < explained["matched_blocks"] / explained["prompt"]["blocks"] < 0.7


@pytest.mark.redis
def test_a_cache_emptied_without_a_restart_is_noticed_by_all_replicas(build: Builder) -> None:
    rig = build(workers=1, replica_count=2, config=DENSE)
    one, two = rig.routers
    talks = [Talk(one, seed) for seed in range(10, 17)]
    for talk in talks:
        talk.ask()
    # Replicas that know nothing of a cache that works do not think that it stopped working.
    assert {talk.ask()["verdict"] for talk in talks} == {"confirmed"}
    for talk in talks:
        for _ in until(5, "the other replica to know"):
            if matched(two, talk.body):
                break
    worker = rig.worker_ids[0]
    epoch = row(two, worker)["epoch"]
    assert row(two, worker)["epoch_from"] == "start"
    httpx.post(rig.workers[0].url + "/reset_prefix_cache", trust_env=False, timeout=10)
    lost = [talk.ask() for talk in talks[:3]]
    assert {record["verdict"] for record in lost} == {"fell_short"}
    assert fallbacks(one, worker=worker, cause="not_resident") == 3
    for router in rig.routers:
        for _ in until(5, "the new epoch"):
            if row(router, worker)["epoch"] > epoch:
                break
        assert [matched(router, talk.body) for talk in talks[3:]] == [0] * 4
    assert total(one.metrics(), "router_emptied_caches_total", worker=worker) == 1
    found = [(row(router, worker)["epoch_from"], row(router, worker)["emptied"]) for router in rig.routers]
    assert found == [("emptied", 1), ("seen", 0)]
    # What was computed since the first of them is still known where that was seen.
    assert all(matched(one, talk.body) for talk in talks[:3])
    again = [talk.ask() for talk in talks]
    assert {record["verdict"] for record in again} == {"confirmed"}
    assert [record["predicted_cached_tokens"] > 0 for record in again] == [True] * 3 + [False] * 4
    assert fallbacks(one) == 3


def matched(router: RouterProcess, body: dict[str, Any]) -> int:
    explained = httpx.post(f"{router.url}/router/explain", json=body, trust_env=False, timeout=10).json()
    found: int = explained["matched_blocks"]
    return found


TEXT = "every form of answer says what came from the cache " * 80
FORMS_OF_ANSWERS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": TEXT}]},
    "/v1/completions": {"prompt": TEXT},
    "/v1/responses": {"input": TEXT},
    "/v1/messages": {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 4},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", FORMS_OF_ANSWERS)
def test_every_form_of_answer_is_compared(dense: Rig, path: str, stream: bool) -> None:
    router = dense.routers[0]
    body: dict[str, Any] = {"model": MODEL, "stream": stream, "cache_salt": f"{path.rpartition('/')[2]}-{stream}"}
    if stream and path in (CHAT, "/v1/completions"):
        body["stream_options"] = {"include_usage": True}
    records = []
    for _ in range(2):
        answer = httpx.post(router.url + path, json=body | FORMS_OF_ANSWERS[path], trust_env=False, timeout=30)
        assert answer.status_code == 200
        name = answer.headers["x-request-id"]
        records += router.get(f"/router/decisions?request_id={name}")["decisions"]
    first, again = records
    assert (first["verdict"], first["reported_cached_tokens"]) == ("confirmed", 0)
    assert again["verdict"] == "confirmed"
    assert again["predicted_cached_tokens"] > 500
    assert again["reported_cached_tokens"] > 0.8 * again["reported_prompt_tokens"]


# -- what a cache can't do by construction ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (dataclasses.replace(DENSE, enable_prefix_caching=False), "cache_disabled"),
        (dataclasses.replace(DENSE, cache="hybrid", block_size=6_400, num_gpu_blocks=40), "below_block_floor"),
    ],
)
def test_a_match_that_is_worth_nothing_says_why(build: Builder, config: SimConfig, reason: str) -> None:
    rig = build(workers=2, config=config)
    router = rig.routers[0]
    talk = Talk(router, 1)
    talk.ask()
    record = talk.ask()
    assert record["reason"] == reason
    assert record["matched_blocks"] > 0 or record["resumable_tokens"] == 0
    assert record["verdict"] == "confirmed"  # nothing was predicted, and nothing was there
    assert total(router.metrics(), "router_affinity_decisions_total", model=MODEL, reason=reason) == 1
    assert fallbacks(router) == 0
    reply = ask(router.url, talk.body)
    assert reply.headers["x-router-decision"].startswith(f"{reason}; match=")
    assert "resumable=0" in reply.headers["x-router-decision"]
    explained = httpx.post(f"{router.url}/router/explain", json=talk.body, trust_env=False, timeout=10).json()
    assert explained["reason"] == reason
    assert any(worker["withheld"] == reason and worker["matched_blocks"] > 0 for worker in explained["workers"])


def test_a_model_that_is_observed_is_predicted_and_calibrated_and_does_not_steer(build: Builder) -> None:
    admin = {"authorization": "Bearer canary"}
    observed = {
        "ROUTER_MODELS": f'{{"{MODEL}": {{"reuse": "observe"}}}}',
        "ROUTER_AUTH__ADMIN_KEY": "canary",
        # By requests in flight and the shared order alone, so that a prompt goes where it went before.
        "ROUTER_POLICY__NAME": "slack",
    }
    rig = build(workers=2, config=DENSE, environment=observed)
    router = rig.routers[0]
    drained, holder = rig.worker_ids
    httpx.post(f"{router.url}/router/workers/{drained}/drain", headers=admin, trust_env=False, timeout=10)
    talks = [Talk(router, seed, admin) for seed in range(12)]
    assert {talk.ask()["worker"] for talk in talks} == {holder}
    httpx.post(f"{router.url}/router/workers/{drained}/resume", headers=admin, trust_env=False, timeout=10)
    # By load alone, half of them go where nothing of them is.
    records = [talk.ask() for talk in talks]
    assert {record["reason"] for record in records} == {"miss"}
    assert {record["worker"] for record in records} == {drained, holder}
    # What is met by chance is predicted and compared all the same.
    for record in records:
        assert record["verdict"] == "confirmed"
        assert (record["predicted_cached_tokens"] > 2_000) == (record["worker"] == holder)
        assert (record["reported_cached_tokens"] > 2_000) == (record["worker"] == holder)
    httpx.post(rig.worker(holder).url + "/reset_prefix_cache", trust_env=False, timeout=10)
    talk = next(talk for talk, record in zip(talks, records, strict=True) if record["worker"] == holder)
    record = talk.ask()
    assert (record["worker"], record["reason"], record["verdict"]) == (holder, "miss", "fell_short")
    assert total(router.metrics(), "router_post_hit_fallbacks_total", worker=holder) == 1
