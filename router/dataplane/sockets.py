"""Sockets: a connection to a worker, and what the kernel knows of one while nobody reads from it."""

from __future__ import annotations

import asyncio
import socket
import ssl

from router.settings import may_be_a_worker

# States of `tcp_info` after a FIN or a reset has come: CLOSE, CLOSE_WAIT, LAST_ACK, CLOSING, TIME_WAIT.
_LEFT = frozenset({6, 7, 8, 9, 11})


def peer_has_left(transport: asyncio.BaseTransport) -> bool:
    """Whether the other side has ended the connection, behind whatever of it has not been read; Linux alone knows."""
    kind = getattr(socket, "TCP_INFO", None)
    sock = transport.get_extra_info("socket")
    if kind is None or sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        state: bytes = sock.getsockopt(socket.IPPROTO_TCP, kind, 1)
    except OSError:
        return False
    return state[0] in _LEFT


async def open_connection(
    loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol, host: str, port: int, tls: ssl.SSLContext | None
) -> None:
    """Connect a protocol to a worker; raises OSError, also where its name leads to what can't be a worker."""
    name = host if tls is not None else None
    transport, _ = await loop.create_connection(lambda: protocol, host, port, ssl=tls, server_hostname=name)
    # The name was checked when it was configured; where it leads now is its name server's word.
    peer = transport.get_extra_info("peername")
    if peer is not None and not may_be_a_worker(peer[0]):
        raise ConnectionRefusedError("not an address of a worker")
