"""What the news between replicas costs: bytes and CPU, over a real Redis, without the rest of the router.

`python -m loadtest.sync_cost` first takes messages apart, without Redis: their bytes, and what making and taking in
each kind of news costs. Then it runs 2, 4 and 8 replicas as processes that place and end requests at a given rate in
all, once with news and once without, and prints what the difference is. CPU is time on a core, so neighbours disturb it
little, as long as news leaves in time. The router is compiled, unless `--source` is given.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
import uvloop

from loadtest import compiled
from loadtest.fleet import RedisProcess
from router.affinity import AffinityMap, Delta
from router.hashing import HASH_BITS
from router.settings import SyncSettings
from router.sync import NoSync, Sync
from router.sync_codec import News, Row, encode
from router.sync_redis import Listener
from router.workers.registry import Lease, Registry

WORKERS = 8
EPOCH = 1.7e9
# A first turn has 64 blocks, a follow-up some more than the turn before; four of five are follow-ups.
FIRST_BLOCKS = 64
MORE_BLOCKS = 6
FOLLOW_UPS = 0.8
FIRST_BYTE_SECONDS = 0.1
END_SECONDS = 0.3
WARM_SECONDS = 2.0
# Where PYTHONPATH says which router is meant, the working directory must not say it first.
PYTHON = (sys.executable, *(["-P"] if os.environ.get("PYTHONPATH") else []))


class Replica:
    """A replica's memory and news, and requests that come and go."""

    def __init__(self, redis_url: str | None) -> None:
        self._rng = random.Random()
        self._registry = Registry()
        self._index = AffinityMap(200_000, 5400.0, 10.0)
        self.sync: NoSync = NoSync()
        if redis_url is not None:
            settings = SyncSettings.model_validate({"redis_url": redis_url})
            sender = f"{self._rng.getrandbits(64):016x}"
            self.sync = Sync(settings, "f" * 16, self._index, self._registry, time.monotonic, sender)
        self._registry.hooks.step.append(self.sync.step)
        self._workers = [self._registry.add(f"http://10.0.0.{n + 1}:8000", slots=1024) for n in range(WORKERS)]
        for worker in self._workers:
            self._registry.set_epoch(worker, EPOCH)
            self._index.set_epoch(worker.id, EPOCH)
        self._prompts: list[list[int]] = []

    async def run(self, rate: float, seconds: float) -> None:
        """Requests at a steady rate."""
        begin = time.monotonic()
        done = 0
        while (now := time.monotonic()) < begin + seconds:
            while done < (now - begin) * rate:
                self._request()
                done += 1
            await asyncio.sleep(0.001)

    def _request(self) -> None:
        hashes = self._prompt()
        worker = self._workers[hashes[0] % WORKERS]
        self._index.match(hashes, time.monotonic())
        lease = Lease(self._registry, worker, 2_000, whole=hashes[-1])
        lease.claim = self._index.claim(worker.id, hashes, time.monotonic())
        self._index.claim(worker.id, hashes, time.monotonic())
        loop = asyncio.get_running_loop()

        def first_byte() -> None:
            lease.first_byte()
            delta = self._index.record(worker.id, EPOCH, hashes, time.monotonic())
            if delta is not None:
                self.sync.owned(delta)

        loop.call_later(FIRST_BYTE_SECONDS, first_byte)
        loop.call_later(END_SECONDS, lease.end)

    def _prompt(self) -> list[int]:
        rng = self._rng
        if self._prompts and rng.random() < FOLLOW_UPS:
            number = rng.randrange(len(self._prompts))
            prompt = self._prompts[number] + _blocks(rng, MORE_BLOCKS)
            self._prompts[number] = prompt if len(prompt) <= 100 else prompt[:FIRST_BLOCKS]
            return prompt
        prompt = _blocks(rng, FIRST_BLOCKS)
        self._prompts.append(prompt)
        if len(self._prompts) > 500:
            self._prompts.pop(rng.randrange(500))
        return prompt


