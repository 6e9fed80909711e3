"""Plays every round to every system, one after another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from loadtest.bench.plan import another_round, order
from loadtest.live.judge import Figures, Moment, judge, measured
from loadtest.live.plan import Plan, traffic
from loadtest.live.player import Player, Seen
from loadtest.live.readings import moment
from loadtest.live.systems import Running, running
from router.replay.trace import Request, Trace


@dataclass(slots=True)
class Outcome:
    """One system's rounds, and the measured requests of all of them."""

    name: str
    rounds: list[Figures] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)


def compare(
    plan: Plan, names: Sequence[str], cache: Path, say: Callable[[str], None], trace: Trace | None = None
) -> list[Outcome]:
    """All rounds that fit into the plan's minutes; a round that has begun is always played to its end."""
    outcomes = {name: Outcome(name) for name in names}
    began = time.monotonic()
    number = 0
    while another_round(number, plan, time.monotonic() - began):
        requests = traffic(plan, number, trace)
        for name in order(list(names), number):
            outcome = outcomes[name]
            figures, seen = play(plan, name, requests, cache)
            outcome.rounds.append(figures)
            outcome.seen += seen
            say(f"round {number + 1}, {name}: {figures.requests} requests, TTFT {figures.ttft_mean * 1e3:.0f} ms")
        number += 1
    return list(outcomes.values())


def play(plan: Plan, name: str, requests: Sequence[Request], cache: Path) -> tuple[Figures, list[Seen]]:
    """One system from its start to its end: its figures, and the requests that they are of."""
    with running(name, plan, cache) as system:
        seen, before, after = asyncio.run(_load(plan, system, requests))
    within = measured(seen, before, after)
    return judge(within, before, after), within


async def _load(plan: Plan, system: Running, requests: Sequence[Request]) -> tuple[list[Seen], Moment, Moment]:
    player = Player(system.port, requests, plan.wall_seconds, plan.drain_wall_seconds)
    async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
        _, (before, after) = await asyncio.gather(player.play(), _readings(plan, client, system))
    return list(player.seen.values()), before, after


async def _readings(plan: Plan, client: httpx.AsyncClient, system: Running) -> tuple[Moment, Moment]:
    """When what is measured begins, and when requests stop to come."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    found = []
    for at in (plan.warm_wall_seconds, plan.wall_seconds):
        await asyncio.sleep(began + at - loop.time())
        found.append(await moment(client, system, loop.time() - began))
    return found[0], found[1]
