"""What the explanation says is what would happen, and asking changes nothing."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from router.cachemodel import CacheProfile
from router.control.explain import MAX_AT_ONCE
from router.prompt import Form, read_prompt
from router.workers.health import Event
from router.workers.registry import Lease, Worker
from tests.edges.control_rig import Rig, code_of

BODY = b'{"model":"m","messages":[{"role":"user","content":"%s"}],"max_tokens":100}' % (b"tell me of the sea " * 400)
CHAT = "/v1/chat/completions"


async def explain(rig: Rig, body: bytes = BODY, endpoint: str = CHAT, **headers: str) -> dict[str, Any]:
    response = await rig.call("POST", f"/router/explain?endpoint={endpoint}", content=body, headers=headers)
    assert response.status_code == 200, response.text
    terms: dict[str, Any] = response.json()
    return terms


def terms_of(terms: dict[str, Any], worker: Worker) -> dict[str, Any]:
    return next(row for row in terms["workers"] if row["worker"] == worker.id)


def own(rig: Rig, worker: Worker, body: bytes = BODY) -> None:
    """The worker has served this body."""
    hashes = rig.selector.inquire(read_prompt(Form.CHAT, body)).hashes
    assert rig.index.record(worker.id, worker.epoch, hashes, rig.now)


@pytest.mark.parametrize("policy", ["work", "slack"])
async def test_it_names_the_worker_that_a_request_then_gets(policy: str) -> None:
    rig = Rig(policy={"name": policy})
    workers = [rig.worker(name) for name in "abcd"]
    for number in range(20):
        body = BODY.replace(b"tell me", b"%d tell me" % number)
        terms = await explain(rig, body)
        assert terms["reason"] == "miss"
        ranks = {row["worker"]: row["rendezvous_rank"] for row in terms["workers"]}
        freest = min(worker.load for worker in workers)
        assert sorted(rank for rank in ranks.values() if rank) == [
            *range(1, 1 + sum(worker.load == freest for worker in workers))
        ]
        assert ranks[terms["chosen"]] in ((1,) if policy == "slack" else (1, 2, 3))
        placement = rig.selector.place(rig.selector.inquire(read_prompt(Form.CHAT, body)), rig.now)
        assert placement is not None
        assert placement.worker.id == terms["chosen"]
        placement.own(rig.now)
        assert (await explain(rig, body))["reason"] in ("hit", "spill")


async def test_a_hit_shows_both_sides_of_the_bargain() -> None:
    rig = Rig(policy={"name": "slack"})
    owner, other = rig.worker("a"), rig.worker("b")
    own(rig, owner)
    lease = Lease(rig.registry, owner)
    terms = await explain(rig)
    lease.end()
    blocks = terms["prompt"]["blocks"]
    assert (terms["chosen"], terms["reason"], terms["runner_up"]) == (owner.id, "hit", None)
    assert (terms["load"], terms["min_load"], terms["slack"]) == (1, 0, 1)
    assert terms["prompt"]["tokens"] == int(terms["prompt"]["bytes"] * terms["prompt"]["tokens_per_byte"])
    assert terms["prompt"]["window_needed"] == terms["prompt"]["tokens"] + 100
    assert terms["would_wait"] is False
    assert terms_of(terms, owner) == {
        "worker": owner.id,
        "state": "ready",
        "draining": False,
        "removed_by": None,
        "last_resort": False,
        "window": 32_000,
        "matched_blocks": blocks,
        "resumable_tokens": terms["resumable_tokens"],
        "withheld": None,
        "load": 1,
        "slots": 8,
        "within_slack": True,
        "expected_tokens": terms_of(terms, owner)["expected_tokens"],
        "work": None,
        "rendezvous_rank": None,
    }
    assert terms_of(terms, other)["matched_blocks"] == 0
    assert terms_of(terms, other)["rendezvous_rank"] == 1


async def test_a_spill_names_the_worker_that_was_too_busy() -> None:
    rig = Rig(policy={"name": "slack"})
    owner, other = rig.worker("a"), rig.worker("b")
    own(rig, owner)
    leases = [Lease(rig.registry, owner) for _ in range(2)]
    terms = await explain(rig)
    for lease in leases:
        lease.end()
    assert (terms["chosen"], terms["reason"], terms["runner_up"]) == (other.id, "spill", owner.id)
    assert terms_of(terms, owner)["within_slack"] is False
    assert terms_of(terms, owner)["removed_by"] is None


async def test_under_work_every_term_of_every_candidate_is_shown_and_the_least_score_wins() -> None:
    rig = Rig(policy={"name": "work"})
    owner, other = rig.worker("a"), rig.worker("b")
    own(rig, owner)
    leases = [Lease(rig.registry, owner, 300), Lease(rig.registry, owner)]
    leases[1].first_byte()
    for extra, chosen, reason in ((0, owner, "hit"), (50_000, other, "spill")):
        leases.append(Lease(rig.registry, owner, extra))
        terms = await explain(rig)
        assert (terms["chosen"], terms["reason"]) == (chosen.id, reason)
        mine, others = terms_of(terms, owner), terms_of(terms, other)
        prompt = terms["prompt"]["tokens"]
        uncached = 1.25 * (prompt - mine["expected_tokens"])
        assert mine["work"] == pytest.approx(
            {
                "queued": 300 + extra,
                "uncached": uncached,
                "decoding": 1_000,
                "evicting": 0,
                "score": 1_300 + extra + uncached,
            }
        )
        assert others["work"]["score"] == others["work"]["uncached"] == 1.25 * prompt
        # What the deepest match is worth in tokens of queue.
        assert terms["slack"] == int(1.25 * mine["expected_tokens"])
    for lease in leases:
        lease.end()


async def test_each_filter_is_named() -> None:
    rig = Rig()
    chosen = rig.worker("chosen")
    draining = rig.worker("draining")
    rig.registry.set_draining(draining, True)
    full = rig.worker("full", slots=1)
    probation = rig.worker("probation", events=(Event.UP, Event.STRUCK_OUT, Event.COOLED))
    leases = [Lease(rig.registry, full), Lease(rig.registry, probation)]
    expected = {
        chosen: None,
        draining: "draining",
        full: "slots",
        probation: "probation",
        rig.worker("small", window=1000): "window",
        rig.worker("foreign", ("another",)): "model",
        rig.worker("ejected", events=(Event.UP, Event.STRUCK_OUT)): "ejected",
        rig.worker("starting", events=()): "not_ready",
        rig.worker("down", events=(Event.UP, Event.DOWN)): "not_ready",
    }
    terms = await explain(rig)
    for lease in leases:
        lease.end()
    assert {row["worker"]: row["removed_by"] for row in terms["workers"]} == {
        worker.id: removed_by for worker, removed_by in expected.items()
    }
    assert (terms["chosen"], terms["reason"]) == (chosen.id, "only")


async def test_with_all_slots_taken_it_says_that_the_request_would_wait() -> None:
    rig = Rig()
    lease = Lease(rig.registry, rig.worker("a", slots=1))
    terms = await explain(rig)
    lease.end()
    assert terms["would_wait"] is True
    assert terms["chosen"] is not None
    assert (await explain(rig))["would_wait"] is False


async def test_a_refusal_is_explained_too() -> None:
    rig = Rig()
    worker = rig.worker("a")
    own(rig, worker)
    rig.registry.set_draining(worker, True)
    terms = await explain(rig)
    assert terms["chosen"] is None
    assert (terms["refusal"]["status"], terms["refusal"]["code"]) == (503, "no_worker_available")
    assert terms_of(terms, worker)["removed_by"] == "draining"
    assert terms_of(terms, worker)["matched_blocks"] == terms["prompt"]["blocks"]


async def test_a_worker_asked_for_want_of_others_is_marked() -> None:
    rig = Rig()
    worker = rig.worker("a", events=(Event.UP, Event.DOWN))
    terms = await explain(rig)
    assert terms["chosen"] == worker.id
    assert terms_of(terms, worker)["last_resort"] is True


async def test_a_cache_that_is_off_says_so() -> None:
    rig = Rig()
    worker = rig.worker("a", profile=CacheProfile(enabled=False))
    rig.worker("b", profile=CacheProfile(enabled=False))
    own(rig, worker)
    terms = await explain(rig)
    assert terms["reason"] == "cache_disabled"
    assert terms_of(terms, worker)["withheld"] == "cache_disabled"
    assert terms_of(terms, worker)["resumable_tokens"] == 0


async def test_asking_changes_nothing() -> None:
    rig = Rig()
    workers = [rig.worker(name) for name in "abc"]
    own(rig, workers[0])

    def everything() -> Any:
        fleet = [(w.state, w.load, w.local, w.strikes, w.probation_busy, w.last_served) for w in workers]
        metrics = rig.metrics.render()
        return copy.deepcopy(
            (fleet, rig.index.statistics(), len(rig.index), rig.index.evictions, len(rig.ring), metrics)
        )

    before = everything()
    for body in (BODY, BODY.replace(b"sea", b"mountains"), BODY.replace(b'"m"', b'"nobody"')):
        await rig.call("POST", "/router/explain", content=body)
    assert everything() == before


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "bad_request"),
        (b"{", 400, "bad_request"),
        (b"[]", 400, "bad_request"),
        (b'{"model": 7}', 400, "bad_request"),
        (b"[" * 100_000, 400, "bad_request"),
        (b'{"model": "unknown", "messages": []}', 404, "model_not_found"),
    ],
)
async def test_a_body_that_inference_refuses_is_refused_alike(body: bytes, status: int, code: str) -> None:
    rig = Rig()
    rig.worker("a")
    response = await rig.call("POST", "/router/explain", content=body)
    assert (response.status_code, code_of(response)) == (status, code)


async def test_limits_are_those_of_the_endpoint() -> None:
    rig = Rig(limits={"body_bytes": 8_000, "media_body_bytes": 12_000})
    rig.worker("a")
    body = b'{"model":"m","prompt":"%s"}' % (b"x" * 10_000)
    refused = await rig.call("POST", "/router/explain?endpoint=/v1/completions", content=body)
    assert (refused.status_code, code_of(refused)) == (413, "payload_too_large")
    assert (await rig.call("POST", "/router/explain", content=body)).status_code == 200


@pytest.mark.parametrize("endpoint", ["/sleep", "/v1/models", "", "v1/completions", "x" * 200])
async def test_endpoints_that_do_not_exist(endpoint: str) -> None:
    response = await Rig().call("POST", f"/router/explain?endpoint={endpoint}", content=BODY)
    assert (response.status_code, code_of(response)) == (400, "bad_request")
    assert response.json()["error"]["param"] == "endpoint"


async def test_other_forms_are_understood() -> None:
    rig = Rig()
    rig.worker("a")
    tokens = await explain(rig, b'{"model":"m","prompt":[%s]}' % b",".join([b"7"] * 300), "/v1/completions")
    assert (tokens["prompt"]["tokens"], tokens["prompt"]["tokens_exact"]) == (300, True)
    assert (await explain(rig, b'{"model":"m","input":"x"}', "/v1/embeddings"))["reason"] == "bypass"
    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
    audio = await explain(rig, form, "/v1/audio/transcriptions", **{"content-type": "multipart/form-data; boundary=b"})
    assert audio["model"] == "m"


async def test_only_a_few_bodies_are_held_at_once() -> None:
    rig = Rig()
    rig.worker("a")
    begun = asyncio.Semaphore(0)
    go_on = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield BODY[:100]
        begun.release()
        await go_on.wait()
        yield BODY[100:]

    async with rig.client() as client, asyncio.TaskGroup() as group:
        held = [group.create_task(client.post("/router/explain", content=slow())) for _ in range(MAX_AT_ONCE)]
        for _ in held:
            await begun.acquire()
        refused = await client.post("/router/explain", content=BODY)
        go_on.set()
    assert (refused.status_code, code_of(refused)) == (503, "no_worker_available")
    assert [task.result().status_code for task in held] == [200] * MAX_AT_ONCE
    await explain(rig)
