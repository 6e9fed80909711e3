"""What the upstream client is told and what it tells: where a worker listens, its limits, its counts, its resets."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from router import errors

DEFAULT_PORTS = {"http": 80, "https": 443}

_VISIBLE = re.compile(r"[\x21-\x7e]+")
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a worker listens; `base_path` is the path part of its URL without a trailing slash."""

    host: str
    port: int
    tls: bool = False
    base_path: bytes = b""
    _authority: bytes = field(init=False, repr=False, compare=False, default=b"")

    def __post_init__(self) -> None:
        host = self.host.partition("%")[0]  # a zone names an interface of this machine, not the worker
        if ":" in host:
            host = f"[{host}]"
        default = DEFAULT_PORTS["https" if self.tls else "http"]
        authority = host if self.port == default else f"{host}:{self.port}"
        object.__setattr__(self, "_authority", authority.encode("ascii"))

    @property
    def authority(self) -> bytes:
        """Value of the Host header."""
        return self._authority

    @classmethod
    def parse(cls, url: str) -> Origin:
        """An http or https URL without credentials, query and fragment; anything else is a ValueError."""
        if not _VISIBLE.fullmatch(url):
            raise ValueError("a worker URL is printable ASCII without spaces")
        parts = urlsplit(url)
        if parts.scheme not in DEFAULT_PORTS:
            raise ValueError("a worker URL begins with http:// or https://")
        if "@" in parts.netloc:
            raise ValueError("a worker URL carries no user name or password")
        if "?" in url or "#" in url:
            raise ValueError("a worker URL has no query and no fragment")
        host = _checked_host(parts.hostname)
        port = DEFAULT_PORTS[parts.scheme] if parts.port is None else parts.port
        if port == 0:
            raise ValueError("a worker URL can't name port 0")
        return cls(host, port, parts.scheme == "https", parts.path.rstrip("/").encode("ascii"))


def _checked_host(host: str | None) -> str:
    if not host:
        raise ValueError("a worker URL names a host")
    if ":" in host:
        ipaddress.IPv6Address(host)
    elif len(host) > 253 or not _HOST_NAME.fullmatch(host):
        raise ValueError("a worker URL names a host by its DNS name or address")
    return host


@dataclass(frozen=True, slots=True)
class UpstreamLimits:
    """Bounds of one worker's connections; seconds, bytes and counts."""

    connect_seconds: float = 2.0
    keep_alive_seconds: float = 3.0  # an idle connection goes before the worker, which waits 5 s, closes it
    first_byte_seconds: float = 300.0  # from the request written to the first byte of the body, or the end without one
    idle_seconds: float = 180.0  # between two pieces of the body
    max_connections: int = 4096  # open and connecting
    max_idle: int = 256
    max_header_bytes: int = 65536  # one answer's heads; also the framing between two pieces of body
    max_headers: int = 256
    max_informational: int = 16  # 1xx answers dropped before giving up
    read_buffer: int = 262144  # bytes held per answer before reading pauses

    @property
    def sweep_seconds(self) -> float:
        """How often deadlines are looked at: an eighth of the shortest limit, at most a second."""
        shortest = min(self.keep_alive_seconds, self.first_byte_seconds, self.idle_seconds)
        return min(1.0, max(0.005, shortest / 8))


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A pool at one moment. `open` is idle plus active; connecting ones hold a place too but are not open yet."""

    open: int
    idle: int
    active: int
    connecting: int
    opened_total: int
    reused_total: int


class UpstreamLost(errors.UpstreamReset):
    """A reset with what a retry rule needs: bytes of the answer seen, and whether the connection was an old one."""

    def __init__(self, message: str, *, bytes_received: int, reused: bool) -> None:
        super().__init__(message)
        self.bytes_received = bytes_received
        self.reused = reused