def _blocks(rng: random.Random, count: int) -> list[int]:
    return [rng.getrandbits(HASH_BITS) for _ in range(count)]


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def child(redis_url: str | None, rate: float, seconds: float) -> dict[str, Any]:
    """One replica's run: CPU seconds, messages, bytes and lags of the measured time."""
    replica = Replica(redis_url)
    sync = replica.sync
    sync.start()
    await replica.run(rate, WARM_SECONDS)
    cpu, messages, sizes = _cpu(), dict(sync.messages), dict(sync.bytes)
    lags: list[float] = []

    async def watch() -> None:
        while True:
            await asyncio.sleep(0.2)
            if sync.lag_seconds is not None:
                lags.append(sync.lag_seconds)

    watching = asyncio.create_task(watch())
    await replica.run(rate, seconds)
    watching.cancel()
    result = {
        "cpu": _cpu() - cpu,
        "out": sum(n - messages.get(key, 0) for key, n in sync.messages.items() if key[0] == "out"),
        "in": sum(n - messages.get(key, 0) for key, n in sync.messages.items() if key[0] == "in"),
        "bytes_out": sync.bytes["out"] - sizes["out"],
        "bytes_in": sync.bytes["in"] - sizes["in"],
        "lag_ms": statistics.median(lags) * 1e3 if lags else None,
        "dropped": sum(sync.dropped.values()),
        "gaps": sync.gaps,
        "resyncs": sum(sync.repairs.asked.values()),
    }
    await sync.aclose()
    return result


@dataclass(frozen=True)
class Cost:
    """The news of so many replicas, per second: CPU as a share of a core, messages, bytes; the lag in milliseconds."""

    replicas: int
    rate: float
    share: float
    redis_share: float
    messages_out: float
    kilobytes_out: float
    kilobytes_in: float
    lag_ms: float
    dropped: int
    gaps: int


def measure(count: int, rate: float, seconds: float) -> Cost:
    """Run so many replicas that take `rate` requests a second in all, with and without news."""
    with tempfile.TemporaryDirectory() as place, RedisProcess(Path(place)) as server:
        without = _run_children(count, None, rate / count, seconds)
        client = redis.Redis(port=server.port)
        before = client.info("cpu")
        with_news = _run_children(count, server.url, rate / count, seconds)
        after = client.info("cpu")
        client.close()
    used = sum(after[key] - before[key] for key in ("used_cpu_sys", "used_cpu_user"))

    def mean(results: list[dict[str, Any]], key: str) -> float:
        return float(statistics.mean(result[key] for result in results)) / seconds

    return Cost(
        replicas=count,
        rate=rate,
        share=mean(with_news, "cpu") - mean(without, "cpu"),
        redis_share=used / (seconds + WARM_SECONDS),
        messages_out=mean(with_news, "out"),
        kilobytes_out=mean(with_news, "bytes_out") / 1e3,
        kilobytes_in=mean(with_news, "bytes_in") / 1e3,
        lag_ms=statistics.median(result["lag_ms"] for result in with_news),
        dropped=sum(result["dropped"] for result in with_news),
        gaps=sum(result["gaps"] for result in with_news),
    )


