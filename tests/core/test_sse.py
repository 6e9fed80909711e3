"""The tap on an answer: whatever the chunks, it sees the same usage and knows where an event may be added."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.calibration import Usage
from router.dataplane.sse import HEAD_BYTES, TAIL_BYTES, Tap

Json = dict[str, Any]


def event(body: Json, name: str = "", end: str = "\n") -> bytes:
    head = f"event: {name}{end}" if name else ""
    return f"{head}data: {json.dumps(body)}{end}{end}".encode()


def chat_usage(prompt: int, cached: int | None, completion: int = 3) -> Json:
    details = None if cached is None else {"cached_tokens": cached}
    return {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details}


def chat_stream(end: str = "\n") -> bytes:
    chunks: list[Json] = [
        {"choices": [{"delta": {"content": word}}], "usage": None} for word in ("one", 'two "usage": 3', "é")
    ]
    last: Json = {"choices": [], "usage": chat_usage(100, 64)}
    return b"".join(event(chunk, end=end) for chunk in [*chunks, last]) + f"data: [DONE]{end}{end}".encode()


RESPONSES_STREAM = (
    event({"type": "response.created", "response": {"id": "resp_7-a", "usage": None}}, "response.created")
    + event({"type": "response.output_text.delta", "delta": "x"}, "response.output_text.delta")
    + event(
        {
            "type": "response.completed",
            "response": {
                "id": "resp_7-a",
                "usage": {"input_tokens": 50, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 32}},
            },
        },
        "response.completed",
    )
)
MESSAGES_STREAM = (
    event({"type": "message_start", "message": {"usage": {"input_tokens": 20, "output_tokens": 0}}}, "message_start")
    + event({"type": "content_block_delta", "delta": {"text": "x"}}, "content_block_delta")
    + event(
        {"type": "message_delta", "usage": {"output_tokens": 5, "cache_read_input_tokens": 48}},
        "message_delta",
    )
    + event({"type": "message_stop"}, "message_stop")
)
WHOLE_CHAT = json.dumps(
    {"id": "c", "choices": [{"message": {"content": "x" * 40}}], "usage": chat_usage(9, 0)}
).encode()
WHOLE_MESSAGES = json.dumps(
    {
        "id": "m",
        "content": [],
        "usage": {
            "input_tokens": 7,
            "output_tokens": 1,
            "cache_read_input_tokens": 16,
            "cache_creation_input_tokens": 4,
        },
    }
).encode()

ANSWERS: dict[str, tuple[bytes, bool, Usage]] = {
    "chat-stream": (chat_stream(), True, Usage(100, 64, 3)),
    "chat-stream-crlf": (chat_stream("\r\n"), True, Usage(100, 64, 3)),
    "responses-stream": (RESPONSES_STREAM, True, Usage(50, 32, 2)),
    "messages-stream": (MESSAGES_STREAM, True, Usage(68, 48, 5)),
    "chat": (WHOLE_CHAT, False, Usage(9, 0, 3)),
    "messages": (WHOLE_MESSAGES, False, Usage(27, 16, 1)),
}


def tapped(chunks: list[bytes], *, events: bool = True) -> Tap:
    tap = Tap(events=events)
    for chunk in chunks:
        tap.feed(chunk)
    return tap


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(bounds) if start < end]


@pytest.mark.parametrize("name", ANSWERS)
def test_usage_is_the_same_at_every_split_point(name: str) -> None:
    data, events, usage = ANSWERS[name]
    for place in range(len(data) + 1):
        assert tapped(cut(data, [place]), events=events).usage() == usage
    assert tapped([bytes([byte]) for byte in data], events=events).usage() == usage


@given(st.data())
def test_usage_is_the_same_for_any_chunks(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(ANSWERS)))
    answer, events, usage = ANSWERS[name]
    places = data.draw(st.lists(st.integers(0, len(answer)), max_size=12))
    padding = data.draw(st.sampled_from([0, 10, TAIL_BYTES - 50, TAIL_BYTES, 3 * TAIL_BYTES]))
    if events and name.startswith("chat"):
        answer = event({"choices": [{"delta": {"content": "p" * padding}}]}) + answer
    assert tapped(cut(answer, places), events=events).usage() == usage


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (chat_usage(5, None), Usage(5, None, 3)),
        ({"prompt_tokens": 5, "prompt_tokens_details": {}}, Usage(5, None, 0)),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": None}}, Usage(5, None, 0)),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": "4"}}, Usage(5, None, 0)),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": -4}}, Usage(5, None, 0)),
        ({"prompt_tokens": True}, None),
        ({"prompt_tokens": "5"}, None),
        ({"prompt_tokens": None}, None),
        ({"total_tokens": 5}, None),
        ({}, None),
    ],
    ids=str,
)
def test_odd_usage_is_unknown_rather_than_wrong(usage: Json, expected: Usage | None) -> None:
    assert tapped([event({"choices": [], "usage": usage})]).usage() == expected


@pytest.mark.parametrize(
    "broken", [b'data: {"usage":{"prompt_tokens": 5', b'"usage":', b'"usage":[1,2]', b"", b"\xff\xfe"]
)
def test_a_usage_that_is_cut_off_or_no_object_is_unknown(broken: bytes) -> None:
    assert tapped([broken]).usage() is None


def test_the_last_usage_counts_and_an_unreadable_one_does_not_hide_it() -> None:
    first, second = (event({"choices": [], "usage": chat_usage(number, 0)}) for number in (1, 2))
    assert tapped([first, second, b'data: {"usage":null}\n\n']).usage() == Usage(2, 0, 3)


def test_words_about_usage_in_the_answers_text_are_not_usage() -> None:
    text = json.dumps({"choices": [{"delta": {"content": '"usage":{"prompt_tokens":7}'}}]})
    assert tapped([f"data: {text}\n\n".encode()]).usage() is None


@given(st.lists(st.binary(max_size=5_000), max_size=12))
def test_head_and_tail_are_those_of_the_whole_answer(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    tap = tapped(chunks)
    assert tap.head == whole[:HEAD_BYTES]
    assert tap.tail() == whole[-TAIL_BYTES:]


# -- where an event may be added -------------------------------------------------------------------------------


def events_of(stream: bytes) -> list[list[bytes]]:
    """The events of a stream by the letter of the standard: each the list of its lines, comments left out."""
    lines = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    found: list[list[bytes]] = [[]]
    for line in lines[:-1]:
        if line:
            if not line.startswith(b":"):
                found[-1].append(line)
        elif found[-1]:
            found.append([])
    return found[:-1]


ADDED = b'data: {"error":{}}\n\n'
PIECES = [b"data: x", b"\n", b"\r", b"\r\n", b"\n\n", b": note", b"event: e", b"id: 1"]


@given(st.lists(st.sampled_from(PIECES), max_size=8), st.lists(st.integers(0, 60), max_size=4))
def test_an_event_is_added_only_where_it_stands_by_itself(pieces: list[bytes], places: list[int]) -> None:
    stream = b"".join(pieces)
    tap = tapped(cut(stream, [place for place in places if place < len(stream)]))
    if tap.between_events:
        assert events_of(stream + ADDED) == [*events_of(stream), [b'data: {"error":{}}']]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_between_events_is_noticed_whatever_the_line_ends(end: str) -> None:
    stream = chat_stream(end)
    boundaries = {place for place in range(1, len(stream) + 1) if stream[:place].endswith((end + end).encode())}
    for place in range(1, len(stream) + 1):
        tap = tapped(cut(stream[:place], [max(0, place - 3), max(0, place - 1)]))
        # Between the two bytes of its last line end an event has ended already.
        early = end == "\r\n" and stream[:place].endswith(b"\r\n\r")
        assert tap.between_events == (place in boundaries or early)


def test_nothing_sent_yet_is_between_events() -> None:
    assert Tap(events=True).between_events


# -- keep-alive comments and failures at once ------------------------------------------------------------------


@pytest.mark.parametrize("comment", [b": keep-alive\n\n", b": ping - 2024\r\n\r\n", b":\n", b": one\n: two\n\n", b"\n"])
def test_comments_are_no_part_of_the_answer(comment: bytes) -> None:
    data = comment + event({"choices": []})
    for place in range(len(comment) + 1):
        assert tapped(cut(data[:place], [place // 2])).only_comments
    assert not tapped([data]).only_comments
    assert not tapped([data[: len(comment) + 1]]).only_comments


def test_comments_without_end_are_not_waited_for() -> None:
    assert tapped([b": keep-alive\n\n" * 10]).only_comments
    assert not tapped([b": keep-alive\n\n" * 1_000]).only_comments


def test_an_answer_that_is_no_stream_has_no_comments() -> None:
    assert not tapped([b": looks like one\n"], events=False).only_comments


@pytest.mark.parametrize("comment", [b"", b": keep-alive\n\n", b": a\r\n\r\n: b\r\n\r\n"])
@pytest.mark.parametrize(
    "failure", [event({"error": {}}), b'data:{"error":1}\n\n', event({}, "error"), b"event:error\n\n"]
)
def test_a_first_event_that_is_an_error_is_a_failure_at_once(comment: bytes, failure: bytes) -> None:
    assert tapped([comment, failure]).failed_at_once
    assert not tapped([comment, event({"choices": []}), failure]).failed_at_once
    assert not tapped([comment, failure], events=False).failed_at_once


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (RESPONSES_STREAM, "resp_7-a"),
        (b'{"id":"resp_9","object":"response"}', "resp_9"),
        (b'{"id": "resp_9"', "resp_9"),
        (b'{"id":"chatcmpl-1"}', None),
        (b'{"id":7}', None),
        (b'{"id":"resp_cut', None),
        (b'{"object":"response"}', None),
    ],
)
def test_the_id_of_a_stored_response(head: bytes, name: str | None) -> None:
    assert tapped([head]).response_id() == name
