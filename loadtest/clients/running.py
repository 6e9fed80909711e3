"""Plays a client's program against a router, and asks the router afterwards what it decided."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from loadtest.clients.catalogue import Client
from loadtest.clients.installing import environment, interpreter, version
from loadtest.fleet import ROOT, RouterProcess
from loadtest.simworker import SimConfig
from loadtest.simworker.process import start_workers

MODEL = "sim-model"
WORKERS = 3
RUN_SECONDS = 400
PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a program tried, and what it saw."""

    name: str
    ok: bool
    seen: str


@dataclass(slots=True)
class Outcome:
    """What came of a client; `decisions` are the router's, oldest first, and `problem` says why it was not played."""

    client: Client
    version: str = ""
    checks: list[Check] = field(default_factory=list)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    problem: str | None = None

    @property
    def ok(self) -> bool:
        """Everything worked, and the conversation stayed where it began."""
        return self.problem is None and bool(self.checks) and all(check.ok for check in self.checks) and self._kept()

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """The decisions of the program's conversation, which comes last; all of them for a load tool."""
        turns = self.client.conversation
        return self.decisions[-turns:] if turns else self.decisions

    def _kept(self) -> bool:
        if not self.client.conversation:
            return any(decision["reason"] == "hit" for decision in self.decisions)
        turns = self.conversation
        same = {decision["worker"] for decision in turns}
        return len(same) == 1 and all(decision["reason"] == "hit" for decision in turns[1:])


@contextmanager
def stage(folder: Path) -> Iterator[str]:
    """A router over simulated workers; its URL."""
    config = SimConfig(
        models=(MODEL,),
        prefill_tokens_per_second=20_000.0,
        decode_seconds_per_token=0.001,
        enable_prompt_tokens_details=True,
    )
    with ExitStack() as stack:
        workers = stack.enter_context(start_workers(WORKERS, config))
        router = stack.enter_context(RouterProcess(folder, [worker.url for worker in workers]))
        router.wait_ready(WORKERS)
        yield router.url


def play(client: Client, folder: Path, url: str) -> Outcome:
    """Install the client if need be and run its program; raises NotInstalled."""
    place = environment(client, folder)
    outcome = Outcome(client, version(client, place))
    before = {decision["request_id"] for decision in decisions(url)}
    words = [interpreter(client, place), *_program(client, place)]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("ROUTER_", "CLIENT_"))}
    given = {"CLIENT_URL": url, "CLIENT_MODEL": MODEL, "CLIENT_KEY": "none", "PYTHONPATH": str(ROOT)}
    try:
        run = subprocess.run(
            words,
            env={**inherited, **given, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            cwd=place,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        outcome.problem = f"not done within {RUN_SECONDS} s"
        return outcome
    outcome.checks = read_checks(run.stdout.splitlines())
    if run.returncode:
        outcome.problem = _cause(run.stderr) or f"exit code {run.returncode}"
    outcome.decisions = [decision for decision in reversed(decisions(url)) if decision["request_id"] not in before]
    return outcome


def _cause(said: str) -> str:
    """The line of a traceback that names the error, in Python's or in Node's form."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "Error" in line.partition(":")[0]), lines[-1] if lines else "")


def read_checks(lines: Sequence[str]) -> list[Check]:
    """What a program said; whatever else its libraries print is passed over."""
    found = []
    for line in lines:
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict) and {"check", "ok", "seen"} <= said.keys():
            found.append(Check(str(said["check"]), bool(said["ok"]), str(said["seen"])))
    return found


def decisions(url: str) -> list[dict[str, Any]]:
    """The router's last decisions, newest first."""
    answer = httpx.get(f"{url}/router/decisions", params={"limit": 1000}, trust_env=False, timeout=10)
    found: list[dict[str, Any]] = answer.json()["decisions"]
    return found


def _program(client: Client, place: Path) -> list[str]:
    if client.kind == "node":
        # Modules are looked for beside the program.
        return [str(shutil.copy(PROGRAMS / client.program, place / client.program))]
    return ["-m", f"loadtest.clients.programs.{client.program}"]
