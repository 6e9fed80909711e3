"""What is measured, running: each system on its own port before the same workers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from loadtest.bench import peers, proc
from loadtest.bench.bodies import MODEL
from loadtest.bench.machine import output_of
from loadtest.bench.peers import SGLANG, VLLM, Package
from loadtest.fleet import ROOT, Owned, RedisProcess, RouterProcess, find_nginx, free_port, until

START_SECONDS = 60.0
DIRECT = "direct"
OURS = "ours"
PEERS: dict[str, tuple[Package, str]] = {
    "sglang": (SGLANG, "cache_aware"),
    "vllm": (VLLM, "cache_aware"),
    "vllm-p2": (VLLM, "power_of_two"),
}
NAMES = (DIRECT, "nginx", *PEERS, OURS, "minimal", "source")

# Everything else is as the router comes; nothing is in flight when it is told to end.
AT_ONCE = "timeouts: {{drain_delay: 0, drain: 1}}\n"
FULL_CONFIG = AT_ONCE + "log: {{level: info, file: {log}}}\ndecision_headers: true\n"
MINIMAL_CONFIG = AT_ONCE + "log: {{level: warning, file: {log}}}\ndecision_headers: false\n"


@dataclass(frozen=True, slots=True)
class System:
    """One system under load; `roots` are the processes whose trees are charged, none for the workers alone."""

    name: str
    title: str
    port: int
    roots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Places:
    """Directories: of results and logs, of the peers' environments, and of the compiled router, if there is one."""

    results: Path
    cache: Path
    compiled: Path | None = None


@dataclass(frozen=True, slots=True)
class Cores:
    """Where processes may run: what is measured, and what loads it. The same set where there is one core only."""

    proxy: frozenset[int]
    load: frozenset[int]

    @classmethod
    def split(cls, available: Sequence[int], *, pin: bool) -> Cores:
        """One core for each proxy, the others for the driver and the workers."""
        if not pin or len(available) < 2:
            return cls(frozenset(available), frozenset(available))
        return cls(frozenset(available[:1]), frozenset(available[1:]))


@contextmanager
def on(cores: frozenset[int]) -> Iterator[None]:
    """Processes started within run on these cores; also those that count cores to choose their threads."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def give_way(pid: int) -> None:
    """From now on the process gets only what others leave of its cores, and never holds one of them up.

    For what is elsewhere in reality, and is here only because there is no other machine. It need not be permitted for
    that; where the system has no such class, nothing changes.
    """
    if not hasattr(os, "SCHED_IDLE"):
        return
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(ProcessLookupError):
            os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))


class Command(Owned):
    """Any other server; its output goes to a file."""

    def __init__(self, words: Sequence[str], log: Path, directory: Path) -> None:
        super().__init__()
        self._words = list(words)
        self._log = log
        self._directory = directory

    def start(self) -> None:
        quiet = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._directory, env=quiet
            )

    def wait_answering(self, port: int) -> None:
        """Wait until a chat request is answered; raises RuntimeError with the end of the log if it is not."""
        try:
            for _ in until(START_SECONDS, "an answer"):
                if not self.alive:
                    break
                if _answers(port):
                    return
        except TimeoutError:
            pass
        raise RuntimeError(f"{self._words[0]} does not serve: {self._log.read_text(errors='replace')[-2000:]}")


class Bench:
    """Starts the systems asked for; all end with the stack."""

    def __init__(self, places: Places, cores: Cores, workers: Sequence[int], stack: ExitStack) -> None:
        self._directory = places.results
        self._cache = places.cache
        self._compiled = places.compiled
        self._cores = cores
        self._workers = list(workers)
        self._urls = [f"http://127.0.0.1:{port}" for port in workers]
        self._stack = stack

    def start(self, name: str) -> System:
        """Start one system and wait until it serves; raises RuntimeError."""
        if name in PEERS:
            return self._peer(name, *PEERS[name])
        own = {OURS: self._full, "minimal": self._minimal, "source": self._source}
        return {DIRECT: self._direct, "nginx": self._nginx, **own}[name]()

    def _direct(self) -> System:
        return System(DIRECT, "straight to a worker", self._workers[0], ())

    def _nginx(self) -> System:
        binary = find_nginx()
        if binary is None:
            raise RuntimeError("nginx is not installed")
        home = self._directory / "nginx"
        home.mkdir(exist_ok=True)
        port = free_port()
        (home / "nginx.conf").write_text(peers.nginx_config(port, self._workers))
        server = self._launch("nginx", [binary, "-p", f"{home}/", "-c", f"{home}/nginx.conf"])
        server.wait_answering(port)
        title = output_of([binary, "-v"]).rpartition("/")[2].split(" ")[0]
        return System("nginx", f"nginx {title}, plain proxy", port, (server.pid,))

    def _peer(self, name: str, package: Package, policy: str) -> System:
        python = peers.environment(self._cache, package)
        port, metrics_port = free_port(), free_port()
        server = self._launch(name, peers.command(python, package, policy, port, metrics_port, self._urls))
        server.wait_answering(port)
        return System(name, f"{package.title}, {policy}", port, (server.pid,))

    def _full(self) -> System:
        """Everything on, and a second replica that hears all the news and gets no requests."""
        how = "" if self._compiled is None else ", compiled"
        return self._with_a_second(OURS, f"prefix-router, everything on{how}", self._compiled)

    def _source(self) -> System:
        """The same, without having been compiled."""
        return self._with_a_second("source", "prefix-router, everything on, as source", ROOT)

    def _with_a_second(self, name: str, title: str, package: Path | None) -> System:
        """Redis and the second replica have cores of their own in reality.

        Here they share those of the driver and the workers, and would hold them up within requests if they had the same
        right to them.
        """
        with on(self._cores.load):
            redis = self._stack.enter_context(RedisProcess(self._logs_of(name)))
        replica = self._router(name, FULL_CONFIG, redis.url, self._cores.proxy, package)
        other = self._router(f"{name}-idle", FULL_CONFIG, redis.url, self._cores.load, package)
        give_way(redis.pid)
        give_way(other.pid)
        return System(name, title, replica.port, (replica.pid,))

    def _minimal(self) -> System:
        """The same code with nothing on that a deployment of one replica could do without."""
        replica = self._router("minimal", MINIMAL_CONFIG, None, self._cores.proxy, self._compiled)
        title = "prefix-router, no sync, no decision headers, log at warning"
        return System("minimal", title, replica.port, (replica.pid,))

    def _router(
        self, name: str, config: str, redis_url: str | None, cores: frozenset[int], package: Path | None
    ) -> RouterProcess:
        path = self._directory / f"{name}.yaml"
        path.write_text(config.format(log=self._directory / f"{name}.decisions"))
        replica = RouterProcess(
            self._directory, self._urls, name=name, redis_url=redis_url, config=path, package=package
        )
        with on(cores):
            self._stack.enter_context(replica)
        replica.wait_ready(len(self._urls))
        return replica

    def _logs_of(self, name: str) -> Path:
        directory = self._directory / name
        directory.mkdir()
        return directory

    def _launch(self, name: str, words: Sequence[str]) -> Command:
        server = Command(words, self._directory / f"{name}.log", self._directory)
        with on(self._cores.proxy):
            self._stack.enter_context(server)
        return server


def pids_of(system: System) -> list[int]:
    """All processes that are charged to a system at this moment."""
    return proc.tree_of(system.roots) if system.roots else []


def _answers(port: int) -> bool:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Are you there?"}], "max_tokens": 4}
    try:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        return httpx.post(url, json=body, trust_env=False, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