def _run_children(count: int, redis_url: str | None, rate: float, seconds: float) -> list[dict[str, Any]]:
    words = [*PYTHON, "-m", "loadtest.sync_cost", "--child", str(rate), "--seconds", str(seconds)]
    words += ["--redis", redis_url] if redis_url else []
    children = [subprocess.Popen(words, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        return [json.loads(child.communicate(timeout=seconds + 120)[0]) for child in children]
    finally:
        for process in children:
            process.kill()
            process.wait()


def sizes() -> str:
    """Bytes of messages and their parts."""
    rng = random.Random(1)

    def length(*deltas: Delta, rows: Sequence[Row] = ()) -> int:
        return len(encode("f" * 16, "s" * 16, 10**6, News("news", deltas, rows)))

    def delta(blocks: int) -> Delta:
        return Delta("905487f1", EPOCH, rng.getrandbits(64), tuple(rng.getrandbits(64) for _ in range(blocks)))

    row = Row("905487f1", EPOCH, 20, 3, 40_000)
    parts = [("message", length()), ("row", length(rows=[row]) - length())]
    parts += [(f"delta of {n} blocks", length(delta(n)) - length()) for n in (0, MORE_BLOCKS, FIRST_BLOCKS)]
    return ", ".join(f"{what} {size} bytes" for what, size in parts)


# -- taken apart -----------------------------------------------------------------------------------------------------


class _Nowhere:
    """A link that leads to nobody."""

    ready = True

    def start(self, listener: Listener) -> None: ...

    def publish(self, message: bytes) -> None: ...

    async def aclose(self) -> None: ...


class _Hearer:
    """A replica that takes in what one other replica says, and the memory of that one."""

    def __init__(self) -> None:
        registry, index = Registry(), AffinityMap(200_000, 5400.0, 10.0)
        self.told = AffinityMap(200_000, 5400.0, 10.0)
        settings = SyncSettings.model_validate({"redis_url": "redis://127.0.0.1"})
        self._sync = Sync(settings, "f" * 16, index, registry, time.monotonic, "h" * 16, _Nowhere())
        self.workers = [registry.add(f"http://10.0.0.{n + 1}:8000", slots=1024) for n in range(WORKERS)]
        for worker in self.workers:
            registry.set_epoch(worker, EPOCH)
            index.set_epoch(worker.id, EPOCH)
            self.told.set_epoch(worker.id, EPOCH)
        self._sequence = 0

    def costs(self, news: Sequence[News]) -> tuple[float, float]:
        """Microseconds of making each message, and of taking it in: medians of CPU time."""
        made: list[float] = []
        heard: list[float] = []
        for one in news:
            self._sequence += 1
            began = time.thread_time()
            data = encode("f" * 16, "s" * 16, self._sequence, one)
            between = time.thread_time()
            self._sync.receive(data)
            made.append(between - began)
            heard.append(time.thread_time() - between)
        if any(self._sync.dropped.values()):
            raise RuntimeError(f"what was told was not taken in: {self._sync.dropped}")
        return statistics.median(made) * 1e6, statistics.median(heard) * 1e6


def apart(messages: int = 100, each: int = 10) -> list[str]:
    """Lines of a table: what one delta of each kind, and one heartbeat, costs who tells it and who hears it."""
    hearer, rng = _Hearer(), random.Random(1)
    prompts: list[list[int]] = [[] for _ in range(messages * each)]

    def more(blocks: int) -> list[Delta]:
        found = []
        for number, prompt in enumerate(prompts):
            prompt += _blocks(rng, blocks)
            delta = hearer.told.record(hearer.workers[number % WORKERS].id, EPOCH, prompt, time.monotonic())
            assert delta is not None
            found.append(delta)
        return found

    first, later = more(FIRST_BLOCKS), more(MORE_BLOCKS)
    uses = [Delta(one.worker, one.epoch, prompt[-1], ()) for one, prompt in zip(later, prompts, strict=True)]
    kinds = {f"a first turn, {FIRST_BLOCKS} blocks": first, f"a follow-up, {MORE_BLOCKS} blocks": later, "a use": uses}
    empty = hearer.costs([News("news")] * messages)
    lines = ["| news | making it | taking it in |", "| --- | --- | --- |"]
    lines.append(f"| a message without content | {empty[0]:.1f} us | {empty[1]:.1f} us |")
    for name, deltas in kinds.items():
        made, heard = hearer.costs([News("news", deltas[at : at + each]) for at in range(0, len(deltas), each)])
        lines.append(f"| {name} | {(made - empty[0]) / each:.1f} us | {(heard - empty[1]) / each:.1f} us |")
    rows = [[Row(worker.id, EPOCH, n, 0, n * 1000) for worker in hearer.workers] for n in range(messages)]
    made, heard = hearer.costs([News("heartbeat", rows=of, blocks=200_000) for of in rows])
    lines.append(f"| a heartbeat, {WORKERS} workers | {made:.1f} us | {heard:.1f} us |")
    return lines


HEAD = (
    "| replicas | requests/s in all | CPU for news, per replica | Redis | messages/s out | KB/s out | KB/s in "
    "| heartbeat comes back after | dropped, gaps |\n| --- " + "| --- " * 8 + "|"
)


def line(cost: Cost) -> str:
    """One line of the table."""
    return (
        f"| {cost.replicas} | {cost.rate:,.0f} | {cost.share:.1%} of a core | {cost.redis_share:.1%} of a core "
        f"| {cost.messages_out:.0f} | {cost.kilobytes_out:.0f} | {cost.kilobytes_in:.0f} "
        f"| {cost.lag_ms:.1f} ms | {cost.dropped}, {cost.gaps} |"
    )


def main(argv: Sequence[str]) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--rate", type=float, nargs="*", default=[1_000.0], help="requests a second in all")
    parser.add_argument("--seconds", type=float, default=10.0)
    compiled.add_options(parser)
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--redis", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child is not None:
        print(json.dumps(uvloop.run(child(options.redis, options.child, options.seconds))))
        return 0
    compiled.import_chosen(options, "loadtest.sync_cost", argv)
    print(f"The router as {compiled.description()}. {sizes()}\n")
    print("\n".join(apart()), end="\n\n")
    print(HEAD, flush=True)
    for rate in options.rate:
        for count in options.replicas:
            print(line(measure(count, rate, options.seconds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
