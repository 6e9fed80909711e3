"""The machine and the programs that were measured, in words."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from loadtest.bench.proc import PROC

ROOT = Path(__file__).resolve().parents[2]


def cpu_model(cpuinfo: str) -> str:
    """The first model name of /proc/cpuinfo."""
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return " ".join(found[1].split()) if found else "unknown CPU"


def describe() -> dict[str, str]:
    """Facts that the figures depend on."""
    with (PROC / "cpuinfo").open() as source:
        model = cpu_model(source.read())
    return {
        "cpu": f"{len(os.sched_getaffinity(0))} cores, {model}",
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "uvloop": version("uvloop"),
        "uvicorn": version("uvicorn"),
        "httptools": version("httptools"),
        "prefix-router": f"{version('prefix-router')} ({_commit()})",
    }


def load_average() -> str:
    """How busy the machine is, as the mean number of runnable processes in the last minute."""
    return f"{os.getloadavg()[0]:.1f}"


def output_of(words: Sequence[str]) -> str:
    """What a short command says, on either stream; empty when it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).strip()


def _commit() -> str:
    found = output_of(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"])
    changed = output_of(["git", "-C", str(ROOT), "status", "--porcelain", "router"])
    if not re.fullmatch(r"[0-9a-f]+", found):
        return "no commit"
    return found + (" with changes" if changed else "")
