"""Names to addresses: over real sockets from a server, and from the system through a lookup made by hand."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from loadtest.fleet import free_port
from router.workers.dns import DnsError, ServerResolver, SystemResolver, system_lookup
from router.workers.dns_wire import A, question
from tests.dns_server import DnsServer, response

NAME = "vllm.example"


@pytest.fixture
def server() -> Iterator[DnsServer]:
    with DnsServer() as running:
        yield running


def resolver(server: DnsServer, timeout: float = 5.0) -> ServerResolver:
    return ServerResolver("127.0.0.1", server.port, timeout)


# -- asking a server -------------------------------------------------------------------------------------------


async def test_a_name_has_the_addresses_that_the_server_says(server: DnsServer) -> None:
    server.records[NAME] = ["127.0.0.2", "127.0.0.3"]
    assert sorted(await resolver(server).addresses(NAME)) == ["127.0.0.2", "127.0.0.3"]


async def test_addresses_of_the_newer_kind_count_where_there_are_no_others(server: DnsServer) -> None:
    server.records[NAME] = ["::1"]
    assert list(await resolver(server).addresses(NAME)) == ["::1"]
    server.records[NAME] = ["::1", "127.0.0.2"]
    assert list(await resolver(server).addresses(NAME)) == ["127.0.0.2"]


async def test_a_name_that_nobody_knows_has_none(server: DnsServer) -> None:
    assert list(await resolver(server).addresses(NAME)) == []


async def test_an_answer_that_fits_no_datagram_comes_another_way(server: DnsServer) -> None:
    server.records[NAME] = [f"127.0.1.{number}" for number in range(1, 201)]
    assert len(await resolver(server).addresses(NAME)) == 200
    assert server.over_tcp == 1


async def test_a_server_that_fails_is_no_answer(server: DnsServer) -> None:
    server.code = 2
    with pytest.raises(DnsError, match="code 2"):
        await resolver(server).addresses(NAME)
    assert len(server.asked) == 2


async def test_a_server_that_says_nothing_is_not_waited_for(server: DnsServer) -> None:
    server.mute = True
    with pytest.raises(DnsError, match="no answer in time"):
        await resolver(server, timeout=0.1).addresses(NAME)


async def test_where_no_server_is_there_is_no_answer() -> None:
    with pytest.raises(DnsError, match="reached"):
        await ServerResolver("127.0.0.1", free_port(), 5.0).addresses(NAME)


async def test_what_answers_another_question_is_passed_over(server: DnsServer) -> None:
    server.records[NAME] = ["127.0.0.2"]
    forged = response(question(0, "other.example", A), ["127.0.0.66"])
    server.noise = [b"", b"noise", forged]
    assert list(await resolver(server).addresses(NAME)) == ["127.0.0.2"]


# -- asking the system -----------------------------------------------------------------------------------------

V4, V6 = ["10.0.0.1"], ["fd00::1"]
NO_NAME = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
AGAIN = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


@pytest.mark.parametrize(
    ("four", "six", "found"),
    [(V4, V6, V4), (NO_NAME, V6, V6), (NO_NAME, NO_NAME, []), ([], V6, V6)],
)
async def test_the_system_is_asked_for_both_kinds(four: object, six: object, found: list[str]) -> None:
    def look(name: str, family: socket.AddressFamily) -> list[str]:
        said = four if family is socket.AF_INET else six
        if isinstance(said, Exception):
            raise said
        assert isinstance(said, list)
        return said

    assert list(await SystemResolver(5.0, look).addresses(NAME)) == found


async def test_a_lookup_that_fails_for_now_says_nothing_of_the_name() -> None:
    def look(name: str, family: socket.AddressFamily) -> list[str]:
        raise AGAIN

    with pytest.raises(DnsError, match="Temporary failure"):
        await SystemResolver(5.0, look).addresses(NAME)


async def test_a_lookup_that_hangs_is_neither_waited_for_nor_doubled() -> None:
    calls: list[str] = []
    hang = threading.Event()

    def look(name: str, family: socket.AddressFamily) -> list[str]:
        calls.append(name)
        hang.wait(20)
        return V4

    slow = SystemResolver(0.02, look)
    for _ in range(3):
        with pytest.raises(DnsError, match="in time"):
            await slow.addresses(NAME)
    assert calls == [NAME]
    hang.set()
    # What it found after all is the answer to whoever asks next.
    for _ in range(500):
        try:
            found = await slow.addresses(NAME)
        except DnsError:
            continue
        break
    assert list(found) == V4
    assert calls == [NAME]


async def test_the_system_knows_this_machine() -> None:
    assert list(await SystemResolver(10.0).addresses("localhost")) == ["127.0.0.1"]
    assert list(system_lookup("localhost", socket.AF_INET)) == ["127.0.0.1"]


async def test_lookups_of_different_names_go_side_by_side() -> None:
    both = threading.Barrier(2, timeout=20)

    def look(name: str, family: socket.AddressFamily) -> list[str]:
        both.wait()
        return V4

    system = SystemResolver(20.0, look)
    found = await asyncio.gather(system.addresses("a.example"), system.addresses("b.example"))
    assert [list(part) for part in found] == [V4, V4]
