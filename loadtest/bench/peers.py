"""The other routers: pinned versions in environments of their own, and how each is started."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

INSTALL_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Package:
    """A router from PyPI and the module that starts it."""

    name: str
    version: str
    module: str
    flags: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"


# Both are told to be as quiet and as unrestricted as they can be, and to look for their workers at once.
SGLANG = Package(
    "sglang-router",
    "0.3.2",
    "sglang_router.launch_router",
    ("--log-level", "warn", "--worker-startup-check-interval", "1", "--prometheus-host", "127.0.0.1"),
)
VLLM = Package(
    "vllm-router",
    "0.1.17",
    "vllm_router.launch_router",
    ("--log-level", "error", "--worker-startup-check-interval", "1"),
)


def environment(cache: Path, package: Package) -> Path:
    """The interpreter of the package's own environment, made when it is missing; raises RuntimeError."""
    home = cache / f"{package.name}-{package.version}"
    python = home / "bin" / "python"
    stamp = home / "installed"
    if stamp.exists():
        return python
    cache.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", "--clear", str(home)])
    _run(
        [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", f"{package.name}=={package.version}"]
    )
    stamp.touch()
    return python


def command(
    python: Path, package: Package, policy: str, port: int, metrics_port: int, workers: Sequence[str]
) -> list[str]:
    """The words that start a peer."""
    words = [str(python), "-m", package.module, "--host", "127.0.0.1", "--port", str(port), "--policy", policy]
    words += ["--prometheus-port", str(metrics_port), *package.flags]
    return [*words, "--worker-urls", *workers]


def nginx_config(port: int, workers: Sequence[int]) -> str:
    """A plain proxy that keeps connections, passes chunks on at once and writes no file."""
    servers = " ".join(f"server 127.0.0.1:{worker};" for worker in workers)
    return f"""
worker_processes 1;
pid nginx.pid;
error_log stderr warn;
daemon off;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
    upstream workers {{ {servers} keepalive 512; }}
    server {{
        listen 127.0.0.1:{port};
        keepalive_requests 1000000;
        client_max_body_size 64m;
        client_body_buffer_size 2m;
        location / {{
            proxy_pass http://workers;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""


def _run(words: Sequence[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words[:4])} ... failed: {done.stderr[-2000:]}")
