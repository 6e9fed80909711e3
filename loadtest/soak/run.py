"""The deployment, what befalls it, and what is counted."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from loadtest.fleet import QUICK, NginxProcess, RedisProcess, RouterProcess
from loadtest.simworker import SimConfig
from loadtest.simworker.process import SimProcess, start_workers
from loadtest.soak.account import Account, Life, life, settle
from loadtest.soak.load import MODEL, Load, now
from loadtest.soak.sample import REST, Sample, outcomes, take, total

SIM = SimConfig(
    models=(MODEL,),
    prefill_tokens_per_second=50_000.0,
    decode_seconds_per_token=0.006,
    enable_prompt_tokens_details=True,
    # Caches are full within the first minutes, so that maps have their size when memory is compared.
    num_gpu_blocks=4_096,
)
REST_SECONDS = 10.0
ATTEMPTS = 3
WRITTEN_SECONDS = 0.5  # in which lines of a log are written


@dataclass(frozen=True)
class Plan:
    """How long, how much, and how often something breaks; all times in seconds."""

    seconds: float
    lanes: int = 8
    workers: int = 3
    sample_every: float = 5.0
    worker_every: float = 40.0
    redis_every: float = 90.0
    replica_every: float = 120.0
    away: float = 3.0
    # Of so many ends of a replica one is without warning.
    kill_each: int = 3


@dataclass
class Findings:
    """What a run found. `counted` are the routers' own outcomes, `seen` those of the clients."""

    samples: dict[str, list[Sample]] = field(default_factory=lambda: {"lives on": [], "restarted": []})
    events: list[tuple[float, str]] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    account: Account = field(default_factory=Account)
    at_rest: bool = False
    seconds: float = 0.0


