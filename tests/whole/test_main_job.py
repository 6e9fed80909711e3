"""The main job, with everything real: a conversation keeps its worker, whichever replica its turns come through."""

from __future__ import annotations

import json
import random
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from openai import OpenAI

from loadtest.conversation import Shape, play, user_turns
from loadtest.fleet import until
from loadtest.spread import Load, judge, play_all
from tests.whole.conftest import MODEL, Builder, Rig

pytestmark = [pytest.mark.redis, pytest.mark.nginx]


@pytest.fixture(scope="module")
def rig(build_shared: Builder) -> Rig:
    return build_shared(workers=3, replica_count=2, nginx=True)


def chat(url: str, text: str, **fields: object) -> httpx.Response:
    body = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": text}], **fields}
    return httpx.post(f"{url}/v1/chat/completions", json=body, trust_env=False, timeout=30)


def test_five_turns_through_alternating_replicas_stay_on_one_worker(rig: Rig) -> None:
    results = play([router.url for router in rig.routers], user_turns(11), MODEL)
    assert len({result.worker for result in results}) == 1
    assert results[0].reason in {"miss", "hit"}
    for result in results[1:]:
        assert result.reason == "hit"
        # All 32 KB of small blocks; whether the wide one after them is whole depends on the turn.
        assert result.matched is not None
        assert int(result.matched.partition("/")[0]) >= 64
        assert result.cached_tokens is not None
        assert result.prompt_tokens is not None
        assert result.cached_tokens > 0.9 * result.prompt_tokens - 300


def test_a_replica_routes_a_prompt_that_only_the_other_has_served(rig: Rig) -> None:
    text = "the other replica saw this first " * 60
    first = chat(rig.routers[0].url, text)
    for _ in until(5, "the news to arrive"):
        second = chat(rig.routers[1].url, text + "and now more")
        if second.headers["x-router-decision"].startswith("hit"):
            break
    assert second.headers["x-router-worker"] == first.headers["x-router-worker"]


def test_the_decision_is_in_header_log_ring_and_metrics(rig: Rig) -> None:
    text = "say why you chose it " * 80
    chat(rig.routers[0].url, text)
    answer = chat(rig.routers[0].url, text + "again")
    router = rig.routers[0]
    worker = answer.headers["x-router-worker"]
    reason, match, *_ = answer.headers["x-router-decision"].split("; ")
    assert reason == "hit"
    blocks = match.removeprefix("match=")
    line = f"[PREFIX] hit: {worker} keeps {blocks} blocks (slots=0 min=0 slack="
    for _ in until(5, "the line in the log"):
        if line in router.log.read_text():
            break
    [record] = router.get(f"/router/decisions?request_id={answer.headers['x-request-id']}")["decisions"]
    assert record["worker"] == worker
    assert record["reported_cached_tokens"] > 0
    assert record["verdict"] == "confirmed"
    assert f'router_affinity_decisions_total{{model="{MODEL}",reason="hit"}}' in router.metrics()
    assert text[:40] not in router.log.read_text()


def test_many_conversations_keep_their_workers_and_spread(rig: Rig) -> None:
    import asyncio

    load = Load(conversations=60, arrival_seconds=3.0, think_seconds=0.1, shape=Shape(4, 4_500, 60, 8, 6.0))
    result = judge("slack", asyncio.run(play_all(rig.front, load)), load, len(rig.workers))
    assert result.failed == 0
    # A blind rule over three workers keeps a good third; a busy machine makes queues, and queues make spills.
    assert result.kept >= 0.8
    assert result.spread <= 1.6


def test_a_restarted_worker_stops_matching_on_both_replicas(build: Builder) -> None:
    rig = build(workers=2, replica_count=2)
    text = "remember me " * 200
    first = chat(rig.routers[0].url, text)
    owner = first.headers["x-router-worker"]
    for _ in until(5, "both replicas to know"):
        if all(blocks_matched(router.url, text) for router in rig.routers):
            break
    rig.worker(owner).restart()
    for router in rig.routers:
        for _ in until(10, "the restart to be noticed"):
            if blocks_matched(router.url, text) == 0:
                break


