"""Readings of a run while it is under way: the workers' counters and the CPU time that passes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

import httpx

from loadtest.bench import proc
from loadtest.live.judge import Counters, Moment
from loadtest.live.systems import Running

_LOOKED_UP = "vllm:prefix_cache_queries_total"
_HIT = "vllm:prefix_cache_hits_total"


async def moment(client: httpx.AsyncClient, system: Running, at: float) -> Moment:
    """A reading now; `at` is what it is filed under."""
    counters = await asyncio.gather(*(_counters(client, url) for url in system.workers))
    own, workers = _cpu(proc.tree_of([os.getpid()])), _cpu(system.worker_pids)
    return Moment(at, tuple(counters), own, workers, _machine_cpu(), os.cpu_count() or 1)


def _cpu(pids: Iterable[int]) -> float:
    return sum(one.ticks for one in proc.cpu_of(pids).values()) / 1e9


async def _counters(client: httpx.AsyncClient, url: str) -> Counters:
    text = (await client.get(f"{url}/metrics")).raise_for_status().text
    return Counters(total(text, _LOOKED_UP), total(text, _HIT))


def total(text: str, name: str) -> float:
    """The sum over a family's samples in the exposition format."""
    lines = (line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def busy_ticks(text: str) -> int:
    """Ticks that all cores together were not idle: the first line of /proc/stat."""
    fields = [int(field) for field in text.splitlines()[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4]


def _machine_cpu() -> float:
    return busy_ticks(Path("/proc/stat").read_text()) / os.sysconf("SC_CLK_TCK")
