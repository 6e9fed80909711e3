"""The way of a request that is not inference: through uvicorn's request cycle to the ASGI app of the control plane."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from router.dataplane.flow import Flow
from router.dataplane.headers import Headers

# So much of a body may lie here unread.
_BODY_BYTES: Final = 65536


class ControlRequest:
    """One request of the control plane, in the place where inference has a `Client`."""

    __slots__ = ("_cycle", "_flow", "_side")

    def __init__(self, side: ControlSide, cycle: Any, flow: Flow) -> None:
        self._side = side
        self._cycle = cycle
        self._flow = flow

    @property
    def response_complete(self) -> bool:
        """The answer has ended."""
        return bool(self._cycle.response_complete)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Its turn: run the app, in a task that the server's shutdown waits for."""
        tasks = self._side.tasks
        task = loop.create_task(self._cycle.run_asgi(self._side.app))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def feed(self, piece: bytes) -> None:
        """More of the body; the client is not read from while much of it waits for the app."""
        cycle = self._cycle
        if cycle.response_complete:
            return
        cycle.body += piece
        if len(cycle.body) > _BODY_BYTES:
            self._flow.pause_reading()
        cycle.message_event.set()

    def end_body(self) -> None:
        """The request is whole."""
        if not self._cycle.response_complete:
            self._cycle.more_body = False
            self._cycle.message_event.set()

    def be_last(self) -> None:
        """The connection ends with this answer, unless its head has promised otherwise."""
        self._cycle.keep_alive = self._cycle.keep_alive and self._cycle.response_started

    def lost(self) -> None:
        """Nobody is left to read what the app is about to say."""
        if not self._cycle.response_complete:
            self._cycle.disconnected = True
            self._cycle.message_event.set()


class ControlSide:
    """uvicorn's side of the server, one for all connections: its app, its sets of tasks and connections."""

    __slots__ = (
        "_access_log",
        "_app_state",
        "_asgi_version",
        "_root_path",
        "_state",
        "app",
        "connections",
        "tasks",
    )

    def __init__(self, config: Config, state: ServerState, app_state: dict[str, Any]) -> None:
        if not config.loaded:
            config.load()
        self.app: Any = config.loaded_app
        # Its shutdown waits until both are empty.
        self.connections: set[Any] = state.connections
        self.tasks: set[asyncio.Task[None]] = state.tasks
        self._state = state
        self._app_state = app_state
        self._asgi_version: str = config.asgi_version
        self._root_path = config.root_path
        self._access_log = logging.getLogger("uvicorn.access").hasHandlers()

    def request(
        self,
        transport: asyncio.Transport,
        flow: Flow,
        head: tuple[bytes, bytes, str],
        headers: Headers,
        *,
        expects: bool,
        keep_alive: bool,
        done: Callable[[], None],
    ) -> ControlRequest:
        """A request with this method, target and version; raises ValueError and httptools' errors for odd targets."""
        cycle = RequestResponseCycle(
            scope=self._scope(transport, head, headers),
            transport=transport,
            flow=flow,  # type: ignore[arg-type]
            logger=logging.getLogger("uvicorn.error"),
            access_logger=logging.getLogger("uvicorn.access"),
            access_log=self._access_log,
            default_headers=self._state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=expects,
            keep_alive=keep_alive,
            on_response=done,
        )
        return ControlRequest(self, cycle, flow)

    def _scope(self, transport: asyncio.Transport, head: tuple[bytes, bytes, str], headers: Headers) -> Any:
        method, target, version = head
        url: Any = httptools.parse_url(target)
        raw_path: bytes | None = url.path
        if raw_path is None:
            raise ValueError("a target without a path")
        path = raw_path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": self._asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "method": method.decode("ascii"),
            "scheme": "https" if is_ssl(transport) else "http",
            "path": self._root_path + unquote(path),
            "raw_path": self._root_path.encode("ascii") + raw_path,
            "query_string": url.query or b"",
            "root_path": self._root_path,
            "headers": headers,
            "server": get_local_addr(transport),
            "client": get_remote_addr(transport),
            "state": self._app_state.copy(),
        }
