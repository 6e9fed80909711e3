"""A real redis-server for tests: on loopback, without persistence, ended by its pid."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import redis

START_SECONDS = 10.0


def require_redis_server() -> str:
    """The binary; without it the test is skipped, or fails where CI is set."""
    binary = shutil.which("redis-server")
    if binary is None:
        if os.environ.get("CI"):
            pytest.fail("redis-server is not installed")
        pytest.skip("redis-server is not installed")
    return binary


class RedisServer:
    """Runs from `with` until its end; `url` and `unix_url` stay the same across stop, kill and restart.

    `options` are further command line options of the server, such as `("--requirepass", "secret")`; `config` is a file
    that it reads and may write.
    """

    def __init__(self, options: Sequence[str] = (), config: Path | None = None) -> None:
        self._binary = require_redis_server()
        self._options = tuple(options)
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._home = tempfile.TemporaryDirectory(prefix="redis-")
        self.port = 0
        self.socket = Path(self._home.name) / "redis.sock"

    @property
    def url(self) -> str:
        """Where it listens on TCP."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        """Where it listens on a unix socket."""
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        """The pid of the running server."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self) -> None:
        """Start it, on the port it had before if it had one; returns when it accepts commands."""
        if self.port:
            self._launch(self.port)
            return
        # Another process may take the port before the server does; a node of a cluster needs the one 10,000 above too.
        for _ in range(25):
            self.port = _free_port()
            try:
                self._launch(self.port)
            except RuntimeError:
                continue
            return
        raise RuntimeError("redis-server does not start")

    def stop(self) -> None:
        """End it in order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kill it, if it runs, and start it on the same port."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Freeze it: connections stay open and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def call(self, *command: str | bytes | int) -> Any:
        """Run one command over a connection of its own."""
        with redis.Redis(unix_socket_path=str(self.socket), socket_timeout=5) as client:
            return client.execute_command(*command)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._home.cleanup()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        self._home.cleanup()

    def _launch(self, port: int) -> None:
        config = [str(self._config)] if self._config else []
        command = [self._binary, *config, "--port", str(port), "--bind", "127.0.0.1", "--unixsocket", str(self.socket)]
        command += ["--dir", self._home.name, *self._options]
        if "--sentinel" not in self._options:
            command += ["--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"redis-server does not answer on port {port}")
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(1)
                connection.connect(str(self.socket))
                connection.sendall(b"PING\r\n")
                # With a password set, an error is an answer too.
                return connection.recv(64)[:1] in (b"+", b"-")
        except OSError:
            return False

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)  # a frozen server would not see a SIGTERM
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
