"""Several replicas behind one port of one machine: a parent that starts them, replaces those that die, and ends them.

Each process has a listening socket of its own on the common port (SO_REUSEPORT), over which the kernel spreads
connections. The parent keeps a copy of each, so that connections in line at a process that dies wait for its successor.
The parent serves nothing itself: it waits for signals and for its children, which are forked with everything imported.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import secrets
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from router.errors import SettingsError
from router.reload import Sources
from router.restarts import Restarts
from router.serving import FORCE, LEAVING, LISTENING, RELOAD, bind, configure_logging, hung_up, serve, shown
from router.settings import Settings, cautions
from router.siblings import Member

log = logging.getLogger("router.processes")

# Beyond the time that its requests may take, this is for a child to end; after it, it is killed.
END_SECONDS = 10.0
# After a second signal nobody waits for requests.
FORCED_SECONDS = 5.0
MAX_CHANGES = 1_000
WRONG_SETTINGS = 2
MAX_REPORT = 256 * 1024
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass
class Seat:
    """A place behind the port, and the process that has it."""

    number: int
    listener: socket.socket | None
    restarts: Restarts = field(default_factory=Restarts)
    pid: int | None = None
    channel: socket.socket | None = None
    began: float = 0.0
    listening: bool = False
    due: float | None = 0.0


def run(settings: Settings, sources: Sources | None = None) -> int:
    """Serve with `settings.processes` processes until a signal ends them; the exit code."""
    configure_logging(settings)
    for line in cautions(settings):
        log.warning("%s", line)
    first = bind(settings)
    if first is None:
        return 1
    # While this one is held, no other program has the port: one that shares ports would share ours without a word.
    port = first.getsockname()[1]
    first.close()
    supervisor = Supervisor(
        settings.processes,
        lambda: bind(settings, port=port, share=True),
        lambda listener, member: _serve(settings, listener, member, sources),
    )
    timeouts = settings.timeouts
    return supervisor.run(timeouts.drain_delay + timeouts.drain + END_SECONDS)


def _serve(settings: Settings, listener: socket.socket, member: Member, sources: Sources | None) -> int:
    try:
        return serve(settings, listener, member, sources)
    except SettingsError as error:
        for problem in error.problems:
            log.error("%s", problem)
        return WRONG_SETTINGS


class Supervisor:
    """`listen` makes one more socket on the port; what `work` does with it in a child ends with the exit code."""

    def __init__(
        self,
        count: int,
        listen: Callable[[], socket.socket | None],
        work: Callable[[socket.socket, Member], int],
    ) -> None:
        self._seats = [Seat(number, listen()) for number in range(1, count + 1)]
        self._listen = listen
        self._work = work
        self._token = secrets.token_hex(16)
        self._changes: list[bytes] = []
        self._selector = selectors.DefaultSelector()
        # Processes that give up their seat on their own, and have been given a successor.
        self._leaving: dict[int, socket.socket] = {}
        self._announced = False
        self._signals = 0
        self._deadline: float | None = None
        self._code = 0

    def run(self, grace: float) -> int:
        """Until a signal has ended all processes, which may take `grace` seconds; the exit code."""
        # What every process needs is shared by all as long as nobody writes to it, which the collector would.
        gc.collect()
        gc.freeze()
        wake, self._wake = socket.socketpair()
        for end in (wake, self._wake):
            end.setblocking(False)
        self._selector.register(wake, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._wake.fileno())
        for number in (*ENDING, signal.SIGCHLD):
            # Whoever started us with nohup wants it so.
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        try:
            while self._go_on():
                self._start_due()
                self._wait(wake, grace)
        finally:
            self._kill_all()
        return self._code

    # -- what happens ----------------------------------------------------------------------------------------------

    def _go_on(self) -> bool:
        if self._deadline is None:
            return True
        if time.monotonic() > self._deadline:
            if self._running() and self._signals:
                log.error("processes that have not ended in time are killed")
                self._code = 1
            return False
        return bool(self._running())

    def _running(self) -> list[int]:
        return [*(seat.pid for seat in self._seats if seat.pid is not None), *self._leaving]

    def _wait(self, wake: socket.socket, grace: float) -> None:
        """Until something happens or is due, and see to it."""
        for key, _ in self._selector.select(self._until_due()):
            if key.fileobj is wake:
                for number in _drained(wake):
                    if number == signal.SIGHUP and not hung_up():
                        self._tell(RELOAD)
                    elif number in ENDING:
                        self._end(number, grace)
            else:
                self._hear(key.data, key.fileobj)  # type: ignore[arg-type]
        self._reap()

    def _until_due(self) -> float | None:
        times = [seat.due for seat in self._seats if seat.due is not None]
        if self._deadline is not None:
            times = [self._deadline]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _hear(self, seat: Seat, channel: socket.socket) -> None:
        """A child listens, leaves, or has made a change of the fleet that its successors must repeat."""
        report = _received(channel)
        if report is None:
            self._selector.unregister(channel)
        elif report == LISTENING:
            seat.listening = True
            if not self._announced and all(seat.listening for seat in self._seats):
                self._announced = True
                assert seat.listener is not None
                print(f"listening http://{shown(seat.listener.getsockname())}", flush=True)
        elif report == LEAVING:
            self._replace(seat, channel)
        elif report:
            self._changes = [*(change for change in self._changes if change != report), report][-MAX_CHANGES:]

    def _replace(self, seat: Seat, channel: socket.socket) -> None:
        """A child drains although nobody here told it to: what comes to its port is its successor's."""
        if self._deadline is not None or seat.pid is None or channel is not seat.channel:
            return
        log.info("process %d (pid %d) leaves and is replaced", seat.number, seat.pid)
        self._leaving[seat.pid] = channel
        seat.pid, seat.channel, seat.due = None, None, time.monotonic()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._ended(pid, os.waitstatus_to_exitcode(status))

    def _ended(self, pid: int, code: int) -> None:
        if pid in self._leaving:
            self._close(self._leaving.pop(pid))
            return
        seat = next((seat for seat in self._seats if seat.pid == pid), None)
        if seat is None:
            return
        assert seat.channel is not None
        self._close(seat.channel)
        seat.pid, seat.channel = None, None
        if self._deadline is not None:
            # One that a signal ended before it could listen had nothing to finish.
            self._code = self._code or int(code != 0 and seat.listening)
            return
        if code == WRONG_SETTINGS and not self._announced:
            # So says the first, and the others would, of what can only be known by trying.
            self._code, self._deadline = code, 0.0
            return
        now = time.monotonic()
        delay = seat.restarts.died(now - seat.began)
        seat.due = now + delay
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        log.error("process %d (pid %d) died (%s): started again in %.1f s", seat.number, pid, how, delay)
        if seat.restarts.hopeless and not any(seat.listening and seat.pid for seat in self._seats):
            log.error("no process stays alive: giving up")
            self._code, self._deadline = 1, now
        elif seat.restarts.often and seat.listener is not None and len(self._seats) > 1:
            # Nobody takes what is in line here for a while; the other processes take what comes.
            seat.listener.close()
            seat.listener = None
        seat.listening = False

    def _end(self, number: int, grace: float) -> None:
        """Pass a signal on, not as one: some send theirs to the children too. Nobody is started any more."""
        self._signals += 1
        seconds = grace if self._signals == 1 else FORCED_SECONDS
        deadline = time.monotonic() + seconds
        self._deadline = deadline if self._deadline is None else min(deadline, self._deadline)
        for seat in self._seats:
            seat.due = None
            if seat.listener is not None:
                # Or the port would stay open, with nobody to accept, once the children have closed it.
                seat.listener.close()
        self._tell(b"%d" % number if self._signals == 1 else FORCE)

    def _tell(self, word: bytes) -> None:
        for channel in [seat.channel for seat in self._seats if seat.channel] + list(self._leaving.values()):
            with contextlib.suppress(OSError):
                channel.send(word)

    # -- starting and ending ---------------------------------------------------------------------------------------

    def _start_due(self) -> None:
        now = time.monotonic()
        for seat in self._seats:
            if seat.due is not None and seat.due <= now:
                seat.listener = seat.listener or self._listen()
                seat.due = None if seat.listener is not None else now + seat.restarts.died(0.0)
                if seat.listener is not None:
                    self._start(seat, seat.listener)

    def _start(self, seat: Seat, listener: socket.socket) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # A signal that the child got before it has handlers of its own would come back here through the wakeup socket.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (*ENDING, signal.SIGCHLD))
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
            if pid == 0:
                ours.close()
                self._become_child(seat, listener, theirs, blocked)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()
        ours.setblocking(False)
        seat.pid, seat.channel, seat.began = pid, ours, time.monotonic()
        self._selector.register(ours, selectors.EVENT_READ, seat)

    def _become_child(
        self, seat: Seat, listener: socket.socket, channel: socket.socket, mask: set[int | signal.Signals]
    ) -> None:
        """Never returns."""
        code = 1
        try:
            # A terminal's signals come from the parent alone, once.
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            for number in (*ENDING, signal.SIGCHLD):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, signal.SIG_DFL)
            self._let_go(seat)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            member = Member(seat.number, len(self._seats), self._token, channel, tuple(self._changes))
            code = self._work(listener, member)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _let_go(self, seat: Seat) -> None:
        """What a child inherits and has no use for would stay open with it."""
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        self._wake.close()
        for other in self._seats:
            if other is not seat and other.listener is not None:
                other.listener.close()

    def _close(self, channel: socket.socket) -> None:
        if channel in self._selector.get_map():
            self._selector.unregister(channel)
        channel.close()

    def _kill_all(self) -> None:
        for pid in self._running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self._running():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        signal.set_wakeup_fd(-1)


def _drained(wake: socket.socket) -> list[int]:
    """The numbers of the signals that have come."""
    numbers: list[int] = []
    with contextlib.suppress(BlockingIOError):
        while piece := wake.recv(256):
            numbers += piece
    return numbers


def _received(channel: socket.socket) -> bytes | None:
    """One report, or None when there will be no more."""
    try:
        return channel.recv(MAX_REPORT) or None
    except BlockingIOError:
        return b""
    except OSError:
        return None
