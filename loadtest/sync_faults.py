"""What each fault of the news between replicas costs: two replicas behind nginx, a real Redis, conversations all along.

`python -m loadtest.sync_faults` breaks things one after the other and prints a table: what clients saw before, during
and after the fault, and how long the two maps took to agree once it was over.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import redis.asyncio

from loadtest.fleet import QUICK, NginxProcess, RedisProcess, RouterProcess
from loadtest.simworker import SimConfig
from loadtest.simworker.process import start_workers
from loadtest.sync_traffic import MODEL, Phase, Traffic
from loadtest.tcp_relay import Relay

CHANNEL = "prefix-router"
WORKERS = 4
AGREE_SECONDS = 30.0
SIM = SimConfig(
    models=(MODEL,),
    prefill_tokens_per_second=100_000.0,
    decode_seconds_per_token=0.004,
    enable_prompt_tokens_details=True,
    num_gpu_blocks=65_536,
)
COUNTERS = ("gaps", "resubscribed", "resyncs", "resyncs_failed", "digest_mismatches", "restored_blocks")


@dataclass
class Deployment:
    """The processes; the second replica reaches Redis through the relay."""

    server: RedisProcess
    relay: Relay
    replicas: list[RouterProcess]
    nginx: NginxProcess
    traffic: Traffic
    admin: redis.asyncio.Redis
    http: httpx.AsyncClient

    async def metrics(self, replica: RouterProcess) -> str:
        """The exposition text of one replica."""
        return (await self.http.get(f"{replica.url}/metrics")).text

    async def blocks(self) -> list[dict[str, float]]:
        """Blocks per worker, as each replica's map has them."""
        texts = [await self.metrics(replica) for replica in self.replicas]
        return [dict(_samples(text, "router_index_blocks")) for text in texts]

    async def agreement(self, began: float) -> float:
        """Seconds until all maps hold the same number of blocks for every worker; infinite if they do not."""
        while (spent := time.monotonic() - began) < AGREE_SECONDS:
            first, *others = await self.blocks()
            if first and all(other == first for other in others):
                return spent
            await asyncio.sleep(0.05)
        return float("inf")

    async def counted(self) -> dict[str, float]:
        """What the replicas have counted of the news between them."""
        texts = [await self.metrics(replica) for replica in self.replicas]
        return {
            name: sum(value for text in texts for _, value in _samples(text, f"router_sync_{name}(?:_total)?"))
            for name in COUNTERS
        }


Fault = Callable[[Deployment, float], Awaitable[None]]


@dataclass(frozen=True)
class Result:
    """One fault: what clients saw, seconds to agreement after its end, and what was counted meanwhile."""

    name: str
    before: Phase
    during: Phase
    after: Phase
    agreement: float
    counted: dict[str, float]


# -- faults: each breaks something, waits, and mends it ------------------------------------------------------


async def nothing(rig: Deployment, seconds: float) -> None:
    """nothing, for comparison"""
    await asyncio.sleep(seconds)


async def redis_killed(rig: Deployment, seconds: float) -> None:
    """Redis: kill -9, and started again"""
    rig.server.kill()
    await asyncio.sleep(seconds)
    await asyncio.to_thread(rig.server.start)


async def redis_stopped(rig: Deployment, seconds: float) -> None:
    """Redis: SIGSTOP, then SIGCONT"""
    rig.server.signal(signal.SIGSTOP)
    await asyncio.sleep(seconds)
    rig.server.signal(signal.SIGCONT)


async def subscribers_killed(rig: Deployment, seconds: float) -> None:
    """CLIENT KILL of all subscribers, every 0.3 s"""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await rig.admin.client_kill_filter(_type="pubsub")
        await asyncio.sleep(0.3)


async def buffers_overflow(rig: Deployment, seconds: float) -> None:
    """a subscriber too slow for its output buffer (256 KB): one replica stopped for 1 s, 30 MB of other news"""
    await rig.admin.config_set("client-output-buffer-limit", "pubsub 256kb 256kb 1")
    slow = rig.replicas[0]
    slow.signal(signal.SIGSTOP)
    # The kernel's own buffers take some megabytes before that of Redis grows.
    for _ in range(500):
        await rig.admin.publish(CHANNEL, b"x" * 60_000)
    # Clients wait for the stopped replica as long as it takes, so it is not stopped for long.
    await asyncio.sleep(min(seconds, 1.0))
    slow.signal(signal.SIGCONT)
    await rig.admin.config_set("client-output-buffer-limit", "pubsub 32mb 8mb 60")


async def garbage(rig: Deployment, seconds: float) -> None:
    """garbage on the channel: 200 messages a second, up to 1 MB each"""
    rng = random.Random(1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        size = rng.choice((0, 1, 10, 100, 10_000, 60_000)) if rng.random() < 0.98 else 1_000_000
        await rig.admin.publish(CHANNEL, rng.randbytes(size))
        await asyncio.sleep(0.005)


async def partition(rig: Deployment, seconds: float) -> None:
    """one replica cut off from Redis: packets vanish, connections stay"""
    rig.relay.cut()
    await asyncio.sleep(seconds)
    rig.relay.mend()


async def replica_killed(rig: Deployment, seconds: float) -> None:
    """one replica: kill -9 in the middle of streams, and started again"""
    rig.replicas[1].kill()
    await asyncio.sleep(seconds)
    await _come_back(rig, rig.replicas[1])


async def rolling_restart(rig: Deployment, seconds: float) -> None:
    """both replicas restarted one after the other (SIGTERM)"""
    for replica in rig.replicas:
        replica.signal(signal.SIGTERM)
        await asyncio.to_thread(replica.wait, 60)
        await _come_back(rig, replica)
        await asyncio.sleep(max(2.5, seconds / 4))  # nginx asks a replica again after its fail_timeout


FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        nothing,
        redis_killed,
        redis_stopped,
        subscribers_killed,
        buffers_overflow,
        garbage,
        partition,
        replica_killed,
        rolling_restart,
    )
}


