"""What the tests of shipped files share: the deployment, a stand-in for a replica, and commands run to their end."""

from __future__ import annotations

import http.server
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "config"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ROUTERS = ["router-1", "router-2"]
WORKERS = ["worker-1", "worker-2"]


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers every request with the status that its path names; a path `/die` is never answered."""

    protocol_version = "HTTP/1.1"
    heard: ClassVar[list[dict[str, str]]] = []

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def answer(self) -> None:
        """One answer."""
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.heard.append({name.lower(): value for name, value in self.headers.items()})
        if self.path == "/die":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        body = b'{"error":{"code":"from_the_replica"}}'
        self.send_response(int(self.path.strip("/")) if self.path[1:].isdigit() else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def stand_in() -> Iterator[int]:
    """The port of a server that stands in for a replica."""
    Answers.heard.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def run(*words: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command to its end, without settings of this process in its environment."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ROUTER_")}
    return subprocess.run(
        words, cwd=cwd, env={**inherited, **environment}, capture_output=True, text=True, timeout=50, check=False
    )


def needed(name: str) -> str:
    """A tool that `scripts/test` installs: its tests are skipped without it, but fail where CI is set."""
    binary = shutil.which(name)
    if binary is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is not installed")
        pytest.skip(f"{name} is not on this machine")
    return binary


def optional(name: str) -> str:
    """A tool that the project does not install: its tests are skipped without it, in CI too."""
    binary = shutil.which(name)
    if binary is None:
        pytest.skip(f"{name} is not on this machine")
    return binary