class Soak:
    """One run on a deployment that stands."""

    def __init__(
        self,
        plan: Plan,
        fleet: Sequence[SimProcess],
        server: RedisProcess,
        replicas: Sequence[RouterProcess],
        nginx: NginxProcess,
        http: httpx.AsyncClient,
    ) -> None:
        self.plan = plan
        self.findings = Findings()
        self._fleet = fleet
        self._server = server
        self._stays, self._restarts = replicas
        self._load = Load(nginx.url, plan.lanes)
        self._http = http
        self._rng = random.Random(1)
        self._began = now()
        self._lives: list[Life] = []
        self._written = 0  # of the log of the replica that is restarted, by earlier lives
        self._ends = 0
        self._away = False

    async def run(self) -> Findings:
        """Load and faults for the time of the plan, then rest."""
        found = self.findings
        self._began = self._load.began = now()
        async with self._load.running():
            sides = [
                asyncio.create_task(self._every(self.plan.worker_every, self._worker_killed)),
                asyncio.create_task(self._every(self.plan.redis_every, self._redis_restarted)),
                asyncio.create_task(self._every(self.plan.replica_every, self._replica_restarted)),
                asyncio.create_task(self._sampling()),
            ]
            await self._wait(sides)
        found.at_rest = await self._rests()
        found.seen, found.kinds = self._load.outcomes, self._load.kinds
        found.sent = len(self._load.requests)
        found.seconds = now() - self._began
        await asyncio.sleep(WRITTEN_SECONDS)
        counts = [outcomes(await self._text(replica)) for replica in (self._stays, self._restarts)]
        self._lives.append(life("the replica that lives on", self._stays.log.read_text(), counts[0]))
        self._lives.append(life("the last life of the other", self._log_of_this_life(), counts[1]))
        found.account = settle(self._load.requests, self._lives)
        for each in self._lives:
            found.counted.update(each.counted or {})
        return found

    async def _wait(self, sides: Sequence[asyncio.Task[None]]) -> None:
        try:
            done, _ = await asyncio.wait(sides, timeout=self.plan.seconds + 120, return_when="FIRST_EXCEPTION")
            for task in done:
                task.result()
        finally:
            for task in sides:
                task.cancel()
            await asyncio.gather(*sides, return_exceptions=True)

    async def _every(self, seconds: float, fault: Callable[[], Awaitable[None]]) -> None:
        """Break something again and again, not within the last moments."""
        while now() - self._began + seconds < self.plan.seconds - self.plan.away:
            await asyncio.sleep(seconds * self._rng.uniform(0.8, 1.1))
            await fault()

    def _note(self, what: str) -> None:
        self.findings.events.append((now() - self._began, what))

    async def _worker_killed(self) -> None:
        worker = self._rng.choice(self._fleet)
        self._note("worker killed")
        await asyncio.to_thread(worker.kill)
        await asyncio.sleep(self.plan.away)
        await asyncio.to_thread(_start, worker)

    async def _redis_restarted(self) -> None:
        self._note("Redis killed")
        self._server.kill()
        await asyncio.sleep(self.plan.away)
        await asyncio.to_thread(self._server.start)

    async def _replica_restarted(self) -> None:
        self._ends += 1
        self._away = True
        killed = None
        if self._ends % self.plan.kill_each == 0:
            self._note("replica killed")
            before = now() - self._began
            await asyncio.to_thread(self._restarts.kill)
            killed = (before, now() - self._began)
        else:
            self._note("replica restarted")
            self._restarts.signal(15)
            await asyncio.to_thread(self._restarts.wait, 60)
        self._lives.append(life(f"life {self._ends} of the other", self._log_of_this_life(), killed=killed))
        self._written = self._restarts.log.stat().st_size
        await asyncio.to_thread(_start, self._restarts)
        self._away = False

    def _log_of_this_life(self) -> str:
        with self._restarts.log.open("rb") as log:
            log.seek(self._written)
            return log.read().decode(errors="replace")

    async def _sampling(self) -> None:
        while (at := now() - self._began) < self.plan.seconds:
            self.findings.samples["lives on"].append(take(self._stays.pid, await self._text(self._stays), at))
            with contextlib.suppress(httpx.HTTPError, OSError, RuntimeError):
                if not self._away:
                    text = await self._text(self._restarts)
                    self.findings.samples["restarted"].append(take(self._restarts.pid, text, at))
            await asyncio.sleep(self.plan.sample_every)

    async def _rests(self) -> bool:
        """Gauges come to 0 within a bound."""
        deadline = now() + REST_SECONDS
        while now() < deadline:
            texts = [await self._text(replica) for replica in (self._stays, self._restarts)]
            if not any(total(text, name) for text in texts for name in REST):
                return True
            await asyncio.sleep(0.1)
        return False

    async def _text(self, replica: RouterProcess) -> str:
        answer = await self._http.get(f"{replica.url}/metrics")
        answer.raise_for_status()
        return answer.text


def _start(process: SimProcess | RouterProcess) -> None:
    """On a machine that is busy with other things it may take more than one attempt."""
    for _ in range(ATTEMPTS - 1):
        try:
            process.start()
        except (RuntimeError, TimeoutError):
            process.kill()
        else:
            return
    process.start()


@asynccontextmanager
async def deployed(directory: Path, plan: Plan) -> AsyncIterator[Soak]:
    """Everything started: simulated workers, Redis, two replicas, nginx with the shipped configuration."""
    with ExitStack() as processes:
        fleet = processes.enter_context(start_workers(plan.workers, SIM))
        server = processes.enter_context(RedisProcess(directory))
        replicas = []
        for number in (1, 2):
            replica = RouterProcess(
                directory,
                [worker.url for worker in fleet],
                name=f"replica-{number}",
                redis_url=server.url,
                environment=QUICK,
            )
            processes.callback(replica.stop)
            await asyncio.to_thread(replica.start)
            await asyncio.to_thread(replica.wait_ready, plan.workers)
            replicas.append(replica)
        nginx = processes.enter_context(NginxProcess(directory, [replica.port for replica in replicas]))
        async with httpx.AsyncClient(timeout=10, trust_env=False) as http:
            yield Soak(plan, fleet, server, replicas, nginx, http)
