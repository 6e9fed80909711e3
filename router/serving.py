"""One replica as a process: uvicorn around the app, with a drain that the balancer can follow."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import signal
import socket
import sys
from types import FrameType
from typing import Any, cast

import uvicorn

from router.app import Router
from router.collector import settle
from router.descriptors import descriptor_warnings, raise_limit
from router.reload import Sources
from router.settings import Settings, cautions
from router.siblings import Member

log = logging.getLogger("router")
FIRST_LOOK_SECONDS = 2.0
BACKLOG = 2048
# What a process tells its parent, and what it is told.
LISTENING, LEAVING, FORCE, RELOAD = b"listening", b"leaving", b"force", b"reload"


class RouterServer(uvicorn.Server):
    """Turns readiness off first, goes on accepting for a moment, then lets what runs finish within the grace.

    With a parent, whom `channel` leads to, it tells how far it is, and ends when the parent is gone.
    """

    def __init__(self, config: uvicorn.Config, router: Router, channel: socket.socket | None = None) -> None:
        super().__init__(config)
        self._router = router
        self._channel = channel
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving = asyncio.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            # With nohup, this signal is ignored already.
            signal.signal(signal.SIGHUP, self._hang_up)
        if self._channel is not None:
            self._channel.setblocking(False)
            self._loop.add_reader(self._channel, self._hear_parent)
        await self._router.start()
        try:
            await super().serve(sockets)
        finally:
            await self._router.aclose()
            self._last_word()

    def _last_word(self) -> None:
        """What a scrape that comes too late would have said."""
        outcomes = {outcome: int(count) for (outcome,), count in self._router.metrics.outcomes.values.items()}
        said = ", ".join(f"{outcome} {count}" for outcome, count in outcomes.items())
        log.info("ended after %d requests%s", sum(outcomes.values()), f": {said}" if said else "")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # A balancer without health checks sends requests as soon as somebody listens.
        await self._router.first_look(FIRST_LOOK_SECONDS)
        settle()
        await super().startup(sockets)
        if self.started and self._channel is not None:
            self._tell(LISTENING)
        elif self.started:
            for server in self.servers:
                for listener in server.sockets:
                    print(f"listening http://{shown(listener.getsockname())}", flush=True)

    async def main_loop(self) -> None:
        """Until it is to end; uvicorn's looks ten times a second whether it is."""
        if not await self.on_tick(0):
            await self._leaving.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, but connections in line at the door are let in before it closes, or they would be reset."""
        in_line = [connection for listener in sockets or [] for connection in _accept_all(listener)]
        entering = [asyncio.create_task(self._let_in(connection)) for connection in in_line]
        await super().shutdown(sockets)
        await asyncio.gather(*entering, return_exceptions=True)

    async def _let_in(self, connection: socket.socket) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)

    def _protocol(self) -> Any:
        return self._router.connections(self.config, self.server_state, self.lifespan.state)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain. Second: end at once, unless there is a parent to say so.

        A service manager may signal parent and children alike: that is one signal, not two.
        """
        if self._router.draining:
            if self._channel is None:
                self._leave(at_once=True)
            return
        self._router.draining = True
        delay = self._router.settings.timeouts.drain_delay if sig == signal.SIGTERM else 0.0
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_drain, delay)

    def _hang_up(self, sig: int, frame: FrameType | None) -> None:
        """Somebody wants the settings read again, or the terminal is gone."""
        if hung_up():
            self.handle_exit(sig, frame)
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._router.reloader.ask)

    def _begin_drain(self, delay: float) -> None:
        log.info("draining: not ready any more, %d requests in flight", self._router.app.active)
        assert self._loop is not None
        self._router.connections.draining = True
        self._loop.call_later(delay, self._stop_accepting)

    def _stop_accepting(self) -> None:
        if self._router.siblings is not None:
            self._router.siblings.close()
        self._tell(LEAVING)
        self._leave()

    def _leave(self, *, at_once: bool = False) -> None:
        """End the main loop; also called within a signal's handler."""
        self.should_exit = True
        self.force_exit = self.force_exit or at_once
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._leaving.set)

    def _tell(self, report: bytes) -> None:
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.send(report)

    def _hear_parent(self) -> None:
        """The number of a signal, FORCE, RELOAD, or the channel's end, after which nobody would end this process."""
        assert self._loop is not None
        assert self._channel is not None
        try:
            word = self._channel.recv(64)
        except OSError:
            word = b""
        if not word:
            self._loop.remove_reader(self._channel)
            log.error("the parent process is gone: ending too")
        if word == FORCE:
            self._leave(at_once=True)
        elif word == RELOAD:
            self._router.reloader.ask()
        else:
            self.handle_exit(int(word or signal.SIGINT), None)


class WholeLines(io.TextIOBase):
    """Writes to a pipe that others write to as well; what goes into it at once stays together up to this size."""

    AT_ONCE = 4096

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, text: str) -> int:
        """Lines, as many at once as stay together."""
        piece = b""
        for line in text.encode("utf-8", "replace").splitlines(keepends=True):
            if piece and len(piece) + len(line) > self.AT_ONCE:
                os.write(self._descriptor, piece)
                piece = b""
            piece += line
        if piece:
            os.write(self._descriptor, piece)
        return len(text)


def run(settings: Settings, sources: Sources | None = None) -> int:
    """Serve until a signal ends it; the exit code."""
    configure_logging(settings)
    for line in cautions(settings):
        log.warning("%s", line)
    listener = bind(settings)
    if listener is None:
        return 1
    # Settings that turn out to be wrong only now must not leave the port taken.
    with listener:
        return serve(settings, listener, sources=sources)


def hung_up() -> bool:
    """Whether the terminal that this process was started from is gone, if there was one."""
    return _AT_A_TERMINAL and not _has_terminal()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


_AT_A_TERMINAL = _has_terminal()


def serve(
    settings: Settings, listener: socket.socket, member: Member | None = None, sources: Sources | None = None
) -> int:
    """Serve a listener until a signal ends it, alone or as one of several processes; the exit code."""
    if member is not None:
        configure_logging(settings, member.number)
    for warning in descriptor_warnings(raise_limit()):
        log.warning("%s", warning)
    router = Router(settings, member, sources)
    config = uvicorn.Config(
        router.app,
        http=cast(Any, router.connections),  # called as a class would be
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
    RouterServer(config, router, member.channel if member else None).run([listener])
    return 0


def configure_logging(settings: Settings, process: int | None = None) -> None:
    """One line per event, to standard error or a file, which several processes may share."""
    handler: logging.Handler
    if settings.log.file is not None:
        handler = logging.FileHandler(settings.log.file)
    else:
        handler = logging.StreamHandler(sys.stderr if process is None else WholeLines(sys.stderr.fileno()))
    who = "" if process is None else f"process {process}: "
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s %(name)s: {who}%(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log.level.upper())
    # These log request lines with addresses of workers in them.
    for noisy in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # A full disk must not turn into a failed request.
    logging.raiseExceptions = False


def bind(settings: Settings, *, port: int | None = None, share: bool = False) -> socket.socket | None:
    """A socket on the settings' address, or another port there; None, and a word on why, if it can't be had."""
    port = settings.port if port is None else port
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((settings.host, port))
    except OSError as error:
        listener.close()
        print(f"prefix-router: can't listen on {settings.host}:{port}: {error.strerror}", file=sys.stderr)
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


def shown(address: tuple[str, int]) -> str:
    """An address as it stands in a URL."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