async def _come_back(rig: Deployment, replica: RouterProcess) -> None:
    await asyncio.to_thread(replica.start)
    for _ in range(200):
        if (await rig.http.get(f"{replica.url}/ready")).status_code == 200:
            return
        await asyncio.sleep(0.05)
    raise RuntimeError("a replica does not get ready")


# -- running them --------------------------------------------------------------------------------------------


@asynccontextmanager
async def deployed(
    directory: Path, *, lanes: int = 12, settings: dict[str, str] | None = None
) -> AsyncIterator[Deployment]:
    """Everything started, and traffic under way."""
    with ExitStack() as processes:
        fleet = processes.enter_context(start_workers(WORKERS, SIM))
        server = processes.enter_context(RedisProcess(directory))
        async with AsyncExitStack() as stack:
            relay = await stack.enter_async_context(Relay(server.port))
            addresses = (server.url, f"redis://127.0.0.1:{relay.port}/0")
            replicas = [
                RouterProcess(
                    directory,
                    [worker.url for worker in fleet],
                    name=f"replica-{number}",
                    redis_url=address,
                    environment={**QUICK, **(settings or {})},
                )
                for number, address in enumerate(addresses, 1)
            ]
            for replica in replicas:
                processes.callback(replica.stop)
                await asyncio.to_thread(replica.start)
                await asyncio.to_thread(replica.wait_ready, WORKERS)
            nginx = processes.enter_context(NginxProcess(directory, [replica.port for replica in replicas]))
            admin = redis.asyncio.Redis(port=server.port)
            stack.push_async_callback(admin.aclose)
            http = await stack.enter_async_context(httpx.AsyncClient(timeout=10, trust_env=False))
            traffic = await stack.enter_async_context(Traffic(nginx.url, lanes))
            yield Deployment(server, relay, replicas, nginx, traffic, admin, http)


async def run(rig: Deployment, name: str, *, seconds: float, calm_seconds: float) -> Result:
    """One fault on a deployment that is well."""
    fault = FAULTS[name]
    began = time.monotonic()
    await asyncio.sleep(calm_seconds)
    counted = await rig.counted()
    broken = time.monotonic()
    await fault(rig, seconds)
    mended = time.monotonic()
    await rig.traffic.pause()
    agreement = await rig.agreement(mended)
    after = await rig.counted()
    rig.traffic.resume()
    resumed = time.monotonic()
    await asyncio.sleep(calm_seconds)
    end = time.monotonic()
    return Result(
        name=name,
        before=rig.traffic.phase(began, broken),
        during=rig.traffic.phase(broken, mended),
        after=rig.traffic.phase(resumed, end),
        agreement=agreement,
        counted={key: after[key] - counted[key] for key in COUNTERS},
    )


def row(result: Result) -> str:
    """One line of the table."""
    before, during, after = result.before, result.during, result.after
    counted = ", ".join(f"{name.replace('_', ' ')} {value:.0f}" for name, value in result.counted.items() if value > 0)
    cells = [
        (FAULTS[result.name].__doc__ or result.name).strip(),
        f"{during.requests}",
        f"{during.refused}",
        f"{during.broken}",
        f"{before.p99_ms:.0f} / {during.p99_ms:.0f} / {after.p99_ms:.0f}",
        f"{before.known:.1%} / {during.known:.1%} / {after.known:.1%}",
        f"{result.agreement:.1f} s",
        counted or "nothing",
    ]
    return "| " + " | ".join(cells) + " |"


HEAD = (
    "| fault | requests meanwhile | refused | broken | p99 to first byte, ms: before / during / after "
    "| holder of a follow-up known: before / during / after | maps agree after | counted |\n| --- " + "| --- " * 7 + "|"
)


def _samples(text: str, name: str) -> list[tuple[str, float]]:
    pattern = rf"^{name}(\{{[^}}]*\}})? ([0-9.e+-]+)$"
    return [(found[1] or "", float(found[2])) for found in re.finditer(pattern, text, re.MULTILINE)]


async def _run_all(names: Sequence[str], seconds: float, calm_seconds: float, lanes: int) -> None:
    with tempfile.TemporaryDirectory(prefix="faults-") as place:
        os.chmod(place, 0o711)  # nginx, started as root, works as another user
        async with deployed(Path(place), lanes=lanes) as rig:
            await asyncio.sleep(3)
            print(HEAD, flush=True)
            for name in names:
                print(row(await run(rig, name, seconds=seconds, calm_seconds=calm_seconds)), flush=True)


def main(argv: Sequence[str]) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"of {', '.join(FAULTS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each lasts")
    parser.add_argument("--calm", type=float, default=10.0, help="seconds before and after it")
    parser.add_argument("--lanes", type=int, default=12, help="clients at a time")
    options = parser.parse_args(argv)
    unknown = set(options.faults) - set(FAULTS)
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    asyncio.run(_run_all(options.faults or list(FAULTS), options.seconds, options.calm, options.lanes))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
