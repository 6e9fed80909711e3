"""The client connections of a replica, and how uvicorn gets a protocol for a new one."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from router.dataplane.asgi import ControlSide
from router.dataplane.deadlines import check_deadlines
from router.dataplane.gate import Bounds, Gate
from router.dataplane.server import RouterProtocol


class Connections:
    """What all of them share; called by uvicorn in place of a class of its own."""

    __slots__ = ("_side", "_side_of", "bounds", "draining", "gate", "open", "turned_away")

    def __init__(self, bounds: Bounds, gate: Gate) -> None:
        self.bounds = bounds
        self.gate = gate
        self.open: set[RouterProtocol] = set()
        # Of those, the ones that found no room.
        self.turned_away: set[RouterProtocol] = set()
        # The replica is about to end: each answer then says that its connection does too.
        self.draining = False
        self._side: ControlSide | None = None
        self._side_of: ServerState | None = None

    def __call__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> RouterProtocol:
        """A protocol for a connection of this server."""
        if self._side is None or self._side_of is not server_state:
            self._side = ControlSide(config, server_state, app_state)
            self._side_of = server_state
        return RouterProtocol(self, self._side, _loop or asyncio.get_running_loop())

    def sweep(self, now: float) -> None:
        """Close what has taken too long; called about once a second."""
        for connection in tuple(self.open):
            check_deadlines(connection, now)
