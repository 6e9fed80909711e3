"""The conversation and its player, against a small server that answers as engines do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from openai import APIStatusError

from loadtest.conversation import Player, Shape, TurnResult, format_table, play, user_turns

USAGE = {"prompt_tokens": 5669, "completion_tokens": 2, "total_tokens": 5671}
DECISION = "hit; match=64/64; resumable=12800; load=0/0; slack=3"


@dataclass
class Endpoint:
    """What the server says, and what it heard."""

    url: str = ""
    details: dict[str, int] | None = None
    usage: bool = True
    status: int = 200
    routed: bool = True
    heard: list[dict[str, Any]] = field(default_factory=list)

    def chunks(self) -> list[dict[str, Any]]:
        base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        parts: list[tuple[dict[str, str], str | None]] = [
            ({"role": "assistant"}, None),
            ({"content": "wo"}, None),
            ({"content": "rd"}, None),
            ({}, "stop"),
        ]
        chunks: list[dict[str, Any]] = [
            {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]} for delta, finish in parts
        ]
        return [*chunks, {**base, "choices": [], "usage": self.reported()}] if self.usage else chunks

    def reported(self) -> dict[str, Any]:
        return {**USAGE, "prompt_tokens_details": self.details}

    def body(self, stream: bool) -> bytes:
        if self.status != 200:
            return json.dumps({"error": {"message": "busy", "type": "server_error", "code": "no_worker"}}).encode()
        if stream:
            events = [json.dumps(chunk) for chunk in self.chunks()]
            return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()
        message = {"role": "assistant", "content": "word"}
        whole: dict[str, Any] = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
        whole["choices"] = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return json.dumps({**whole, "usage": self.reported()}).encode()


@pytest.fixture
def endpoints() -> Iterator[list[Endpoint]]:
    served = [_serve(Endpoint()) for _ in range(2)]
    yield [endpoint for endpoint, _, _ in served]
    for _, server, thread in served:
        server.shutdown()
        server.server_close()
        thread.join(5)


def _serve(endpoint: Endpoint) -> tuple[Endpoint, ThreadingHTTPServer, threading.Thread]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            endpoint.heard.append(request)
            body = endpoint.body(request.get("stream", False))
            self.send_response(endpoint.status)
            self.send_header("content-type", "text/event-stream" if request.get("stream") else "application/json")
            self.send_header("content-length", str(len(body)))
            if endpoint.routed:
                self.send_header("x-router-worker", "905487f1")
                self.send_header("x-router-decision", DECISION)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    return endpoint, server, thread


def test_the_default_conversation_fills_the_prefix_and_grows_by_a_turn() -> None:
    turns = user_turns(1)
    sizes = [len(turn.encode()) for turn in turns]
    assert len(sizes) == 5
    assert 64 * 512 < sizes[0] < 5_650 * 6
    assert all(1_040 <= size <= 1_060 for size in sizes[1:])


def test_a_token_of_the_text_is_about_six_bytes() -> None:
    text = user_turns(2)[0]
    assert 5.8 < len(text) / len(text.split()) < 6.2


def test_a_seed_says_the_same_again_and_another_differs_in_its_first_block() -> None:
    assert user_turns(3) == user_turns(3)
    assert user_turns(3)[0][:512] != user_turns(4)[0][:512]


def test_the_sizes_follow_the_shape() -> None:
    turns = user_turns(1, Shape(turns=3, first_tokens=2_000, growth_tokens=100, answer_tokens=20, bytes_per_token=1.0))
    assert [round(len(turn), -1) for turn in turns] == pytest.approx([2_000, 80, 80], abs=10)


@pytest.mark.parametrize("wrong", [{"turns": 0}, {"answer_tokens": 190}, {"bytes_per_token": 0.0}])
def test_a_shape_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="conversation"):
        Shape(**wrong)


@pytest.mark.parametrize("stream", [True, False])
def test_turns_alternate_over_the_replicas_and_carry_the_conversation(endpoints: list[Endpoint], stream: bool) -> None:
    results = play([endpoint.url for endpoint in endpoints], ["one", "two", "three"], "m", stream=stream)
    assert [result.replica for result in results] == [1, 2, 1]
    assert [result.answer for result in results] == ["word"] * 3
    assert [len(request["messages"]) for request in endpoints[0].heard] == [1, 5]
    assert endpoints[1].heard[0]["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "word"},
        {"role": "user", "content": "two"},
    ]


@pytest.mark.parametrize("stream", [True, False])
def test_a_turn_reads_usage_and_the_decision(endpoints: list[Endpoint], stream: bool) -> None:
    endpoints[0].details = {"cached_tokens": 5_600}
    (result,) = play([endpoints[0].url], ["one"], "m", stream=stream)
    assert (result.prompt_tokens, result.cached_tokens) == (5_669, 5_600)
    assert (result.worker, result.reason, result.matched) == ("905487f1", "hit", "64/64")
    assert result.finish_reason == "stop"
    assert 0 < result.first_token_seconds <= result.seconds


def test_streams_ask_for_usage(endpoints: list[Endpoint]) -> None:
    play([endpoints[0].url], ["one"], "m", max_tokens=3)
    assert endpoints[0].heard[0]["stream_options"] == {"include_usage": True}
    assert endpoints[0].heard[0]["max_tokens"] == 3


def test_cached_tokens_unknown_are_not_zero(endpoints: list[Endpoint]) -> None:
    endpoints[0].details = {"cached_tokens": 0}
    endpoints[1].details = None
    told, untold = play([endpoint.url for endpoint in endpoints], ["one", "two"], "m")
    assert told.cached_tokens == 0
    assert untold.cached_tokens is None


def test_an_engine_without_usage_in_streams_and_without_a_router(endpoints: list[Endpoint]) -> None:
    endpoints[0].usage = endpoints[0].routed = False
    (result,) = play([endpoints[0].url], ["one"], "m")
    assert (result.prompt_tokens, result.cached_tokens) == (None, None)
    assert (result.worker, result.decision, result.reason, result.matched) == (None, None, None, None)


def test_a_refused_turn_is_asked_once_and_leaves_the_conversation_as_it_was(endpoints: list[Endpoint]) -> None:
    with Player([endpoints[0].url], "m") as player:
        player.say("one")
        endpoints[0].status = 503
        with pytest.raises(APIStatusError):
            player.say("two")
        endpoints[0].status = 200
        assert player.say("three").turn == 2
    assert [len(request["messages"]) for request in endpoints[0].heard] == [1, 3, 3]
    assert endpoints[0].heard[2]["messages"][-1]["content"] == "three"


def test_a_player_needs_a_url() -> None:
    with pytest.raises(ValueError, match="URL"):
        Player([], "m")


def test_the_table_shows_a_dash_where_nobody_said() -> None:
    known = TurnResult(1, 1, "905487f1", DECISION, 5_669, 0, 6.1, 6.34, "stop", "")
    unknown = TurnResult(2, 2, None, None, None, None, 0.4, 0.524, "stop", "")
    assert [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in format_table([known, unknown]).splitlines()
    ] == [
        ["turn", "replica", "worker", "prompt tokens", "time", "matched blocks", "cached tokens (engine)"],
        [
            "------",
            "---------",
            "----------",
            "---------------",
            "--------",
            "----------------",
            "------------------------",
        ],
        ["1", "1", "905487f1", "5,669", "6.34 s", "64/64", "0"],
        ["2", "2", "-", "-", "0.52 s", "-", "-"],
    ]
