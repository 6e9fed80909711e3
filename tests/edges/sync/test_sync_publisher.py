"""What is published: in order, confirmed as it comes, and kept where it was not."""

from __future__ import annotations

import asyncio

import pytest

from router import sync_publisher
from router.sync_places import Address, LinkDown
from router.sync_publisher import Publisher
from tests.edges.sync.rig import wait
from tests.edges.sync.test_sync_subscriber import Script, says, server


def said(message: bytes) -> bytes:
    return b"*3\r\n$7\r\nPUBLISH\r\n$1\r\nc\r\n$%d\r\n%b\r\n" % (len(message), message)


def hears(heard: bytearray, *answers: bytes) -> Script:
    """Answers to what is read, one for each reading, and then nothing more."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            heard.extend(await reader.read(100_000))
            writer.write(answer)
        while piece := await reader.read(100_000):
            heard.extend(piece)

    return script


async def test_messages_go_out_at_once_and_in_order_and_are_kept_until_they_are_confirmed() -> None:
    heard = bytearray()
    async with server(hears(heard, b":1\r\n:1")) as address:
        publisher = Publisher("c", sharded=False)
        await publisher.open(address)
        sent = [b"one", b"\r\n$5\r\n", b"", b"last"]
        for message in sent:
            publisher.publish(message)
        await wait(lambda: bytes(heard) == b"".join(map(said, sent)))
        # The second confirmation is not whole yet.
        await wait(lambda: publisher.unconfirmed == sent[1:])
        assert publisher.confirmed
        assert publisher.ready
        publisher.close()
        assert publisher.unconfirmed == sent[1:]
        assert not publisher.ready


async def test_it_says_who_it_is_and_asks_between_messages() -> None:
    heard = bytearray()
    answers = (b"+OK\r\n", b"+OK\r\n", b":1\r\n*2\r\n$4\r\nrole\r\n$6\r\nmaster\r\n:1\r\n")
    async with server(hears(heard, *answers)) as address:
        publisher = Publisher("c", sharded=True)
        await publisher.open(Address(address.host, address.port, "", None, ("user", "pa55"), 3))
        publisher.publish(b"before")
        asking = asyncio.create_task(publisher.ask("HELLO"))
        await asyncio.sleep(0)
        publisher.publish(b"after")
        assert await asking == [b"role", b"master"]
        await wait(lambda: not publisher.unconfirmed)
        publisher.close()
    assert heard.startswith(b"*3\r\n$4\r\nAUTH\r\n$4\r\nuser\r\n$4\r\npa55\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n")
    assert b"*3\r\n$8\r\nSPUBLISH\r\n$1\r\nc\r\n$6\r\nbefore\r\n*1\r\n$5\r\nHELLO\r\n*3\r\n" in heard


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"-NOPERM this user\r\n", "its user may not use the channel"),
        (b"-MOVED 3719 10.0.0.1:6379\r\n", "moved"),
        (b"-NOAUTH Authentication required.\r\n", "it asks for a password"),
        (b"-READONLY of some kind\r\n", "it refused a command"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it does not speak Redis"),
        (b":1\r\n:1\r\n", "it does not speak Redis"),
        (b"$2000000\r\n" + bytes(1_100_000), "an answer without end"),
    ],
)
async def test_what_is_no_confirmation_ends_it(answer: bytes, why: str) -> None:
    async with server(hears(bytearray(), answer)) as address:
        publisher = Publisher("c", sharded=False)
        await publisher.open(address)
        publisher.publish(b"message")
        assert await publisher.closed == why


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"-ERR AUTH <password> called without any password configured\r\n", "it refused the password"),
        (b"-WRONGPASS invalid\r\n", "it refused the password"),
    ],
)
async def test_a_refused_password_is_said_in_words(answer: bytes, why: str) -> None:
    async with server(hears(bytearray(), answer)) as address:
        publisher = Publisher("c", sharded=False)
        with pytest.raises(LinkDown) as caught:
            await publisher.open(Address(address.host, address.port, "", None, ("pa55",), 0))
        assert str(caught.value) == why
        assert publisher.closed.done()


async def test_no_more_is_on_its_way_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_publisher, "MAX_MESSAGES", 3)
    monkeypatch.setattr(sync_publisher, "MAX_BYTES", 1_000)
    async with server(hears(bytearray())) as address:
        publisher = Publisher("c", sharded=False)
        await publisher.open(address)
        for message in (b"one", b"two", b"three"):
            assert publisher.ready
            publisher.publish(message)
        assert not publisher.ready
        publisher.close()
        publisher = Publisher("c", sharded=False)
        await publisher.open(address)
        publisher.publish(bytes(1_000))
        assert not publisher.ready
        publisher.close()


async def test_a_server_that_owes_an_answer_is_overdue_until_it_says_anything() -> None:
    async with server(says()) as address:
        publisher = Publisher("c", sharded=False)
        await publisher.open(address)
        assert not publisher.overdue(0.0)
        publisher.publish(b"message")
        await wait(lambda: publisher.overdue(0.001))
        assert not publisher.overdue(60.0)
        publisher.close()


async def test_whoever_waits_for_an_answer_learns_of_the_end() -> None:
    async with server(hears(bytearray())) as address:
        publisher = Publisher("c", sharded=False)
        await publisher.open(address)
        asking = asyncio.create_task(publisher.ask("HELLO"))
        await asyncio.sleep(0)
        publisher.close("enough")
        with pytest.raises(LinkDown, match="enough"):
            await asking
        with pytest.raises(LinkDown, match="enough"):
            await publisher.ask("HELLO")
