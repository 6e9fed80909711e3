"""Reading /proc: CPU time by thread and by tick, process trees, memory."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from loadtest.bench import proc
from loadtest.bench.machine import cpu_model
from loadtest.bench.proc import TICK_ERROR_NS, TICK_NS, CpuTime, Stat
from loadtest.bench.systems import give_way

STAT = "4711 ({name}) S 12 4711 4711 0 -1 4194560 900 0 0 0 250 31 7 9 20 0 4 0 12345 1000 200 1844"


@pytest.mark.parametrize("name", ["nginx", "tokio worker", "a) S 1 (b", "(((", "))) R 5"])
def test_a_name_may_look_like_the_fields_behind_it(name: str) -> None:
    assert proc.parse_stat(STAT.format(name=name)) == Stat(4711, 12, 281)


def test_the_time_on_the_cpu_is_the_first_field() -> None:
    assert proc.parse_schedstat("123456789 42 7\n") == 123_456_789


def test_resident_memory_is_given_in_bytes() -> None:
    assert proc.parse_resident("Name:\tx\nVmHWM:\t  900 kB\nVmRSS:\t  512 kB\n") == 512 * 1024
    assert proc.parse_resident("Name:\tkthread\n") == 0


def test_a_tree_is_the_roots_and_all_below() -> None:
    parents = {2: 1, 3: 2, 4: 3, 5: 1, 6: 5}
    assert sorted(proc.descendants([2], parents)) == [2, 3, 4]
    assert sorted(proc.descendants([3, 5], parents)) == [3, 4, 5, 6]
    assert proc.descendants([], parents) == []


def test_the_threads_clocks_are_believed_within_the_rounding() -> None:
    before = {1: CpuTime(1_000, 0)}
    after = {1: CpuTime(6_000, TICK_ERROR_NS)}
    assert proc.spent(before, after) == 5_000


def test_a_thread_that_ended_is_in_the_process_clock() -> None:
    ticks = 50 * TICK_NS
    assert proc.spent({1: CpuTime(9_000, 0)}, {1: CpuTime(2_000, ticks)}) == ticks


def test_a_new_process_counts_from_its_start_and_an_ended_one_not_at_all() -> None:
    assert proc.spent({1: CpuTime(5, 0)}, {2: CpuTime(7, 0)}) == 7


def test_this_process_is_read() -> None:
    mine = os.getpid()
    before = proc.cpu_of([mine])
    sum(range(1_000_000))
    assert proc.spent(before, proc.cpu_of([mine])) > 0
    assert proc.resident_of([mine]) > 1 << 20


def test_a_child_belongs_to_the_tree_until_it_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert {os.getpid(), child.pid} <= set(proc.tree_of([os.getpid()]))
    child.communicate(b"\n", timeout=10)
    assert child.pid not in proc.tree_of([os.getpid()])
    assert proc.cpu_of([child.pid]) == {}
    assert proc.resident_of([child.pid]) == 0


def test_the_cpu_is_named_as_the_machine_names_it() -> None:
    assert cpu_model("processor\t: 0\nmodel name\t: Some  CPU @ 2\nmodel name\t: other\n") == "Some CPU @ 2"
    assert cpu_model("processor\t: 0\n") == "unknown CPU"


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no such class")
def test_what_stands_for_another_machine_gets_only_what_is_left() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert os.sched_getscheduler(process.pid) != os.SCHED_IDLE
        give_way(process.pid)
        assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
