"""The downstream protocol on raw sockets. How answers are framed, and how they break."""

from __future__ import annotations

import pytest

from tests.edges.server.rig import Rig, post


async def test_an_answer_that_has_no_body_declares_none(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(b"/v1/empty") + post(b"/v1/x", b"next"))
        assert b"content-length" not in await raw.until(b"\r\n\r\n")
        assert await raw.answer() == (200, b"next")


async def test_a_stream_is_chunked_and_ends_with_its_last_chunk(rig: Rig) -> None:
    answer = await rig.exchange(post(b"/v1/stream", headers=b"Connection: close\r\n"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    assert body == b"b\r\ndata: one\n\n\r\nb\r\ndata: two\n\n\r\n0\r\n\r\n"


async def test_a_stream_for_http_1_0_is_not_chunked_and_ends_with_the_connection(rig: Rig) -> None:
    answer = await rig.exchange(b"POST /v1/stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert body == b"data: one\n\ndata: two\n\n"


@pytest.mark.parametrize("path", [b"/v1/broken", b"/v1/told"])
async def test_a_broken_stream_has_no_last_chunk(rig: Rig, path: bytes) -> None:
    answer = await rig.exchange(post(path))
    assert b"data: two\n\n\r\n" in answer
    assert not answer.endswith(b"0\r\n\r\n")


async def test_a_broken_answer_with_a_length_falls_short_of_it(rig: Rig) -> None:
    head, _, body = (await rig.exchange(post(b"/v1/short"))).partition(b"\r\n\r\n")
    assert b"content-length: 100" in head
    assert body == b"only this"


async def test_a_broken_stream_for_http_1_0_is_reset_unless_it_says_so_itself(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(b"POST /v1/broken HTTP/1.0\r\n\r\n")
        assert await raw.was_reset()
    told = await rig.exchange(b"POST /v1/told HTTP/1.0\r\n\r\n")
    assert told.endswith(b"data: two\n\n")


async def test_a_failure_after_the_last_byte_takes_nothing_back(rig: Rig) -> None:
    rig.gate.outgoing.expect()
    rig.gate.outgoing.expect()  # so that what is last is put off
    async with rig.connected() as raw:
        for body in (b"one", b"two"):
            await raw.send(post(b"/v1/afterwards", body))
            assert await raw.answer() == (200, body)


async def test_the_clients_id_is_kept_if_it_is_usable(rig: Rig) -> None:
    for given, shown in ((b"abc-1", b"abc-1"), (b"a b", b"spare"), (b"x" * 200, b"spare")):
        answer = await rig.exchange(post(headers=b"X-Request-Id: %b\r\nConnection: close\r\n" % given))
        assert b"\r\nx-request-id: %b\r\n" % shown in answer
