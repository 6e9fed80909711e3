"""The command line of `python -m loadtest.clients`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from loadtest.clients.catalogue import CLIENTS, Client
from loadtest.clients.installing import NotInstalled
from loadtest.clients.report import as_markdown, as_text, details
from loadtest.clients.running import Outcome, play, stage
from loadtest.fleet import ROOT


def main(argv: Sequence[str] | None = None) -> int:
    """Play the clients; 0 if all work, 1 if one does not or could not be installed."""
    arguments = _parser().parse_args(argv)
    clients = _chosen(arguments.client, everything=arguments.all)
    outcomes = []
    with tempfile.TemporaryDirectory() as folder, stage(Path(folder)) as url:
        for client in clients:
            print(f"{client.title} ...", file=sys.stderr, flush=True)
            outcomes.append(_play(client, arguments.folder, url))
            for line in details(outcomes[-1]):
                print(line, file=sys.stderr, flush=True)
    print(as_markdown(outcomes) if arguments.markdown else as_text(outcomes), end="")
    return 0 if all(outcome.ok for outcome in outcomes) else 1


def _play(client: Client, folder: Path, url: str) -> Outcome:
    try:
        return play(client, folder, url)
    except NotInstalled as reason:
        return Outcome(client, problem=f"not installed: {reason}")


def _chosen(names: Sequence[str], *, everything: bool) -> list[Client]:
    if names:
        return [CLIENTS[name] for name in dict.fromkeys(names)]
    return [client for client in CLIENTS.values() if everything or not client.large]


def _parser() -> argparse.ArgumentParser:
    listed = ", ".join(
        f"{client.name} ({client.megabytes} MB)" if client.large else client.name for client in CLIENTS.values()
    )
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.clients",
        description="Run the clients that people use against a router over simulated workers, each installed into an "
        "environment of its own.",
        epilog=f"Clients: {listed}.",
    )
    add = parser.add_argument
    add("client", nargs="*", choices=[[], *CLIENTS], metavar="CLIENT", help="by default all but the large ones")
    add("--all", action="store_true", help="the large ones too")
    add("--folder", type=Path, default=ROOT / ".run" / "clients", help="where environments are (default .run/clients)")
    add("--markdown", action="store_true", help="the table in Markdown")
    return parser
