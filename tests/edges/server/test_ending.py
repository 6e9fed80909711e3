"""The downstream protocol on raw sockets. The end of a replica."""

from __future__ import annotations

import asyncio

from tests.edges.server.rig import HOST, Rig, post


async def test_answers_of_a_draining_replica_end_their_connection(rig: Rig) -> None:
    async with rig.connected() as raw, rig.connected() as other:
        await raw.send(post(body=b"before"))
        assert await raw.answer() == (200, b"before")
        await other.send(b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
        await other.answer()
        rig.connections.draining = True
        await raw.send(post(body=b"after"))
        answer = await raw.rest()
        assert b"\r\nconnection: close\r\n" in answer
        assert answer.endswith(b"after")
        await other.send(b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
        assert b"connection: close" in await other.rest()


async def test_a_kept_connection_outlives_the_listener_for_a_moment(rig: Rig) -> None:
    async with rig.connected() as raw:
        await raw.send(post(body=b"before"))
        await raw.answer()
        rig.connections.draining = True
        for connection in rig.connections.open:
            connection.shutdown()
        await asyncio.sleep(0.05)
        await raw.send(post(body=b"written meanwhile"))
        assert (await raw.rest()).endswith(b"written meanwhile")
