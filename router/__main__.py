"""Command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from router.build import described
from router.descriptors import descriptor_warnings, enough_for, raise_limit
from router.errors import SettingsError
from router.flags import Parser, misplaced
from router.reload import Sources
from router.settings import Settings, cautions, load
from router.workers.registry import worker_id

# What each flag sets.
FLAGS = {
    "workers": "--worker",
    "host": "--host",
    "port": "--port",
    "processes": "--processes",
    "sync.redis_url": "--redis",
    "policy.name": "--policy",
}


# Commands with flags of their own, which may need packages that serving does not; each module has a `main`.
APART = {
    "demo": "loadtest.demo",
    "doctor": "router.doctor",
    "fit": "router.fit",
    "replay": "router.replay",
    "top": "router.terminal.top",
    "explain": "router.terminal.explain",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in APART:
        run: Callable[[Sequence[str]], int] = import_module(APART[arguments[0]]).main
        return run(arguments[1:])
    parser = _parser()
    trouble = misplaced(arguments, ("serve", "check-config", *APART))
    if trouble is not None:
        parser.error(trouble)
    parsed = parser.parse_args(arguments)
    try:
        settings = load(parsed.config, _flags(parsed), FLAGS)
        return _describe(settings) if parsed.command == "check-config" else _serve(parsed, settings)
    except SettingsError as error:
        return _refuse(error)


def _serve(parsed: argparse.Namespace, settings: Settings) -> int:
    obstacle = _obstacle(settings)
    if obstacle is not None:
        print(f"prefix-router: {obstacle}", file=sys.stderr)
        return 2
    if settings.processes > 1:
        from router.processes import run
    else:
        from router.serving import run

    return run(settings, Sources(partial(_load, parsed), (parsed.config,) if parsed.config else ()))


def _load(parsed: argparse.Namespace) -> Settings:
    """The settings as they are now, for a router that runs; raises SettingsError also for those of no use."""
    settings = load(parsed.config, _flags(parsed), FLAGS)
    obstacle = _obstacle(settings)
    if obstacle is not None:
        raise SettingsError([obstacle])
    return settings


def _refuse(error: SettingsError) -> int:
    for problem in error.problems:
        print(f"prefix-router: {problem}", file=sys.stderr)
    return 2


def _obstacle(settings: Settings) -> str | None:
    """Why a replica with these settings, each right in itself, would be of no use."""
    # With an admin key, workers may be added at run time.
    if not (settings.workers or settings.workers_dns) and settings.auth.admin_key is None:
        return "no workers: name them with --worker URL, in ROUTER_WORKERS, or under workers in the file"
    if settings.processes > 1 and settings.sync.redis_url is None:
        return f"{settings.processes} processes share what they know over Redis: name it with --redis URL, or run one"
    if settings.limits.strict_descriptors:
        there, wanted = raise_limit(), enough_for(settings.limits.client_connections)
        if there < wanted:
            return f"{there} file descriptors (ulimit -n), and limits.strict_descriptors wants {wanted}"
    return None


def _describe(settings: Settings) -> int:
    obstacle = _obstacle(settings)
    if obstacle is not None:
        print(f"prefix-router: the settings are right, but serve would refuse them: {obstacle}", file=sys.stderr)
        return 2
    count = len(settings.workers)
    names = len(settings.workers_dns)
    found = f" and {names} name{'s' * (names != 1)} of workers" if names else ""
    print(f"ok: {count} worker{'s' * (count != 1)}{found}, policy {settings.policy.name}")
    for worker in settings.workers:
        print(f"{worker_id(worker.url)}  {worker.url}")
    for line in [*cautions(settings), *descriptor_warnings(raise_limit())]:
        print(f"prefix-router: caution: {line}", file=sys.stderr)
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="prefix-router",
        description="Routing proxy that sends each prompt to the vLLM worker that already holds its beginning.",
    )
    parser.add_argument("--version", action="version", version=f"prefix-router {described()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="run one replica")
    check = commands.add_parser("check-config", help="read the settings and report every problem")
    for command in (serve, check):
        command.add_argument("--config", type=Path, metavar="FILE", help="settings in YAML (see config/router.yaml)")
        command.add_argument("--worker", action="append", metavar="URL", help="a vLLM server; may be repeated")
        command.add_argument("--redis", metavar="URL", help="share memory with other replicas through this Redis")
        command.add_argument("--host", help="address to listen on (default 127.0.0.1)")
        command.add_argument("--port", metavar="PORT", help="port to listen on (default 8080; 0 takes a free one)")
        command.add_argument("--processes", metavar="N", help="replicas that share the port (default 1)")
        command.add_argument("--policy", help="work (default), slack, power_of_two, least_loaded or round_robin")
    commands.add_parser("demo", help="play a conversation over two replicas and simulated workers", add_help=False)
    commands.add_parser("doctor", help="whether live workers' caches can help, and what to change", add_help=False)
    commands.add_parser("fit", help="what a model's cache can reuse, from its config.json", add_help=False)
    commands.add_parser("replay", help="a trace through the policies, against modelled workers", add_help=False)
    commands.add_parser("top", help="the fleet in a terminal, live", add_help=False)
    commands.add_parser("explain", help="what would become of a request, and why", add_help=False)
    return parser


def _flags(parsed: argparse.Namespace) -> dict[str, Any]:
    """Flags that were given, in the shape of the settings."""
    flags: dict[str, Any] = {}
    if parsed.worker:
        flags["workers"] = parsed.worker
    if parsed.host is not None:
        flags["host"] = parsed.host
    if parsed.port is not None:
        flags["port"] = parsed.port
    if parsed.processes is not None:
        flags["processes"] = parsed.processes
    if parsed.redis is not None:
        flags["sync"] = {"redis_url": parsed.redis}
    if parsed.policy is not None:
        flags["policy"] = {"name": parsed.policy}
    return flags


if __name__ == "__main__":
    sys.exit(main())
