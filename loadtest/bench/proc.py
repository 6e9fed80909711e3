"""CPU time and memory of process trees, from /proc. Parsers first, which take text and are pure; readers at the end."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
# The kernel rounds a process's time to ticks, and user and system time apart.
TICK_ERROR_NS = 3 * TICK_NS


@dataclass(frozen=True, slots=True)
class Stat:
    """What is used of /proc/PID/stat; `ticks` is user plus system time of all threads, also of those that ended."""

    pid: int
    parent: int
    ticks: int


def parse_stat(text: str) -> Stat:
    """One line of /proc/PID/stat; the name in brackets may hold spaces and brackets itself."""
    pid, _, rest = text.partition(" (")
    fields = rest.rpartition(") ")[2].split()
    return Stat(int(pid), int(fields[1]), int(fields[11]) + int(fields[12]))


def parse_schedstat(text: str) -> int:
    """Nanoseconds that a thread was on a CPU: the first field of /proc/PID/task/TID/schedstat."""
    return int(text.split()[0])


def parse_resident(text: str) -> int:
    """Bytes of resident memory in /proc/PID/status."""
    for line in text.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def descendants(roots: Iterable[int], parents: Mapping[int, int]) -> list[int]:
    """The roots and everything below them; `parents` maps each process to its parent."""
    found = dict.fromkeys(roots)
    grown = True
    while grown:
        below = [pid for pid, parent in parents.items() if parent in found and pid not in found]
        found.update(dict.fromkeys(below))
        grown = bool(below)
    return list(found)


@dataclass(frozen=True, slots=True)
class CpuTime:
    """CPU time of one process in ns: exact for the threads that live, and rounded to ticks but whole."""

    threads: int
    ticks: int


def spent(before: Mapping[int, CpuTime], after: Mapping[int, CpuTime]) -> int:
    """Nanoseconds between two readings; a process that is new counts from its start.

    The threads' own clocks are exact but forget threads that have ended; where the process's clock shows more than
    its rounding explains, that one is taken.
    """
    total = 0
    for pid, late in after.items():
        early = before.get(pid, CpuTime(0, 0))
        threads, ticks = late.threads - early.threads, late.ticks - early.ticks
        total += ticks if ticks > threads + TICK_ERROR_NS else threads
    return total


# -- readers -----------------------------------------------------------------------------------------------


def tree_of(roots: Iterable[int]) -> list[int]:
    """The processes of these trees that live now."""
    parents = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (text := _read(entry / "stat")):
            stat = parse_stat(text)
            parents[stat.pid] = stat.parent
    return [pid for pid in descendants(roots, parents) if pid in parents]


def cpu_of(pids: Iterable[int]) -> dict[int, CpuTime]:
    """CPU time of each process that lives."""
    times = {}
    for pid in pids:
        text = _read(PROC / str(pid) / "stat")
        if text:
            times[pid] = CpuTime(_threads(pid), parse_stat(text).ticks * TICK_NS)
    return times


def resident_of(pids: Iterable[int]) -> int:
    """Bytes of resident memory of all the processes together."""
    return sum(parse_resident(_read(PROC / str(pid) / "status")) for pid in pids)


def _threads(pid: int) -> int:
    try:
        threads = list((PROC / str(pid) / "task").iterdir())
    except OSError:
        return 0
    texts = [_read(thread / "schedstat") for thread in threads]
    return sum(parse_schedstat(text) for text in texts if text)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended in the meantime
        return ""
