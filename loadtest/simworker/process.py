"""Starts worker processes, waits until they serve, talks to their /sim routes, and ends them by their id."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from loadtest.simworker.config import SimConfig, to_arguments
from loadtest.simworker.faults import Rule
from loadtest.simworker.records import Record

START_SECONDS = 20.0
STOP_SECONDS = 5.0
CALL_SECONDS = 10.0
_ROOT = Path(__file__).resolve().parents[2]


class SimProcess:
    """`with SimProcess(SimConfig(...)) as worker:` runs one worker in its own process.

    With `count` it runs several there, at `urls`; the rest speaks of the first of them.
    """

    def __init__(self, config: SimConfig | None = None, *, count: int = 1) -> None:
        self.config = config or SimConfig()
        self.count = count
        self.port = self.config.port
        self.urls: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> SimProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://{self.config.host}:{self.port}"

    @property
    def pid(self) -> int:
        return self._running().pid

    # -- life

    def start(self) -> None:
        """Start the process and wait for its line."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start the process without waiting. Once it has had a port it keeps to it."""
        words = [sys.executable, "-m", "loadtest.simworker", "--exit-with-parent", *to_arguments(self.config)]
        if self.port != self.config.port and self.count == 1:
            words += ["--port", str(self.port)]
        words += ["--count", str(self.count)]
        paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=_ROOT
        )

    def wait_ready(self) -> None:
        """Raises RuntimeError when the lines do not come in time."""
        lines = _lines(self._running(), self.count, time.monotonic() + START_SECONDS)
        self.urls = [line.removeprefix("listening ") for line in lines if line.startswith("listening http://")]
        if len(self.urls) < self.count:
            self.kill()
            raise RuntimeError(f"worker process did not start: {lines!r}")
        self.port = int(self.urls[0].rpartition(":")[2])

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that does not help."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        self._reap(process)

    def kill(self) -> None:
        """SIGKILL."""
        process = self._process
        if process is not None:
            process.kill()
            self._reap(process)

    def restart(self) -> None:
        """SIGKILL, and a new process at the same address."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: the address still takes connections, and nothing answers."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the worker process is not running")
        return self._process

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        self._process = None
        process.wait(STOP_SECONDS)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    # -- the /sim routes

    def requests(self, *, bodies: bool = False, path: str | None = None) -> list[Record]:
        """What it recorded, oldest first."""
        query = f"?bodies={int(bodies)}" + (f"&path={path}" if path else "")
        return [Record.from_json(shown) for shown in self._call("GET", f"/sim/requests{query}")]

    def state(self) -> dict[str, Any]:
        shown: dict[str, Any] = self._call("GET", "/sim/state")
        return shown

    def add_faults(self, *rules: Rule | dict[str, Any]) -> None:
        self._call("POST", "/sim/faults", msgspec.json.encode(rules))

    def break_hits(self, kind: str, times: int = 1) -> None:
        """Let the next hits of a cache of several forms meet a fault."""
        self._call("POST", f"/sim/cache-faults?kind={kind}&times={times}")

    def clear_faults(self) -> None:
        self._call("DELETE", "/sim/faults")

    def reset(self) -> None:
        """Forget rules and records."""
        self._call("POST", "/sim/reset")

    def refuse(self, seconds: float) -> None:
        """Take no new connections for that time."""
        self._call("POST", f"/sim/refuse?seconds={seconds}")

    def _call(self, method: str, target: str, body: bytes | None = None) -> Any:
        connection = http.client.HTTPConnection(self.config.host, self.port, timeout=CALL_SECONDS)
        try:
            connection.request(method, target, body)
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{method} {target}: {answer.status} {data[:200]!r}")
        return json.loads(data)


@contextlib.contextmanager
def start_workers(count: int, config: SimConfig | None = None) -> Iterator[list[SimProcess]]:
    """`count` processes, started side by side, ended together."""
    workers = [SimProcess(config) for _ in range(count)]
    try:
        for worker in workers:
            worker.launch()
        for worker in workers:
            worker.wait_ready()
        yield workers
    finally:
        for worker in workers:
            worker.stop()


def _lines(process: subprocess.Popen[bytes], count: int, deadline: float) -> list[str]:
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    text = b""
    while text.count(b"\n") < count:
        left = deadline - time.monotonic()
        ready, _, _ = select.select([descriptor], [], [], max(left, 0))
        data = os.read(descriptor, 4096) if ready else b""
        if not data:
            break
        text += data
    return text.decode().splitlines()
