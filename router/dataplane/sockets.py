"""What the kernel knows of a connection while nobody reads from it."""

from __future__ import annotations

import asyncio
import socket

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
