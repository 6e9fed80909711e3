"""The command line of `prefix-router doctor`."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from router.doctor.findings import compare, diagnose, exit_code
from router.doctor.judge import PLAN, judge
from router.doctor.look import Subject, look
from router.doctor.probing import DEFAULT_BUDGET, probe
from router.doctor.report import Diagnosis, as_json, as_text
from router.errors import SettingsError
from router.flags import Parser
from router.settings import Settings, WorkerSettings, load
from router.workers.dns import DnsError
from router.workers.dns_fleet import urls_of

TIMEOUT_SECONDS = 5.0
_AT_ONCE = 8
NO_WORKERS = "name them with --worker URL or --config FILE"


def main(argv: Sequence[str] | None = None) -> int:
    """Look at every worker and say what helps; 0: nothing to change, 1: problems, 2: one could not be reached."""
    arguments = parser().parse_args(argv)
    flags: dict[str, Any] = {"workers": arguments.worker} if arguments.worker else {}
    try:
        settings = load(arguments.config, flags, {"workers": "--worker"})
    except SettingsError as error:
        for problem in error.problems:
            sys.stderr.write(f"prefix-router doctor: {problem}\n")
        return 2
    try:
        # Whoever names workers means these.
        found = [] if arguments.worker or not settings.workers_dns else asyncio.run(urls_of(settings))
    except DnsError as error:
        sys.stderr.write(f"prefix-router doctor: workers_dns: {error}\n")
        return 2
    workers = subjects(settings, arguments.timeout, found)
    if not workers:
        reason = "the names in workers_dns have no addresses" if settings.workers_dns else NO_WORKERS
        sys.stderr.write(f"prefix-router doctor: no workers: {reason}\n")
        return 2
    budget = 0 if arguments.no_probe else arguments.probe_tokens
    diagnoses = asyncio.run(examine(workers, budget))
    fleet = compare([one.facts for one in diagnoses])
    code = exit_code([*fleet, *(finding for one in diagnoses for finding in one.findings)])
    if arguments.json:
        sys.stdout.write(json.dumps(as_json(diagnoses, fleet, code), indent=2) + "\n")
    else:
        sys.stdout.write(as_text(diagnoses, fleet))
    return code


def subjects(settings: Settings, timeout: float = TIMEOUT_SECONDS, more: Sequence[str] = ()) -> list[Subject]:
    """The workers of the settings with their keys, and `more` URLs that were found otherwise."""
    common = settings.auth.worker_api_key
    listed = {worker.url for worker in settings.workers}
    others = [WorkerSettings(url=url) for url in more if url not in listed]
    found = []
    for worker in [*settings.workers, *others]:
        key = worker.api_key or common
        found.append(Subject(worker.url, None if key is None else key.get_secret_value(), timeout))
    return found


async def examine(workers: Sequence[Subject], budget: int) -> list[Diagnosis]:
    """A diagnosis of each worker, a few at a time; `budget` tokens of probe for each, 0 for none."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(subject: Subject) -> Diagnosis:
        async with gate:
            return await _examine(subject, budget)

    return list(await asyncio.gather(*(one(subject) for subject in workers)))


async def _examine(subject: Subject, budget: int) -> Diagnosis:
    facts = await look(subject)
    judgement = None
    if budget and facts.models and not facts.is_router and not facts.metrics.asleep:
        facts = dataclasses.replace(facts, probe=await probe(subject, facts, budget=budget))
        judgement = judge(facts.probe) if facts.probe is not None else None
    return Diagnosis(facts, judgement, diagnose(facts, judgement))


def parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    made = Parser(
        prog="prefix-router doctor",
        description="Whether the caches of live workers can help, and what to change. Changes nothing itself.",
        epilog="Exit code: 0 nothing to change, 1 problems, 2 a worker is out of reach or none, or flags are wrong.",
    )
    add = made.add_argument
    add("--worker", action="append", metavar="URL", help="a server to look at; may be repeated")
    add("--config", type=Path, metavar="FILE", help="settings in YAML: their workers and keys")
    add("--no-probe", action="store_true", help="send no prompts")
    add(
        "--probe-tokens",
        type=_tokens,
        default=DEFAULT_BUDGET,
        metavar="N",
        help=f"tokens that the {len(PLAN)} prompts of a probe may have in all (default {DEFAULT_BUDGET:,})",
    )
    add("--timeout", type=_seconds, default=TIMEOUT_SECONDS, metavar="SECONDS", help="for each look (default 5)")
    add("--json", action="store_true", help="print JSON")
    return made


def _tokens(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < len(text) <= 9 and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return value