def blocks_matched(url: str, text: str) -> int:
    """The deepest match that a replica sees, without sending anything anywhere."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
    answer = httpx.post(f"{url}/router/explain", json=body, trust_env=False, timeout=10)
    return max((worker["matched_blocks"] for worker in answer.json()["workers"]), default=0)


def test_cancelled_streams_leave_nothing_behind(build: Builder) -> None:
    rig = build(workers=2)
    router = rig.routers[0]
    rng = random.Random(5)
    quiet = gauges(router.metrics())

    def leave(number: int) -> None:
        body = {
            "model": MODEL,
            "stream": True,
            "max_tokens": 20_000,
            "messages": [{"role": "user", "content": f"{number} " * 400}],
        }
        with (
            httpx.Client(trust_env=False, timeout=30) as client,
            client.stream("POST", f"{router.url}/v1/chat/completions", json=body) as stream,
        ):
            chunks = stream.iter_raw()
            for _ in range(rng.randrange(6)):
                next(chunks)

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(leave, range(200)))
    for _ in until(5, "gauges at rest"):
        if gauges(router.metrics()) == quiet:
            break
    for _ in until(5, "workers at rest"):
        states = [worker.state() for worker in rig.workers]
        if all(state["running"] == state["waiting"] == 0 for state in states):
            break
    outcomes = Counter(
        record.outcome for worker in rig.workers for record in worker.requests(path="/v1/chat/completions")
    )
    assert set(outcomes) == {"aborted"}
    assert outcomes["aborted"] == 200


def gauges(metrics: str) -> dict[str, float]:
    """What must come back to where it was: requests in flight, bodies, the queue."""
    names = (
        "router_in_flight",
        "router_worker_load",
        "router_queue_depth",
        "router_active_requests",
        "router_body_bytes",
    )
    lines = [line.rpartition(" ") for line in metrics.splitlines() if line.startswith(names)]
    return {name: float(value) for name, _, value in lines}


def test_a_burst_of_equal_cold_prompts_stays_together(rig: Rig) -> None:
    text = "a burst of the same words " * 900
    barrier = threading.Barrier(8)

    def ask(number: int) -> str:
        barrier.wait()
        return str(chat(rig.routers[0].url, text + str(number)).headers["x-router-worker"])

    with ThreadPoolExecutor(8) as pool:
        workers = Counter(pool.map(ask, range(8)))
    assert len(workers) <= 3
    assert max(workers.values()) >= 3


def test_a_stored_response_is_continued_through_the_replica_that_did_not_make_it(rig: Rig) -> None:
    for number in range(4):
        body: dict[str, object] = {
            "model": MODEL,
            "input": f"keep this {number}",
            "store": True,
            "max_output_tokens": 4,
        }
        first = httpx.post(f"{rig.routers[0].url}/v1/responses", json=body, trust_env=False, timeout=30)
        body = {**body, "input": "go on", "previous_response_id": first.json()["id"]}
        second = httpx.post(f"{rig.routers[1].url}/v1/responses", json=body, trust_env=False, timeout=30)
        assert second.status_code == 200
        assert second.headers["x-router-worker"] == first.headers["x-router-worker"]


def test_with_nobody_there_the_answer_says_so_and_the_decision_is_closed(build: Builder) -> None:
    rig = build(workers=1)
    router = rig.routers[0]
    # Engines may refuse request ids that are no UUIDs.
    uuid.UUID(chat(router.url, "hello").headers["x-request-id"])
    rig.workers[0].kill()
    for _ in until(10, "the worker to be given up"):
        if router.get("/router/workers")["workers"][0]["state"] == "unready":
            break
    answer = chat(router.url, "is anybody there?")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "no_worker_available"
    assert int(answer.headers["retry-after"]) > 0
    decisions = router.get("/router/decisions")["decisions"]
    assert [decision["outcome"] for decision in decisions] == ["shed", "ok"]
    assert decisions[0]["error"] == "no_worker_available"


def test_bodies_reach_the_worker_byte_for_byte(rig: Rig) -> None:
    body = json.dumps(
        {
            "zeta": 1,
            "model": MODEL,
            "messages": [{"role": "user", "content": "é\u2028 \\u0041"}],
            "max_tokens": 1,
            "top_k": 7,
        }
    ).replace(", ", ",   ")
    answer = httpx.post(
        f"{rig.front}/v1/chat/completions",
        content=body.encode(),
        headers={
            "content-type": "application/json",
            "x-foo": "bar",
            "traceparent": "00-1-2-01",
            "authorization": "Bearer k",
        },
        trust_env=False,
    )
    worker = rig.worker(answer.headers["x-router-worker"])
    record = worker.requests(bodies=True, path="/v1/chat/completions")[-1]
    assert record.body == body.encode()
    headers = dict(record.headers)
    assert headers[b"x-foo"] == b"bar"
    assert headers[b"traceparent"] == b"00-1-2-01"
    assert headers[b"authorization"] == b"Bearer k"
    assert headers[b"host"] == worker.url.removeprefix("http://").encode()
    assert headers[b"x-request-id"].decode() == answer.headers["x-request-id"]


def test_a_client_that_hangs_up_after_the_last_event_has_not_left_early(build: Builder) -> None:
    rig = build(workers=1)
    router = rig.routers[0]
    # Role, two tokens, usage, [DONE]; the transfer's end, which clients don't wait for, never comes.
    fault = {"action": {"kind": "stall", "unit": "event", "after": 5}, "times": None}
    rig.workers[0].add_faults(fault)
    with OpenAI(base_url=f"{router.url}/v1", api_key="unused", max_retries=0) as client:
        for number in range(3):
            stream = client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": f"question {number}"}],
                max_tokens=2,
                stream=True,
                stream_options={"include_usage": True},
            )
            assert [chunk for chunk in stream if chunk.usage]
            stream.close()
    for _ in until(5, "all streams to end"):
        if gauges(router.metrics())["router_active_requests"] == 0:
            break
    outcomes = [line for line in router.metrics().splitlines() if line.startswith("router_outcomes_total")]
    assert outcomes == ['router_outcomes_total{outcome="ok"} 3.0']
    assert all(decision["verdict"] == "confirmed" for decision in router.get("/router/decisions")["decisions"])
