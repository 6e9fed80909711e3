"""The address of a worker: what is allowed, and its one canonical form."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from urllib.parse import urlsplit


def normalise_worker_url(url: str) -> str:
    """The canonical form of a worker's address; ValueError for anything but http(s)://host:port and a plain path."""
    # urlsplit drops line breaks in silence.
    if re.search(r"\s+https?://", url.strip()):
        raise ValueError("several worker URLs in one; commas stand between those of ROUTER_WORKERS")
    if not re.fullmatch("[!-~]+", url.strip()):
        raise ValueError("a worker URL consists of visible ASCII characters")
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        # Its own words quote what may be a password.
        raise ValueError("a worker URL is http://host:port with a number as its port") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("a worker URL starts with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("a worker URL must not carry a user or password; use api_key")
    if not parts.hostname:
        raise ValueError("a worker URL needs a host")
    if "?" in url or "#" in url:
        raise ValueError("a worker URL must not have a query or fragment")
    if port == 0:
        raise ValueError("a worker URL needs a port other than 0")
    host = _canonical_host(parts.hostname)
    port = port or (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{host}:{port}{_canonical_path(parts.path)}"


def _canonical_host(host: str) -> str:
    host = host.lower().rstrip(".")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        # A name whose last label is a number is an address in disguise: 2852039166 reaches 169.254.169.254.
        if not re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", host) or re.search(r"(^|\.)(\d+|0x[0-9a-f]*)$", host):
            raise ValueError("a worker URL needs a plain host name or address") from None
        return host
    if not may_be_a_worker(host):
        raise ValueError("a worker URL must not point to a link-local, multicast or unspecified address")
    return f"[{address}]" if isinstance(address, ipaddress.IPv6Address) else str(address)


@lru_cache(maxsize=4_096)
def may_be_a_worker(host: str) -> bool:
    """Whether an address is one at which workers live; looked at again once a name has led somewhere.

    The metadata services of clouds live on link-local addresses; a worker never does.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    seen = address.ipv4_mapped or address if isinstance(address, ipaddress.IPv6Address) else address
    return not (seen.is_link_local or seen.is_multicast or seen.is_unspecified)


def _canonical_path(path: str) -> str:
    path = path.rstrip("/")
    if not re.fullmatch(r"(/[A-Za-z0-9_~.-]+)*", path) or ".." in path:
        raise ValueError("the path of a worker URL must be plain")
    if path == "/v1" or path.endswith("/v1"):
        raise ValueError("a worker URL ends before /v1, which the router adds")
    return path
