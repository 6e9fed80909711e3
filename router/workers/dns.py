"""Names to addresses: by the system's resolver, or by asking one name server.

IPv4 addresses count where there are any, else those of IPv6: a machine with both is one worker. Every lookup ends
within its deadline; "there is no such name" is an answer, without addresses, and everything else that goes wrong is a
DnsError.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from router.workers.dns_wire import AAAA, NOERROR, NXDOMAIN, A, Answer, Malformed, answer, question

TRIES: Final = 2
_MAX_BYTES: Final = 65_535
_NO_SUCH_NAME: Final = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})

Look = Callable[[str, socket.AddressFamily], Sequence[str]]


class DnsError(Exception):
    """No answer: time-out, a server that refuses or fails, or an answer that is none."""


class Resolver(Protocol):
    """Where addresses come from."""

    async def addresses(self, name: str) -> Sequence[str]:
        """The addresses of a name, in no order; empty if it has none. Raises DnsError."""
        ...


def system_lookup(name: str, family: socket.AddressFamily) -> Sequence[str]:
    """Blocking: what the system says (/etc/hosts, search domains and all); raises socket.gaierror."""
    found = socket.getaddrinfo(name, None, family=family, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class SystemResolver:
    """The system's resolver in threads, which can't be called off: one that hangs is waited for, not doubled."""

    def __init__(self, timeout: float, look: Look = system_lookup) -> None:
        self._timeout = timeout
        self._look = look
        self._running: dict[str, asyncio.Future[Sequence[str]]] = {}

    async def addresses(self, name: str) -> Sequence[str]:
        future = self._running.get(name)
        if future is None:
            future = self._running[name] = self._begin(name)
        try:
            found = await asyncio.wait_for(asyncio.shield(future), self._timeout)
        except TimeoutError:
            raise DnsError("no answer in time") from None
        finally:
            if future.done():
                self._running.pop(name, None)
        return found

    def _begin(self, name: str) -> asyncio.Future[Sequence[str]]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sequence[str]] = loop.create_future()
        # Its failure may come when nobody waits for it any more.
        future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

        def settle(found: Sequence[str] | DnsError) -> None:
            if future.cancelled():
                return
            if isinstance(found, DnsError):
                future.set_exception(found)
            else:
                future.set_result(found)

        def work() -> None:
            found = self._found(name)
            # A loop that has closed meanwhile takes no more calls.
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, found)

        # A daemon, since the end of the process must not wait for a name server.
        threading.Thread(target=work, name="dns", daemon=True).start()
        return future

    def _found(self, name: str) -> Sequence[str] | DnsError:
        try:
            for family in (socket.AF_INET, socket.AF_INET6):
                try:
                    found = self._look(name, family)
                except socket.gaierror as error:
                    if error.errno not in _NO_SUCH_NAME:
                        return DnsError(error.strerror or "failed")
                else:
                    if found:
                        return found
        except (OSError, UnicodeError) as error:
            return DnsError(str(error))
        return []


class ServerResolver:
    """Asks one name server, over UDP and where the answer is too long for that over TCP."""

    def __init__(self, host: str, port: int, timeout: float) -> None:
        self._host = host
        self._port = port
        self._timeout = timeout

    async def addresses(self, name: str) -> Sequence[str]:
        for kind in (A, AAAA):
            found = await self._ask(name, kind)
            if found.addresses:
                return found.addresses
        return ()

    async def _ask(self, name: str, kind: int) -> Answer:
        problem = "no answer in time"
        for _ in range(TRIES):
            try:
                async with asyncio.timeout(self._timeout / TRIES):
                    found = await self._once(name, kind)
            except TimeoutError:
                continue
            except (OSError, EOFError, Malformed) as error:
                problem = str(error) or type(error).__name__
                continue
            if found.code in (NOERROR, NXDOMAIN):
                return found
            problem = f"the name server answered with code {found.code}"
        raise DnsError(problem)

    async def _once(self, name: str, kind: int) -> Answer:
        number = secrets.randbits(16)
        query = question(number, name, kind)
        loop = asyncio.get_running_loop()
        transport, exchange = await loop.create_datagram_endpoint(
            lambda: _Exchange(loop, number, name, kind), remote_addr=(self._host, self._port)
        )
        try:
            transport.sendto(query)
            found = await exchange.answered
        finally:
            transport.close()
        return await self._over_tcp(query, number, name, kind) if found.truncated else found

    async def _over_tcp(self, query: bytes, number: int, name: str, kind: int) -> Answer:
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=_MAX_BYTES)
        try:
            writer.write(struct.pack("!H", len(query)) + query)
            (size,) = struct.unpack("!H", await reader.readexactly(2))
            return answer(await reader.readexactly(size), number, name, kind)
        finally:
            writer.close()


class _Exchange(asyncio.DatagramProtocol):
    """Waits for the one datagram that answers; others, which anybody may have sent, are passed over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, number: int, name: str, kind: int) -> None:
        self.answered: asyncio.Future[Answer] = loop.create_future()
        self._asked = (number, name, kind)

    def datagram_received(self, data: bytes, addr: object) -> None:
        if self.answered.done():
            return
        try:
            self.answered.set_result(answer(data, *self._asked))
        except Malformed:
            return

    def error_received(self, exc: Exception) -> None:
        if not self.answered.done():
            self.answered.set_exception(OSError(f"the name server can't be reached: {exc}"))
