"""What the downstream protocol is told: its bounds, and whom it asks about requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from router.dataplane.outgoing import Outgoing
from router.errors import RouterError

if TYPE_CHECKING:
    from router.dataplane.client import Client
    from router.dataplane.server import RouterProtocol


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one connection may send and how long it may take; bytes and seconds."""

    header_bytes: int = 32 * 1024
    header_count: int = 100
    body_bytes: int = 64 * 1024 * 1024
    header_seconds: float = 10.0
    body_seconds: float = 60.0
    write_stall_seconds: float = 60.0
    keep_alive_seconds: float = 75.0
    # Connections at a time, and how many beyond them are told in good order that there is no room.
    connections: int = 10_000
    turned_away: int = 16


class Gate(Protocol):
    """Who decides about requests: the data plane's entry."""

    outgoing: Outgoing

    def admit(self, connection: RouterProtocol, method: bytes, path: bytes, query: bytes) -> Client | None:
        """A client for an inference request, perhaps refused already; None for the control plane's requests."""
        ...

    def begin(self, client: Client) -> None:
        """The request is whole and its turn has come."""
        ...

    def left(self, client: Client) -> None:
        """The connection was lost before the request was whole."""
        ...

    def rejected(self, error: RouterError) -> None:
        """A request was refused before it was one."""
        ...

    def turned_away(self, error: RouterError) -> None:
        """A connection was refused before it could ask for anything."""
        ...
