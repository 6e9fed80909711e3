"""Where Redis is at the moment, and clients to it: a server, the master that Sentinels name, or a slot's owner.

Each kind of place is told from the others by what the server says of itself, so that replicas never sit on two channels
that only look like one: publishing on a cluster is either sharded for all or for none.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import redis.asyncio
from redis.asyncio.connection import ConnectionPool, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError, InvalidResponse, NoPermissionError, RedisError, ResponseError

from router.errors import SettingsError
from router.settings import SyncSettings
from router.settings.redis_url import RedisUrl, read_redis_url

IO_SECONDS = 1.0
MAX_NODES = 64


class LinkDown(Exception):
    """A message could not be handed over, or the subscription is gone; the text names the kind of failure only."""


class Place(NamedTuple):
    """A server; without a host it is the unix socket of the settings."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect and as whom: a unix socket, or a host and port, with TLS if there is a context."""

    host: str
    port: int
    path: str
    context: ssl.SSLContext | None
    credentials: Sequence[str]
    db: int


class _FromFile(CredentialProvider):
    """Reads the password whenever a connection is made, so that it can be changed without a restart."""

    def __init__(self, username: str | None, file: Path) -> None:
        self._username = username
        self._file = file

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = self._file.read_text(encoding="utf-8").strip()
        return (self._username, password) if self._username else (password,)


class Places:
    """The way to Redis for one replica; finds it anew whenever it is asked."""

    def __init__(self, settings: SyncSettings) -> None:
        if settings.redis_url is None:
            raise ValueError("no Redis URL: use NoSync")
        self._url = url = read_redis_url(settings.redis_url.get_secret_value())
        self._channel = settings.channel
        self._options = _options(url, settings)
        # Sentinels have their own password, if any.
        self._ask_options = self._options
        if url.mode == "sentinel":
            self._ask_options = _without_credentials(self._options)
            if settings.sentinel_password_file is not None:
                self._ask_options["credential_provider"] = _FromFile(None, settings.sentinel_password_file)
        # Whom to ask, in turn; a cluster's other nodes join what the settings name.
        self._asked = [Place(*host) for host in url.hosts]

    @property
    def shown(self) -> str:
        """Without secrets, for the log."""
        return self._url.shown

    @property
    def sharded(self) -> bool:
        """Whether channels belong to slots."""
        return self._url.mode == "cluster"

    def address(self, place: Place) -> Address:
        """How to connect there; a password file is read anew."""
        options = self._options
        context = None
        if options.get("connection_class") is SSLConnection:
            tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
            context = SSLConnection(**tls).ssl_context.get()
        provider = options.get("credential_provider")
        if provider is not None:
            credentials = provider.get_credentials()
        else:
            credentials = tuple(text for text in (options.get("username"), options.get("password")) if text)
        path = "" if place.host else options["path"]
        return Address(place.host, place.port, path, context, credentials, options.get("db", 0))

    async def find(self) -> Place:
        """The server on which to publish and to listen now; LinkDown if nobody knows."""
        if self._url.mode == "single":
            return self._asked[0] if self._asked else Place("", 0)
        reason = "nobody to ask"
        for _ in range(len(self._asked)):
            asked = self._asked[0]
            self._asked = [*self._asked[1:], asked]
            try:
                async with asyncio.timeout(IO_SECONDS):
                    return await self._ask(asked)
            except LinkDown as error:
                reason = str(error)
            # The client library raises more than its own errors on a broken connection.
            except Exception as error:
                reason = in_words(error)
        raise LinkDown(reason)

    def check(self, greeting: object) -> None:
        """Raise LinkDown if the server, by its answer to HELLO, is not what it was taken for.

        A server that is too old for that, or whose user may not ask, is believed.
        """
        if isinstance(greeting, Exception) and str(greeting).startswith("NOAUTH"):
            raise LinkDown("it asks for a password")
        pairs = greeting if isinstance(greeting, list) else []
        said = {_text(key): value for key, value in zip(pairs[::2], pairs[1::2], strict=False)}
        mode, role = _text(said.get("mode")), _text(said.get("role"))
        if mode == "cluster" and not self.sharded:
            raise LinkDown("it is part of a cluster: use redis+cluster://")
        if mode == "standalone" and self.sharded:
            raise LinkDown("it is not part of a cluster: use redis://")
        if mode == "sentinel":
            raise LinkDown("it is a Sentinel: use redis+sentinel://")
        if role in ("replica", "slave"):
            raise LinkDown("it is a copy, and what is published there does not reach everybody")

    async def _ask(self, asked: Place) -> Place:
        client = _client(self._ask_options, asked)
        try:
            if self._url.mode == "sentinel":
                return await self._ask_sentinel(client)
            return await self._ask_node(client, asked)
        finally:
            await close(client)

    async def _ask_sentinel(self, client: redis.asyncio.Redis) -> Place:
        found = await command(client, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._url.service)
        if not found:
            raise LinkDown("the Sentinels do not know the service")
        return Place(_text(found[0]), int(found[1]))

    async def _ask_node(self, client: redis.asyncio.Redis, asked: Place) -> Place:
        try:
            ranges = await command(client, "CLUSTER", "SLOTS")
        except ResponseError as error:
            if "cluster support disabled" in str(error):
                raise LinkDown("it is not part of a cluster: use redis://") from None
            raise
        slot = key_slot(self._channel.encode())
        owner = None
        for first, last, *nodes in ranges:
            # A node that does not know its own address is where it was asked.
            places = [Place(_text(node[0]) or asked.host, int(node[1])) for node in nodes]
            if first <= slot <= last:
                owner = places[0]
            self._asked += [place for place in places if place not in self._asked][: MAX_NODES - len(self._asked)]
        if owner is None:
            raise LinkDown("no node has the channel's slot")
        return owner


