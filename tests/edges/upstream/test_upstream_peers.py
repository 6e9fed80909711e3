"""The answer parser beside h11 and aiohttp: the same bytes never mean something else to it, and it accepts no more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.upstream_corpus import ALL, EDITS, SURPLUS, WELL_FORMED, Case, Outcome, bytewise, edited, read_answer
from tests.edges.upstream.peers import aiohttp_outcome, h11_outcome


@pytest.fixture(scope="module")
def idle_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """aiohttp's parser wants a loop, and never runs it."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def meaning(outcome: Outcome) -> Outcome:
    """Without what peers judge otherwise: keeping the connection; h11 writes codings in lower case."""
    headers = tuple((name, value.lower() if name == b"transfer-encoding" else value) for name, value in outcome.headers)
    return replace(outcome, headers=headers, reusable=False)


@pytest.mark.parametrize("case", WELL_FORMED, ids=lambda case: case.name)
def test_well_formed_answers_mean_the_same_to_all(case: Case, idle_loop: asyncio.AbstractEventLoop) -> None:
    expected = meaning(case.expected)
    for pieces in ([case.data], list(bytewise(case.data))):
        assert meaning(h11_outcome(pieces, method=case.method)) == expected
        assert meaning(aiohttp_outcome(pieces, idle_loop, method=case.method)) == expected


@pytest.mark.parametrize("case", SURPLUS, ids=lambda case: case.name)
def test_bytes_behind_an_answer_are_no_part_of_it(case: Case) -> None:
    assert meaning(h11_outcome([case.data], method=case.method)) == meaning(case.expected)


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_no_answer_means_something_else_to_a_peer(case: Case, idle_loop: asyncio.AbstractEventLoop) -> None:
    agree(case.data, case.method, idle_loop)


def agree(data: bytes, method: bytes, loop: asyncio.AbstractEventLoop) -> None:
    """An answer that we and a peer accept is the same one, and a connection that we keep is kept there."""
    ours = read_answer([data], method=method)
    if ours.end != "complete":
        return
    while data[-1:] in b"\r\n" and read_answer([data[:-1]], method=method) == ours:
        data = data[:-1]  # a blank line behind an answer is nothing to llhttp
    for theirs in (h11_outcome([data], method=method), aiohttp_outcome([data], loop, method=method)):
        if theirs.end == "complete":
            assert meaning(theirs) == meaning(ours)
            assert theirs.reusable or not ours.reusable


@settings(max_examples=200)
@given(case=st.sampled_from(ALL), edits=EDITS)
def test_damaged_answers(case: Case, edits: list[tuple[str, int, bytes]], idle_loop: asyncio.AbstractEventLoop) -> None:
    agree(edited(case.data, edits), case.method, idle_loop)
