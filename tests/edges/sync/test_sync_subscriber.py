"""A subscription's bytes: whole, split, too many, and wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from router import sync_subscriber
from router.sync_places import Address, LinkDown
from router.sync_subscriber import Subscription
from tests.edges.sync.rig import wait

CONFIRMED = b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"


def message(data: bytes) -> bytes:
    return b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$%d\r\n%b\r\n" % (len(data), data)


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(script: Script) -> Any:
    """Something that listens, and the address to reach it at."""
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
            await done.wait()
        except OSError:
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Address("127.0.0.1", listener.sockets[0].getsockname()[1], "", None, (), 0)
    finally:
        done.set()
        listener.close()
        await listener.wait_closed()


def says(*pieces: bytes) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    return script


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_messages_arrive_whole_however_they_are_split(size: int) -> None:
    sent = [b"", b"one", b"\r\n$5\r\n", bytes(3_000), b"last"]
    stream = CONFIRMED + b"".join(map(message, sent))
    got: list[object] = []
    async with server(says(*(stream[at : at + size] for at in range(0, len(stream), size)))) as address:
        subscription = Subscription("c", sharded=False, receive=got.append)
        await subscription.open(address)
        await wait(lambda: got == sent)
        assert not subscription.closed.done()
        subscription.close()
        assert subscription.closed.result() == "closed"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"-MOVED 3719 10.0.0.1:6379\r\n", "moved"),
        (b"-NOPERM this user\r\n", "its user may not use the channel"),
        (b"-WRONGPASS invalid\r\n", "it refused the password"),
        (b"-NOAUTH Authentication required.\r\n", "it asks for a password"),
        (b"-ERR DB index is out of range\r\n", "no such database"),
        (b"-ERR unknown command\r\n", "it refused a command"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it does not speak Redis"),
    ],
)
async def test_a_refusal_is_said_in_words(answer: bytes, why: str) -> None:
    async with server(says(answer)) as address:
        with pytest.raises(LinkDown) as caught:
            await Subscription("c", sharded=False, receive=print).open(address)
        assert str(caught.value) == why


async def test_what_is_said_is_what_redis_expects() -> None:
    heard = bytearray()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while b"SSUBSCRIBE" not in heard:
            heard.extend(await reader.read(1_000))
        writer.write(b"+OK\r\n+OK\r\n" + CONFIRMED.replace(b"$9\r\ns", b"$10\r\nss"))

    async with server(script) as address:
        address = Address(address.host, address.port, "", None, ("user", "pä55"), 3)
        subscription = Subscription("c", sharded=True, receive=print)
        await subscription.open(address)
        subscription.close()
    assert bytes(heard) == (
        b"*3\r\n$4\r\nAUTH\r\n$4\r\nuser\r\n$5\r\np\xc3\xa455\r\n"
        b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n*2\r\n$10\r\nSSUBSCRIBE\r\n$1\r\nc\r\n"
    )


async def test_the_end_of_the_connection_shows() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CONFIRMED)
        await writer.drain()
        writer.close()

    async with server(script) as address:
        subscription = Subscription("c", sharded=False, receive=print)
        await subscription.open(address)
        assert await subscription.closed == "the connection broke"


@pytest.mark.parametrize("push", [b"*3\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n:0\r\n", b"-MOVED 1 x\r\n"])
async def test_a_slot_that_has_moved_ends_it(push: bytes) -> None:
    async with server(says(CONFIRMED, push)) as address:
        subscription = Subscription("c", sharded=True, receive=print)
        await subscription.open(address)
        assert await subscription.closed == "moved"


async def test_a_listener_that_fails_is_told_no_more() -> None:
    told: list[object] = []

    def receive(data: object) -> None:
        told.append(data)
        raise RuntimeError

    async with server(says(CONFIRMED, message(b"one") + message(b"two"))) as address:
        subscription = Subscription("c", sharded=False, receive=receive)
        await subscription.open(address)
        assert await subscription.closed == "a message could not be taken in (RuntimeError)"
    assert told == [b"one"]


async def test_a_flood_leaves_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_subscriber, "TURN_SECONDS", 0.0)
    got: list[object] = []
    turns: set[int] = set()
    turn = 0

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def receive(data: object) -> None:
        got.append(data)
        turns.add(turn)

    counting = asyncio.create_task(count())
    sent = [b"%d" % number for number in range(500)]
    async with server(says(CONFIRMED + b"".join(map(message, sent)))) as address:
        subscription = Subscription("c", sharded=False, receive=receive)
        await subscription.open(address)
        await wait(lambda: len(got) == 500)
        subscription.close()
    counting.cancel()
    assert got == sent
    assert len(turns) > 400


async def test_a_message_without_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_subscriber, "MAX_BYTES", 1_000_000)
    got: list[object] = []
    endless = message(bytes(90_000)) + b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$10000000\r\n"
    async with server(says(CONFIRMED, endless, *[bytes(10_000)] * 200)) as address:
        subscription = Subscription("c", sharded=False, receive=got.append)
        await subscription.open(address)
        assert await subscription.closed == "a message without end"
    assert got == [bytes(90_000)]


async def test_a_server_that_says_nothing_can_be_left() -> None:
    async with server(says()) as address:
        subscription = Subscription("c", sharded=False, receive=print)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await subscription.open(address)
        assert subscription.closed.done()


async def test_nobody_there_is_what_the_system_says() -> None:
    async with server(says()) as address:
        pass
    with pytest.raises(OSError, match=r"refused|Connect"):
        await Subscription("c", sharded=False, receive=print).open(address)
