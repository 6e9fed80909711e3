"""What is compared: each system in processes of its own before the same kind of fresh workers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench import peers
from loadtest.bench.systems import PEERS, Command
from loadtest.fleet import NginxProcess, RedisProcess, find_nginx, find_redis, free_port, replicas
from loadtest.live.plan import Plan
from loadtest.simworker.process import SimProcess

POLICIES = ("work", "slack", "power_of_two")
OTHERS = ("sglang", "vllm")
NAMES = (*POLICIES, *OTHERS)
REPLICAS = 2
# So many processes share the workers: each spends little, and more processes only add switches between them.
WORKER_PROCESSES = 2
CONFIG = "timeouts: {drain_delay: 0, drain: 1}\n"


@dataclass(frozen=True, slots=True)
class Running:
    """Where requests go, where the workers' own counters are, and the processes that they are in."""

    port: int
    workers: tuple[str, ...]
    worker_pids: tuple[int, ...]


def title(name: str) -> str:
    """A system as tables name it."""
    if name in POLICIES:
        return f"prefix-router, {name}"
    package, policy = PEERS[name]
    return f"{package.title}, {policy}"


def missing(names: Sequence[str]) -> list[str]:
    """Servers that these systems need and this machine has not."""
    if not set(names) & set(POLICIES):
        return []
    return [what for what, found in (("nginx", find_nginx()), ("redis-server", find_redis())) if found is None]


@contextmanager
def running(name: str, plan: Plan, cache: Path) -> Iterator[Running]:
    """One system, ready, with empty caches; everything ends with the context. Raises RuntimeError."""
    with tempfile.TemporaryDirectory(prefix="live-") as directory, ExitStack() as stack:
        os.chmod(directory, 0o711)  # nginx, started as root, works as another user
        processes = stack.enter_context(_workers(plan))
        workers = [url for process in processes for url in process.urls]
        pids = [process.pid for process in processes]
        if name in POLICIES:
            port = _ours(name, Path(directory), workers, stack)
        else:
            port = _peer(name, Path(directory), cache, workers, stack)
        yield Running(port, tuple(workers), tuple(pids))


@contextmanager
def _workers(plan: Plan) -> Iterator[list[SimProcess]]:
    count = min(WORKER_PROCESSES, plan.workers)
    shares = [plan.workers // count + (number < plan.workers % count) for number in range(count)]
    processes = [SimProcess(plan.worker(), count=share) for share in shares]
    with ExitStack() as stack:
        for process in processes:
            stack.callback(process.stop)
            process.launch()
        for process in processes:
            process.wait_ready()
        yield processes


def _ours(policy: str, directory: Path, workers: Sequence[str], stack: ExitStack) -> int:
    """Two replicas over Redis behind nginx."""
    redis = stack.enter_context(RedisProcess(directory))
    config = directory / "router.yaml"
    config.write_text(CONFIG)
    routers = stack.enter_context(
        replicas(directory, REPLICAS, workers, redis_url=redis.url, config=config, flags=["--policy", policy])
    )
    nginx = NginxProcess(directory, [router.port for router in routers])
    stack.enter_context(nginx)
    return nginx.port


def _peer(name: str, directory: Path, cache: Path, workers: Sequence[str], stack: ExitStack) -> int:
    """One process: these routers share nothing between processes."""
    package, policy = PEERS[name]
    python = peers.environment(cache, package)
    port = free_port()
    words = peers.command(python, package, policy, port, free_port(), workers)
    server = Command(words, directory / f"{name}.log", directory)
    stack.enter_context(server)
    server.wait_answering(port)
    return port
