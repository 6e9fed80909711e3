"""Cases of choice: load that counts everything, affinity that holds where it should and gives way where it must."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from loadtest.fleet import until
from router.workers.registry import worker_id
from tests.whole.rig import CHAT, Json, Rig, building, chat_body, group, text_of, together


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with building(tmp_path_factory.mktemp("routing")) as build:
        settings = {"ROUTER_HEALTH__EJECT_AFTER": "2", "ROUTER_HEALTH__EJECT_SECONDS": "0.3"}
        rig = build(group("trio", 3), group("duo", 2), group("faulty", 2), settings=settings)
        yield rig


def test_p4_requests_without_a_prompt_count_as_load(rig: Rig) -> None:
    path = "/v1/embeddings"
    before = rig.counts("trio", path)
    with rig.holding(63, "trio", path=path):
        counts = [now - then for now, then in zip(rig.counts("trio", path), before, strict=True)]
    # Nothing is heard of them before their end, so it is a guess which of them are computed by now.
    assert sum(counts) == 63
    assert max(counts) <= 24


def test_p5_a_new_prefix_looks_at_queues_not_at_who_has_the_smallest_cache(rig: Rig) -> None:
    stalled = rig.groups["trio"][0]
    with rig.only(stalled, "trio"), rig.holding(30, "trio", words="stalled"):
        for worker in rig.groups["trio"][1:]:
            rig.control(f"/router/workers/{worker_id(worker.url)}/resume", {})
        before = rig.counts("trio")
        for number in range(20):
            assert rig.chat(text_of(f"prefix {number}", 2_000), model="trio").status_code == 200
        counts = [now - then for now, then in zip(rig.counts("trio"), before, strict=True)]
    assert counts[0] == 0
    assert sum(counts) == 20


def test_p6_load_counts_from_the_decision_not_from_the_response_headers(rig: Rig) -> None:
    before = rig.counts("trio")
    with rig.holding(12, "trio", words="no headers yet"):
        assert [now - then for now, then in zip(rig.counts("trio"), before, strict=True)] == [4, 4, 4]


def test_p8_one_hot_worker_leaves_affinity_on_for_the_others(rig: Rig) -> None:
    hot, warm = rig.groups["duo"]
    text = text_of("warm on the other", 6_000)
    with rig.only(hot, "duo"), rig.holding(20, "duo", words="hot"):
        rig.control(f"/router/workers/{worker_id(warm.url)}/resume", {})
        rig.chat(text, model="duo")
        answers = [rig.chat(f"{text} {number}", model="duo") for number in range(10)]
    assert {answer.headers["x-router-worker"] for answer in answers} == {worker_id(warm.url)}
    assert {answer.headers["x-router-decision"].split(";")[0] for answer in answers} == {"hit"}


def test_p10_an_empty_index_is_seeded_by_the_first_prompt(rig: Rig) -> None:
    text = text_of("ten kilobytes of something new", 10_000)
    first, second = rig.chat(text, model="trio"), rig.chat(text, model="trio")
    assert first.headers["x-router-decision"].startswith("miss; match=0/")
    reason, match, *_ = second.headers["x-router-decision"].split("; ")
    assert reason == "hit"
    matched, blocks = match.removeprefix("match=").split("/")
    assert matched == blocks
    assert second.headers["x-router-worker"] == first.headers["x-router-worker"]


def test_p14_chats_with_one_system_prompt_stick_and_spread(rig: Rig) -> None:
    system = {"role": "system", "content": text_of("the rules of the house", 10_000)}
    stall = {"kind": "stall", "seconds": 1.0}  # so that the turns of all chats overlap

    def turn(chat: int, *more: Json) -> str:
        # What a worker holds of a chat alone is worth more than the answer that it writes beside.
        opening = {"role": "user", "content": text_of(f"chat {chat} begins", 8_000)}
        body = {"model": "trio", "max_tokens": 2, "messages": [system, opening, *more]}
        answer = rig.post(CHAT, body, fault=stall)
        assert answer.status_code == 200
        return str(answer.headers["x-router-worker"])

    first = together(6, turn)
    more: list[Json] = [{"role": "assistant", "content": "go on"}, {"role": "user", "content": "and then"}]
    second = together(6, lambda chat: turn(chat, *more))
    assert second == first
    assert sorted(Counter(first).values()) == [2, 2, 2]


def chat_turns(text: str) -> tuple[Json, Json]:
    opening = {"role": "user", "content": text}
    more = [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "go on"}]
    return {"messages": [opening]}, {"messages": [opening, *more]}


def completion_turns(text: str) -> tuple[Json, Json]:
    return {"prompt": text}, {"prompt": f"{text} yes, go on"}


def responses_turns(text: str) -> tuple[Json, Json]:
    opening = {"role": "user", "content": [{"type": "input_text", "text": text}]}
    more = [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "go on"}]
    return {"input": [opening]}, {"input": [opening, *more]}


def messages_turns(text: str) -> tuple[Json, Json]:
    first, second = chat_turns(text)
    return {**first, "system": "be brief"}, {**second, "system": "be brief"}


@pytest.mark.parametrize(
    ("path", "turns"),
    [
        ("/v1/chat/completions", chat_turns),
        ("/v1/completions", completion_turns),
        ("/v1/responses", responses_turns),
        ("/v1/messages", messages_turns),
    ],
    ids=["chat", "completions", "responses", "messages"],
)
def test_p15_turn_two_lands_where_turn_one_did(rig: Rig, path: str, turns: Any) -> None:
    for number in range(3):
        first, second = turns(text_of(f"{path} number {number}", 3_000))
        one = rig.post(path, {"model": "trio", "max_tokens": 2, **first})
        two = rig.post(path, {"model": "trio", "max_tokens": 2, **second})
        assert (one.status_code, two.status_code) == (200, 200)
        assert two.headers["x-router-decision"].startswith("hit; match=")
        assert two.headers["x-router-worker"] == one.headers["x-router-worker"]


def test_p17_the_input_of_responses_is_hashed_as_text_and_as_list(rig: Rig) -> None:
    text = text_of("the same words in either form", 3_000)
    one = rig.post("/v1/responses", {"model": "trio", "input": text})
    parts = [{"role": "user", "content": [{"type": "input_text", "text": text}]}]
    two = rig.post("/v1/responses", {"model": "trio", "input": [*parts, {"role": "user", "content": "more"}]})
    assert two.headers["x-router-decision"].startswith("hit; match=")
    assert two.headers["x-router-worker"] == one.headers["x-router-worker"]


def test_p17_a_continued_response_goes_where_the_response_is(rig: Rig) -> None:
    for number in range(4):
        one = rig.post("/v1/responses", {"model": "trio", "input": text_of(f"remember {number}", 1_000)})
        name = one.json()["id"]
        two = rig.post("/v1/responses", {"model": "trio", "input": "go on", "previous_response_id": name})
        assert two.status_code == 200
        assert two.headers["x-router-worker"] == one.headers["x-router-worker"]
        rig.sent += 1
        kept = rig.http.get(f"{rig.front}/v1/responses/{name}")
        assert (kept.status_code, kept.json()["id"]) == (200, name)


@pytest.mark.parametrize(
    "prompt",
    ["text", ["one", "two"], [1, 2, 3], [[1, 2], [3]], list(range(2_000))],
    ids=["text", "texts", "ids", "id-lists", "many-ids"],
)
def test_p21_prompts_of_token_ids_pass_untouched(rig: Rig, prompt: object) -> None:
    body = {"model": "duo", "prompt": prompt, "max_tokens": 1}
    answer = rig.post("/v1/completions", body)
    assert answer.status_code == 200
    worker = rig.worker(answer.headers["x-router-worker"])
    assert rig.records(worker, bodies=True)[-1].body == json.dumps(body).encode()


def test_p22_a_salt_separates_what_it_separates_in_the_engine(rig: Rig) -> None:
    text = text_of("salted alike otherwise", 4_000)
    rig.chat(text, model="trio", cache_salt="one")
    again = rig.chat(text, model="trio", cache_salt="one")
    other = rig.chat(text, model="trio", cache_salt="two")
    unsalted = rig.chat(text, model="trio")
    assert again.headers["x-router-decision"].startswith("hit; match=")
    assert other.headers["x-router-decision"].startswith("miss; match=0/")
    assert unsalted.headers["x-router-decision"].startswith("miss; match=0/")
    records = rig.records(rig.worker(other.headers["x-router-worker"]), bodies=True)
    assert any(b'"cache_salt": "two"' in record.body for record in records)


def test_p28_a_worker_that_failed_a_prompt_does_not_own_it(rig: Rig) -> None:
    text = text_of("fails where it goes first", 4_000)
    body = chat_body(text, model="faulty")
    first = rig.explain(body)["chosen"]
    rig.worker(first).add_faults({"action": {"kind": "reset"}, "body": "fails where it goes first"})
    answer = rig.post(CHAT, body)
    assert answer.status_code == 200
    assert answer.headers["x-router-worker"] != first
    assert rig.metric("router_retries_total", cause="reset") == 1
    again = rig.post(CHAT, body)
    assert again.headers["x-router-decision"].startswith("hit; match=")
    assert again.headers["x-router-worker"] == answer.headers["x-router-worker"]
    matched = {row["worker"]: row["matched_blocks"] for row in rig.explain(body)["workers"]}
    assert matched[first] == 0


def test_p30_a_worker_that_refuses_at_once_is_not_the_freest(rig: Rig) -> None:
    refusing, _ = rig.groups["faulty"]
    short_id = worker_id(refusing.url)
    refusing.add_faults({"action": {"kind": "status", "status": 503, "delay": 0.02}, "times": None})
    before = len(rig.records(refusing))
    questions = itertools.count()
    try:
        answers = together(4, lambda lane: [rig.chat(f"{lane} {number}", model="faulty") for number in range(25)])
        assert {answer.status_code for lane in answers for answer in lane} == {200}
        assert len(rig.records(refusing)) - before <= 10
        # It is left alone for a second at a time, and given up once that has not helped.
        for _ in until(10, "its ejection"):
            assert rig.chat(f"{next(questions)} still refused", model="faulty").status_code == 200
            if rig.metric("router_ejections_total", worker=short_id, cause="overloaded"):
                break
    finally:
        refusing.clear_faults()
    for _ in until(10, "its return"):
        if rig.chat(f"{next(questions)} is it back", model="faulty").headers["x-router-worker"] == short_id:
            break


def test_p36_a_stream_counts_as_load_until_its_end(rig: Rig) -> None:
    ids = [worker_id(worker.url) for worker in rig.groups["duo"]]
    stall = {"kind": "stall", "unit": "event", "after": 3, "seconds": 30}
    calls = [
        rig.open(chat_body(f"long {number}", model="duo", stream=True, max_tokens=50), fault=stall)
        for number in range(10)
    ]
    try:
        assert all(call.first().startswith(b"HTTP/1.1 200") for call in calls)
        for _ in range(5):
            assert [rig.metric("router_in_flight", worker=worker) for worker in ids] == [5, 5]
    finally:
        for call in calls:
            call.close()
