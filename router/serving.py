"""One replica as a process: uvicorn around the app, with a drain that the balancer can follow."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from types import FrameType

import uvicorn

from router.app import Router
from router.descriptors import descriptor_warnings, raise_limit
from router.settings import Settings

log = logging.getLogger("router")
FIRST_LOOK_SECONDS = 2.0
BACKLOG = 2048


class RouterServer(uvicorn.Server):
    """Turns readiness off first, goes on accepting for a moment, then lets what runs finish within the grace."""

    def __init__(self, config: uvicorn.Config, router: Router) -> None:
        super().__init__(config)
        self._router = router
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await self._router.start()
        try:
            await super().serve(sockets)
        finally:
            await self._router.aclose()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # A balancer without health checks sends requests as soon as somebody listens.
        await self._router.first_look(FIRST_LOOK_SECONDS)
        await super().startup(sockets)
        if self.started:
            for server in self.servers:
                for listener in server.sockets:
                    print(f"listening http://{_shown(listener.getsockname())}", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, but connections in line at the door are let in before it closes, or they would be reset."""
        in_line = [connection for listener in sockets or [] for connection in _accept_all(listener)]
        entering = [asyncio.create_task(self._let_in(connection)) for connection in in_line]
        await super().shutdown(sockets)
        await asyncio.gather(*entering, return_exceptions=True)

    async def _let_in(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(
            lambda: self._router.protocol(self.config, self.server_state, self.lifespan.state, loop), connection
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain. Second: end at once."""
        if self._router.draining:
            self.should_exit = self.force_exit = True
            return
        self._router.draining = True
        delay = self._router.settings.timeouts.drain_delay if sig == signal.SIGTERM else 0.0
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_drain, delay)

    def _begin_drain(self, delay: float) -> None:
        log.info("draining: not ready any more, %d requests in flight", self._router.app.active)
        assert self._loop is not None
        self._router.protocol.draining = True
        self._loop.call_later(delay, self._stop_accepting)

    def _stop_accepting(self) -> None:
        self.should_exit = True


def run(settings: Settings, *, reuse_port: bool = False) -> int:
    """Serve until a signal ends it; the exit code."""
    configure_logging(settings)
    for warning in descriptor_warnings(raise_limit()):
        log.warning("%s", warning)
    router = Router(settings)
    config = uvicorn.Config(
        router.app,
        http=router.protocol,
        loop="uvloop",
        ws="none",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(settings.timeouts.keep_alive),
        timeout_graceful_shutdown=int(settings.timeouts.drain),
    )
    listener = _bind(settings, reuse_port=reuse_port)
    if listener is None:
        return 1
    RouterServer(config, router).run([listener])
    return 0


def configure_logging(settings: Settings) -> None:
    """One line per event, to standard error or a file."""
    handler: logging.Handler
    if settings.log.file is not None:
        handler = logging.FileHandler(settings.log.file)
    else:
        handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log.level.upper())
    # These log request lines with addresses of workers in them.
    for noisy in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # A full disk must not turn into a failed request.
    logging.raiseExceptions = False


def _bind(settings: Settings, *, reuse_port: bool) -> socket.socket | None:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        print(f"prefix-router: can't listen on {settings.host}:{settings.port}: {error.strerror}", file=sys.stderr)
        return None
    listener.set_inheritable(True)
    return listener


def _accept_all(listener: socket.socket) -> list[socket.socket]:
    """The connections that nobody has accepted yet."""
    accepted: list[socket.socket] = []
    listener.setblocking(False)
    with contextlib.suppress(OSError):
        while len(accepted) < BACKLOG:
            accepted.append(listener.accept()[0])
    return accepted


def _shown(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
