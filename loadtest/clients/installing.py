"""An environment for each client, apart from the project's own: made once, and anew when its packages change."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from loadtest.clients.catalogue import Client

INSTALL_SECONDS = 900


class NotInstalled(Exception):
    """Why a client can't be had here, in a line."""


def environment(client: Client, folder: Path) -> Path:
    """The client's environment, made if it is not there; raises NotInstalled."""
    place = folder.resolve() / client.environment
    stamp = place / ".installed"
    wanted = "\n".join(client.packages)
    if stamp.is_file() and stamp.read_text() == wanted:
        return place
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    if client.kind == "node":
        _make_node(client, place)
    else:
        _make_python(client, place)
    stamp.write_text(wanted)
    return place


def interpreter(client: Client, place: Path) -> str:
    """What runs the client's program."""
    return "node" if client.kind == "node" else str(place / "bin" / "python")


def version(client: Client, place: Path) -> str:
    """The version of the client that is there."""
    if client.kind == "node":
        found = json.loads((place / "node_modules" / client.shown / "package.json").read_text())
        return str(found["version"])
    code = f"import importlib.metadata as m; print(m.version({client.shown!r}))"
    return _run([interpreter(client, place), "-c", code], "asking for the version").strip()


def _make_python(client: Client, place: Path) -> None:
    _run([sys.executable, "-m", "venv", str(place)], "making an environment")
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *client.packages], "installing")


def _make_node(client: Client, place: Path) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise NotInstalled("node and npm are not here")
    (place / "package.json").write_text('{"private": true, "type": "module"}\n')
    _run(
        ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(place), *client.packages],
        "installing",
    )


def _run(words: list[str], what: str) -> str:
    try:
        run = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"{what}: {error}") from None
    if run.returncode:
        last = [line for line in run.stderr.splitlines() if line.strip()][-1:]
        raise NotInstalled(f"{what}: {last[0] if last else f'exit code {run.returncode}'}")
    return run.stdout
