"""Traces: what is read of recorded ones, and what made-up traffic looks like."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from router.decisions import DecisionRecord
from router.hashing import boundaries, chain_start, hashes_at
from router.replay.generate import KINDS, Agents, generate
from router.replay.trace import (
    ID_TOKENS,
    JITTER_GAPS,
    Request,
    TraceError,
    block_count,
    ids_of_hashes,
    parse_trace,
    read_trace,
)


def mooncake(at: int, length: int, ids: list[int], output: int = 10) -> str:
    return json.dumps({"timestamp": at, "input_length": length, "output_length": output, "hash_ids": ids})


def decision(**changes: Any) -> str:
    record = DecisionRecord("id", 1.0, "/v1/chat/completions", "m", "w", "hit", 4, 8, 512, 1_000, 1, 0, 1, None, 1)
    line = {**record.as_dict(), "hashes": [1, 2], "prompt_bytes": 4_000, "output_tokens": 5, **changes}
    return json.dumps({name: value for name, value in line.items() if value is not ...})


# -- recorded --------------------------------------------------------------------------------------------------


def test_mooncakes_lines_are_read_in_order_of_arrival() -> None:
    trace = parse_trace("t", ["", mooncake(5_000, 600, [1, 3]), mooncake(2_000, 512, [1], 7)])
    assert trace.requests == (Request(0.0, (1,), 512, 7, None, 1), Request(3.0, (1, 3), 600, 10, None, 1))
    assert trace.seconds == 3.0


def test_a_limit_takes_the_first_requests() -> None:
    lines = [mooncake(at, 512, [at]) for at in range(1_000, 9_000, 1_000)]
    assert len(parse_trace("t", lines, limit=3).requests) == 3


def test_what_most_requests_begin_with_is_system_text() -> None:
    lines = [mooncake(at, 3 * 512, [0, at % 3 // 2, at]) for at in range(100, 109)]
    assert parse_trace("t", lines).requests[0].opening == 2
    lines = [mooncake(at, 512, [at]) for at in range(10)]
    assert parse_trace("t", lines).requests[0].opening == 0


def test_arrivals_may_move_within_the_steps_of_recorded_times() -> None:
    coarse = [mooncake(at // 10 * 3_000, 512, [at]) for at in range(100)]
    assert parse_trace("t", coarse).jitter == 3.0
    fine = [mooncake(at * 100, 512, [at]) for at in range(1_001)]
    assert parse_trace("t", fine).jitter == pytest.approx(JITTER_GAPS * 0.1, rel=0.01)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 1: not JSON; expected JSON lines, a request in each"),
        ("[1]", "line 1: not an object; expected JSON lines"),
        ('{"decisions": []}', "line 1: neither hash_ids nor the fields of a decision; expected JSON lines"),
        ('{"timestamp": 0, "input_length": 5}', "line 1: neither hash_ids nor the fields of a decision"),
        (mooncake(0, 513, [1]), "513 tokens need 2 hash_ids, not 1"),
        (mooncake(0, 0, []), "input_length must be a whole number"),
        (mooncake(-1, 512, [1]), "timestamp must be a time"),
        (mooncake(0, 512, [1], 0), "output_length must be a whole number"),
        ('{"hash_ids": ["a"], "input_length": 5}', "whole numbers"),
        ('{"hash_ids": 5, "input_length": 5}', "whole numbers"),
        (mooncake(0, 512, [1 << 64]), "up to 64 bits"),
        ('{"prompt_tokens": true}', "prompt_tokens must be a whole number"),
        (decision(hashes=...), "no hashes"),
        (decision(at="now"), "at must be a time"),
        (" " * 10 + "x" * (4 << 20), "longer than"),
    ],
)
def test_bad_lines_are_named(line: str, reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        parse_trace("t", [line])


def test_an_empty_or_missing_trace_is_none(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no request"):
        parse_trace("t", ["", "  "])
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "nothing.jsonl")
    (tmp_path / "odd.jsonl").write_bytes(b"\xff\xfe")
    (tmp_path / "other.json").write_text('{"a": 1}\n')
    with pytest.raises(TraceError, match=r"other\.json, line 1: neither hash_ids nor"):
        read_trace(tmp_path / "other.json")
    with pytest.raises(TraceError, match="decode"):
        read_trace(tmp_path / "odd.jsonl")


def test_the_name_of_a_trace_is_its_files(tmp_path: Path) -> None:
    path = tmp_path / "night.jsonl"
    path.write_text(mooncake(0, 512, [1]))
    assert read_trace(path).name == "night"


# -- the router's own log --------------------------------------------------------------------------------------


def test_a_decision_is_a_request_with_what_was_reported_of_it() -> None:
    (request,) = parse_trace("t", [decision(reported_prompt_tokens=1_100)]).requests
    assert (request.prompt_tokens, request.output_tokens, len(request.ids)) == (1_100, 5, 3)
    (request,) = parse_trace("t", [decision(output_tokens=..., first_byte_seconds=1.0, total_seconds=3.5)]).requests
    assert (request.prompt_tokens, request.output_tokens) == (1_000, 101)
    (request,) = parse_trace("t", [decision(output_tokens=...)]).requests
    assert request.output_tokens == 1


def test_a_retry_is_no_further_request() -> None:
    lines = [
        decision(request_id="a", at=5.0, attempt=1),
        decision(request_id="b", at=6.0),
        decision(request_id="a", at=7.0, attempt=2, reported_prompt_tokens=1_200),
    ]
    first, second = parse_trace("t", lines).requests
    # It came when it came first, and what the last worker reported of it counts.
    assert (first.at, first.prompt_tokens, second.at) == (0.0, 1_200, 1.0)


def test_an_id_that_a_client_uses_again_names_another_request() -> None:
    lines = [decision(request_id="a", at=5.0, attempt=1), decision(request_id="a", at=6.0, attempt=1)]
    assert len(parse_trace("t", lines).requests) == 2


def test_a_line_that_is_still_being_written_is_left_out() -> None:
    whole = decision(request_id="a") + "\n"
    assert len(parse_trace("t", [whole, decision(request_id="b")[:-9]]).requests) == 1
    with pytest.raises(TraceError, match="line 1: not JSON"):
        parse_trace("t", [decision()[:-9]])


def test_what_was_rounded_to_nothing_is_something() -> None:
    (request,) = parse_trace("t", [decision(prompt_tokens=0, prompt_bytes=0, output_tokens=0, hashes=[])]).requests
    assert (request.prompt_tokens, request.output_tokens, len(request.ids)) == (1, 1, 1)


def test_ids_of_a_log_are_equal_where_prompts_are() -> None:
    start = chain_start(b"", "", "m", "")
    shared, size = 100_000, 150_000
    first = bytes(shared) + b"a" * (size - shared)
    second = bytes(shared) + b"b" * (size - shared)
    tokens = size // 4
    ids = [
        ids_of_hashes(hashes_at(prefix, start, boundaries(size)), tokens, size, own)
        for own, prefix in enumerate((first, second))
    ]
    assert len(ids[0]) == block_count(tokens)
    same = [a == b for a, b in zip(*ids, strict=True)]
    depth = same.index(False)
    assert not any(same[depth:])
    # What lies between two checkpoints is known only when both are.
    assert shared * 7 // 8 <= depth * ID_TOKENS * 4 <= shared


# -- made up ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_made_up_traffic_is_consistent_and_the_same_for_a_seed(kind: str) -> None:
    trace = generate(kind, 400, 1)
    assert trace == generate(kind, 400, 1)
    assert trace != generate(kind, 400, 2)
    assert 400 * 0.9 <= len(trace.requests) <= 400 + 60
    for request in trace.requests:
        assert len(request.ids) == block_count(request.prompt_tokens)
        assert request.output_tokens >= 1
        assert 0 <= request.opening <= len(request.ids)


def test_sessions_of_agents_grow_by_turns_behind_a_shared_text() -> None:
    shape = Agents()
    trace = generate("agent", 2_000, 3)
    sessions: list[list[Request]] = []
    of: dict[int, list[Request]] = {}
    for number, request in enumerate(trace.requests):
        if request.after is None:
            sessions.append([])
            of[number] = sessions[-1]
        else:
            of[number] = of[request.after]
        of[number].append(request)
    for session in sessions:
        assert shape.turns[0] <= len(session) <= shape.turns[1]
        for before, after in pairwise(session):
            growth = after.prompt_tokens - before.prompt_tokens
            assert shape.growth_tokens[0] <= growth <= shape.growth_tokens[1]
            assert before.output_tokens < growth
            whole = before.prompt_tokens // ID_TOKENS
            assert after.ids[:whole] == before.ids[:whole]
            assert after.ids[whole:] != before.ids[whole:]
    openings = {session[0].ids[:39] for session in sessions}
    assert 2 <= len(openings) <= shape.templates
    assert len({session[0].ids[39] for session in sessions}) == len(sessions)


def test_a_mix_has_all_kinds_over_the_same_time() -> None:
    trace = generate("mix", 2_000, 1)
    singles = [request for request in trace.requests if request.after is None and not request.opening]
    short = [request for request in singles if request.prompt_tokens <= 300]
    assert len(short) == 600
    assert len(singles) == 800
    assert max(request.at for request in singles) == pytest.approx(trace.seconds, rel=0.01)
