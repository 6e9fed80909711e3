"""Processes of a small deployment on this machine: router replicas, a Redis server, an nginx."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import httpx

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 30.0
STOP_SECONDS = 10.0
# Where PYTHONPATH says which router is meant, as for a compiled one, the working directory must not say it first.
ROUTER = (sys.executable, *(["-P"] if os.environ.get("PYTHONPATH") else []), "-m", "router")


def free_port() -> int:
    """A port that was free a moment ago on the loopback address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def find_nginx() -> str | None:
    """The nginx binary, which Debian keeps out of ordinary users' PATH."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def find_redis() -> str | None:
    """The redis-server binary."""
    return shutil.which("redis-server")


class Owned:
    """A child process that ends with its owner; a context manager."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Owned:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        raise NotImplementedError

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        self._running().send_signal(number)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that does not help in time."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        self._reap()

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
        self._reap()

    def wait(self, seconds: float) -> int:
        """The exit code, within a bound."""
        code = self._running().wait(seconds)
        self._reap()
        return code

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{type(self).__name__} is not running")
        return self._process

    def _reap(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.wait(STOP_SECONDS)
        if process.stdout is not None:
            process.stdout.close()


# The environment of replicas that are to notice within a second what happens to their workers, and to drain at once.
QUICK = {
    "ROUTER_HEALTH__INTERVAL": "0.5",
    "ROUTER_HEALTH__TIMEOUT": "0.5",
    "ROUTER_TIMEOUTS__DRAIN_DELAY": "0.5",
}


class RouterProcess(Owned):
    """One replica: `python -m router serve`. Settings are flags; the log goes to a file in `directory`.

    `package` is a directory with the router to run, as `scripts/compile` makes it; else that of PYTHONPATH,
    or this one.
    """

    def __init__(
        self,
        directory: Path,
        workers: Sequence[str],
        *,
        name: str = "replica",
        redis_url: str | None = None,
        port: int = 0,
        config: Path | None = None,
        flags: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        package: Path | None = None,
    ) -> None:
        super().__init__()
        self._package = package
        self.log = directory / f"{name}.log"
        self.port = port
        self._workers = list(workers)
        self._redis_url = redis_url
        self._config = config
        self._flags = list(flags)
        self._environment = environment or {}

    def __enter__(self) -> RouterProcess:
        self.start()
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start and wait until it listens; raises RuntimeError with what it said instead."""
        words = [
            *(ROUTER if self._package is None else (sys.executable, "-P", "-m", "router")),
            "serve",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
        ]
        for worker in self._workers:
            words += ["--worker", worker]
        if self._redis_url:
            words += ["--redis", self._redis_url]
        if self._config:
            words += ["--config", str(self._config)]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ROUTER_")}
        if self._package is not None:
            inherited["PYTHONPATH"] = str(self._package)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                words + self._flags,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env={**inherited, "PYTHONUNBUFFERED": "1", **self._environment},
            )
        line = _first_line(self._process, START_SECONDS)
        if not line.startswith("listening http://"):
            self.kill()
            raise RuntimeError(f"the router did not start: {line!r} {self.log.read_text()[-2000:]}")
        self.port = int(line.rpartition(":")[2])

    def wait_ready(self, workers: int, seconds: float = START_SECONDS) -> None:
        """Wait until this many workers are ready."""
        for _ in until(seconds, f"{workers} workers ready"):
            states = [worker["state"] for worker in self.get("/router/workers")["workers"]]
            if states.count("ready") >= workers:
                return

    def get(self, path: str) -> Any:
        """The JSON answer of a control route."""
        return httpx.get(self.url + path, trust_env=False, timeout=10).json()

    def metrics(self) -> str:
        """The exposition text."""
        return httpx.get(self.url + "/metrics", trust_env=False, timeout=10).text


class RedisProcess(Owned):
    """A redis-server with nothing saved, on a free loopback port that it keeps over restarts."""

    def __init__(self, directory: Path, *, flags: Sequence[str] = ()) -> None:
        super().__init__()
        self.port = free_port()
        self._directory = directory
        self._flags = list(flags)

    def __enter__(self) -> RedisProcess:
        self.start()
        return self

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start and wait until it takes connections."""
        binary = find_redis()
        if binary is None:
            raise RuntimeError("redis-server is not installed")
        words = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        with (self._directory / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*words, "--dir", str(self._directory), *self._flags], stdout=log, stderr=log
            )
        wait_for_port(self.port, START_SECONDS)


class NginxProcess(Owned):
    """nginx with the shipped configuration before the given replicas."""

    def __init__(self, directory: Path, replicas: Sequence[int]) -> None:
        super().__init__()
        self.port = free_port()
        self._prefix = directory / "nginx"
        self._replicas = list(replicas)

    def __enter__(self) -> NginxProcess:
        self.start()
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start and wait until it takes connections."""
        binary = find_nginx()
        if binary is None:
            raise RuntimeError("nginx is not installed")
        self._prefix.mkdir(exist_ok=True)
        shutil.copy(ROOT / "config/nginx/nginx.conf", self._prefix / "nginx.conf")
        servers = [f"server 127.0.0.1:{port} max_fails=1 fail_timeout=2s;\n" for port in self._replicas]
        (self._prefix / "replicas.conf").write_text("".join(servers))
        (self._prefix / "listen.conf").write_text(f"listen 127.0.0.1:{self.port};\n")
        words = [binary, "-p", f"{self._prefix}/", "-c", f"{self._prefix}/nginx.conf", "-g", "daemon off;"]
        with (self._prefix / "error.log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log)
        wait_for_port(self.port, START_SECONDS)


@contextmanager
def replicas(directory: Path, count: int, workers: Sequence[str], **settings: Any) -> Iterator[list[RouterProcess]]:
    """Several replicas, ready for traffic."""
    started: list[RouterProcess] = []
    try:
        for number in range(1, count + 1):
            replica = RouterProcess(directory, workers, name=f"replica-{number}", **settings)
            started.append(replica)
            replica.start()
        for replica in started:
            replica.wait_ready(len(workers))
        yield started
    finally:
        for replica in started:
            replica.stop()


def until(seconds: float, what: str) -> Iterator[None]:
    """Poll within a bound: `for _ in until(5, "ready"): if ...: return`. Raises TimeoutError at the end."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(0.02)
    raise TimeoutError(f"not within {seconds} s: {what}")


def wait_for_port(port: int, seconds: float) -> None:
    """Wait until something listens on a loopback port."""
    for _ in until(seconds, f"a listener on port {port}"):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return


def _first_line(process: subprocess.Popen[bytes], seconds: float) -> str:
    stream: IO[bytes] | None = process.stdout
    assert stream is not None
    os.set_blocking(stream.fileno(), False)
    line = b""
    for _ in until(seconds, "the first line of the process"):
        piece = stream.read() or b""
        line += piece
        if b"\n" in line or process.poll() is not None:
            break
    return line.split(b"\n")[0].decode()
