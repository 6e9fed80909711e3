"""The address of Redis: one server, a group watched by Sentinels, or a cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote, urlsplit

Mode = Literal["single", "sentinel", "cluster"]
MODES: dict[str, tuple[Mode, bool]] = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "unix": ("single", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
PORTS: dict[Mode, int] = {"single": 6379, "sentinel": 26379, "cluster": 6379}


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """What a URL says. `hosts` are Sentinels or nodes of a cluster, or the one server, or none for a socket's `path`.

    `service` is the name under which Sentinels know the group; `query` holds options of the client library.
    """

    mode: Mode
    tls: bool
    hosts: tuple[tuple[str, int], ...]
    path: str = ""
    service: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = None
    query: str = ""

    @property
    def shown(self) -> str:
        """The place without secrets, for the log."""
        place = self.path or ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"{self.mode} {place}" if self.mode != "single" else place


def read_redis_url(url: str) -> RedisUrl:
    """Take a URL apart; ValueError says what is wrong with it, and shows nothing of it."""
    if not re.fullmatch("[!-~]+", url):
        raise ValueError("a Redis URL consists of visible ASCII characters")
    if "#" in url:
        raise ValueError("a # in a user or password is written %23")
    try:
        parts = urlsplit(url)
    except ValueError:
        # Its own words quote what may be a password.
        raise ValueError("a [ or ] in a user or password is written %5B or %5D") from None
    if parts.scheme not in MODES:
        raise ValueError("must start with redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://")
    mode, tls = MODES[parts.scheme]
    userinfo, _, place = parts.netloc.rpartition("@")
    username, _, password = userinfo.partition(":")
    known = unquote(username) or None, unquote(password) or None
    if parts.scheme == "unix":
        if place or not parts.path:
            raise ValueError("a unix socket is unix:///path, with user:password@ before the path if needed")
        return RedisUrl(mode, tls, (), unquote(parts.path), "", 0, *known, parts.query)
    hosts = tuple(_host(text, PORTS[mode]) for text in place.split(","))
    if mode == "single" and len(hosts) > 1:
        raise ValueError("several servers are redis+sentinel:// or redis+cluster://")
    names = [name for name in parts.path.split("/") if name]
    service = names.pop(0) if mode == "sentinel" and names else ""
    if mode == "sentinel" and not service:
        raise ValueError("Sentinels need the name of the service: redis+sentinel://host:26379/name")
    return RedisUrl(mode, tls, hosts, "", unquote(service), _db(mode, names), *known, parts.query)


def _host(text: str, port: int) -> tuple[str, int]:
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?", text)
    if found is None or not 0 < int(found[2] or port) < 65_536:
        raise ValueError("every server is a host and a port; special characters in a password are written as %XX")
    return found[1].strip("[]"), int(found[2] or port)


def _db(mode: Mode, names: list[str]) -> int:
    if not names:
        return 0
    if len(names) > 1 or not names[0].isdecimal():
        raise ValueError("after the servers comes at most the number of a database")
    if mode == "cluster" and int(names[0]):
        raise ValueError("a cluster has no databases but 0")
    return int(names[0])
