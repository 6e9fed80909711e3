"""Bodies of the load and the workers' ready-made answers."""

from __future__ import annotations

import json
from itertools import islice, pairwise
from typing import Any

import pytest

from loadtest.bench import canned
from loadtest.bench.bodies import LINE_BYTES, TURNS, Conversations, stream_body, text_pool

POOL = text_pool()


def bodies(size: int, seed: int = 1, client: int = 0, count: int = TURNS) -> list[bytes]:
    return list(islice(Conversations(size, seed, POOL).bodies(client), count))


def content(answer: bytes) -> Any:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert int(head.rpartition(b"content-length: ")[2].split(b"\r\n")[0]) == len(body)
    return json.loads(body)


def test_the_pool_is_made_of_whole_lines_that_stand_in_json() -> None:
    lines = [POOL[at : at + LINE_BYTES] for at in range(0, len(POOL), LINE_BYTES)]
    assert {len(line) for line in lines} == {LINE_BYTES}
    for line in lines[:500]:
        text = json.loads(b'"' + line + b'"')
        assert text.endswith("\n")


@pytest.mark.parametrize("size", [512, 8192, 65_536, 524_288])
def test_the_mean_body_has_the_size_of_its_class(size: int) -> None:
    made = bodies(size)
    assert sum(map(len, made)) / len(made) == pytest.approx(size, rel=0.02, abs=16)
    assert all(json.loads(body)["messages"][0]["role"] == "system" for body in made)


def test_a_turn_continues_the_one_before_it() -> None:
    turns = [json.loads(body)["messages"] for body in bodies(8192)]
    for before, after in pairwise(turns):
        assert after[: len(before)] == before
        assert [message["role"] for message in after[len(before) :]] == ["assistant", "user"]


def test_conversations_share_nothing() -> None:
    begun = [
        bodies(8192, seed=seed, client=client, count=9)[turn] for seed in (1, 2) for client in (0, 1) for turn in (0, 4)
    ]
    users = {json.loads(body)["messages"][0]["content"] for body in begun}
    assert len(users) == len(begun)


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert bodies(8192, count=12) == bodies(8192, count=12)


# -- answers -----------------------------------------------------------------------------------------------


def ends(body: bytes) -> tuple[bytes, bytes]:
    return body[: canned.MARGIN], body[-canned.MARGIN :]


def test_a_chat_answer_reports_usage_that_fits_the_body() -> None:
    usage = content(canned.chat_answer(8192, 0))["usage"]
    assert (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]) == (2048, 0)
    usage = content(canned.chat_answer(8192, 4096))["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == (4096 - 100) // 4 // 16 * 16
    assert content(canned.chat_answer(64, 32))["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_only_a_streaming_body_gets_chunks() -> None:
    assert canned.stream_chunks(*ends(stream_body(200, "x"))) == 200
    assert canned.stream_chunks(*ends(bodies(65_536)[0])) == 0
    # A proxy that writes the body anew may move the fields, and may put blanks between them.
    assert canned.stream_chunks(b'{"stream": true, "max_completion_tokens": 7, "messages":[', b"]}") == 7
    assert canned.stream_chunks(b'{"stream":true}', b"") == 16


@pytest.mark.parametrize("size", [8, 8192, 524_288, 64 << 20])
def test_token_ids_are_as_many_as_they_are_said_to_be(size: int) -> None:
    answer = content(canned.tokenize_answer(b"{", size))
    assert len(answer["tokens"]) == answer["count"]


def test_conversations_differ_from_their_first_token_and_turns_do_not() -> None:
    first, second = bodies(8192, count=2)
    other = bodies(8192, client=1)[0]
    short, long = (content(canned.tokenize_answer(body[:512], len(body)))["tokens"] for body in (first, second))
    assert long[: len(short)] == short
    assert content(canned.tokenize_answer(other[:512], len(other)))["tokens"][0] != short[0]


def test_rendering_is_refused_as_an_engine_refuses_it() -> None:
    answers = canned.fixed_answers(1_790_000_000.5)
    assert answers[b"/v1/chat/completions/render"].startswith(b"HTTP/1.1 403 ")
    assert content(answers[b"/v1/chat/completions/render"])["error"]["type"] == "PermissionDeniedError"
    assert content(answers[b"/v1/models"])["data"][0]["id"] == "bench"
    assert b"process_start_time_seconds 1790000000.5\n" in answers[b"/metrics"]


def test_a_stream_is_framed_in_chunks() -> None:
    size, _, rest = canned.CHUNK.partition(b"\r\n")
    assert rest[int(size, 16) :] == b"\r\n"
    assert rest.startswith(b"data: {")
    assert canned.LAST.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_sizes_share_no_beginning() -> None:
    small, large = (next(Conversations(size, 7, POOL).bodies(0)) for size in (8_192, 65_536))
    shared = next(at for at, (one, other) in enumerate(zip(small, large, strict=False)) if one != other)
    assert shared < 512