def in_words(error: BaseException) -> str:
    """What went wrong with Redis, for the log: no addresses, no secrets, no names of Python's."""
    if isinstance(error, LinkDown):
        return str(error)
    said = str(error).lower()
    if isinstance(error, AuthenticationError):
        return "it asks for a password" if "authentication required" in said else "it refused the password"
    if isinstance(error, NoPermissionError):
        return "its user may not use the channel"
    if isinstance(error, InvalidResponse):
        return "it does not speak Redis"
    if isinstance(error, ResponseError):
        return "no such database" if "db index" in said else "it refused a command"
    # Else the client library wraps what the system said.
    while error.__context__ is not None and not isinstance(error, OSError):
        error = error.__context__
    return _system_words(error)


def _system_words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, socket.gaierror):
        return "name not found"
    if isinstance(error, ssl.SSLCertVerificationError):
        return "its certificate is not trusted"
    if isinstance(error, ssl.SSLError):
        return "no TLS with it"
    if isinstance(error, OSError) and error.errno:
        # Only a file of the settings has a name here.
        where = "the password file can't be read: " if error.filename else ""
        return f"{where}{os.strerror(error.errno).lower()}"
    return "the connection broke"


async def command(client: redis.asyncio.Redis, *words: str | bytes) -> Any:
    """The server's answer to a command."""
    return await client.execute_command(*words)  # type: ignore[no-untyped-call]


async def close(client: redis.asyncio.Redis) -> None:
    """Close a client's connections, within a bound."""
    with contextlib.suppress(RedisError, OSError, TimeoutError):
        async with asyncio.timeout(IO_SECONDS):
            await client.aclose()


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value if isinstance(value, str) else ""


def _client(options: dict[str, Any], place: Place) -> redis.asyncio.Redis:
    address: dict[str, Any] = {"host": place.host, "port": place.port} if place.host else {}
    # A retry that supports no errors is the only one that really tries once: with zero retries the library still
    # reconnects a subscription after its failure, silently, and the messages in between are gone unnoticed.
    once = Retry(NoBackoff(), 0, supported_errors=())
    pool = ConnectionPool(
        **{**options, **address, "retry": once, "socket_timeout": IO_SECONDS, "socket_connect_timeout": IO_SECONDS}
    )
    return redis.asyncio.Redis.from_pool(pool)


def _options(url: RedisUrl, settings: SyncSettings) -> dict[str, Any]:
    """What the client library needs to know but for the address."""
    scheme = "unix" if url.path else "rediss" if url.tls else "redis"
    try:
        options: dict[str, Any] = dict(parse_url(f"{scheme}://{url.path}?{url.query}"))
    except ValueError:
        raise SettingsError(["sync.redis_url: an option that the Redis client does not understand"]) from None
    if url.db:
        options["db"] = url.db
    username = settings.username or url.username
    if settings.password_file is not None:
        options["credential_provider"] = _FromFile(username, settings.password_file)
    else:
        options |= {"username": username, "password": url.password}
    if settings.ca_file is not None:
        options |= {"connection_class": SSLConnection, "ssl_ca_certs": str(settings.ca_file)}
    return options


def _without_credentials(options: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in options.items()
        if name not in ("username", "password", "credential_provider", "db")
    }
