"""Frozen settings from defaults, a YAML file, `ROUTER_...` environment variables and flags, later ones winning.

Nested settings use two underscores in the environment: `ROUTER_SYNC__REDIS_URL`. Every problem is reported at
once, and nothing is corrected in silence.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from router.errors import SettingsError

PolicyName = Literal["slack", "power_of_two", "least_loaded", "round_robin"]
Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(gt=0)]
MIB = 1 << 20


class Group(BaseModel):
    """A group of settings: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)


class WorkerSettings(Group):
    """One vLLM server: where it listens, its key, and how many requests it may hold at once."""

    url: str
    api_key: SecretStr | None = None
    slots: Positive | None = None

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        return normalise_worker_url(url)


class PolicySettings(Group):
    """How a worker is chosen among the candidates."""

    name: PolicyName = "slack"
    slack: tuple[tuple[Count, Count], ...] = ((1_000, 0), (4_000, 1), (8_000, 2), (32_000, 3))
    slack_above: Count = 4
    short_tokens: Count = 0

    @field_validator("slack")
    @classmethod
    def _ascending(cls, table: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        limits = [limit for limit, _ in table]
        if limits != sorted(set(limits)):
            raise ValueError("prompt sizes must ascend")
        return table


class AffinitySettings(Group):
    """The ownership map: which worker holds which beginnings."""

    max_blocks: Positive = 200_000
    ttl_seconds: Seconds = 90 * 60.0
    tentative_seconds: Seconds = 10.0
    hash_secret: SecretStr = SecretStr("")


class LimitSettings(Group):
    """Sizes and counts that bound one request and all of them."""

    body_bytes: Positive = 16 * MIB
    media_body_bytes: Positive = 64 * MIB
    total_body_bytes: Positive = 1024 * MIB
    header_bytes: Positive = 32 * 1024
    header_count: Positive = 100
    queue_per_worker: Count = 64
    default_slots: Positive = 1024
    connections_per_worker: Positive = 4096
    decisions: Positive = 1000


class TimeoutSettings(Group):
    """Bounds on every wait, in seconds."""

    header: Seconds = 10.0
    body: Seconds = 60.0
    queue: Seconds = 5.0
    connect: Seconds = 2.0
    first_byte: Seconds = 300.0
    stream_idle: Seconds = 180.0
    write_stall: Seconds = 60.0
    upstream_keep_alive: Seconds = 3.0
    keep_alive: Seconds = 75.0
    drain: Seconds = 120.0
    drain_delay: Annotated[float, Field(ge=0)] = 2.0


class RetrySettings(Group):
    """One retry on another worker before the first byte, within a budget shared by all requests."""

    attempts: Annotated[int, Field(ge=0, le=3)] = 1
    budget_share: Annotated[float, Field(ge=0, le=1)] = 0.2
    budget_min: Count = 3


class HealthSettings(Group):
    """Probes, ejection and return."""

    interval: Seconds = 5.0
    timeout: Seconds = 2.0
    fall: Positive = 3
    rise: Positive = 2
    eject_after: Positive = 5
    eject_seconds: Seconds = 10.0
    eject_max_seconds: Seconds = 60.0


class SyncSettings(Group):
    """News between replicas over Redis pub/sub; without a URL the replica keeps to itself."""

    redis_url: SecretStr | None = None
    channel: str = "prefix-router"
    flush_seconds: Seconds = 0.005
    heartbeat_seconds: Seconds = 1.0
    expire_seconds: Seconds = 3.0
    max_queue: Positive = 10_000

    @field_validator("redis_url")
    @classmethod
    def _check_redis(cls, url: SecretStr | None) -> SecretStr | None:
        if url is None or not url.get_secret_value():
            return None
        if urlsplit(url.get_secret_value()).scheme not in ("redis", "rediss", "unix"):
            raise ValueError("must start with redis://, rediss:// or unix://")
        return url


class AuthSettings(Group):
    """Keys: of clients, of the administrator, and the one that workers expect."""

    api_keys: tuple[SecretStr, ...] = ()
    admin_key: SecretStr | None = None
    worker_api_key: SecretStr | None = None


class LogSettings(Group):
    """Where and how the log is written."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    file: Path | None = None


class CacheSettings(Group):
    """What the operator knows better than the worker's metrics say about a model's cache."""

    enabled: bool | None = None
    block_size: Positive | None = None
    hit_unit: Positive | None = None


class ModelSettings(Group):
    """Settings of one model, by its served name."""

    reuse: Literal["off", "observe", "on"] = "on"
    cache: CacheSettings = CacheSettings()


class Settings(BaseSettings):
    """All settings of one router process."""

    model_config = SettingsConfigDict(
        env_prefix="ROUTER_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        nested_model_default_partial_update=True,
    )

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    workers: Annotated[tuple[WorkerSettings, ...], NoDecode] = ()
    decision_headers: bool = True
    policy: PolicySettings = PolicySettings()
    affinity: AffinitySettings = AffinitySettings()
    limits: LimitSettings = LimitSettings()
    timeouts: TimeoutSettings = TimeoutSettings()
    retry: RetrySettings = RetrySettings()
    health: HealthSettings = HealthSettings()
    sync: SyncSettings = SyncSettings()
    auth: AuthSettings = AuthSettings()
    log: LogSettings = LogSettings()
    models: dict[str, ModelSettings] = {}

    @field_validator("workers", mode="before")
    @classmethod
    def _worker_list(cls, value: object) -> object:
        if isinstance(value, str):
            value = [part for part in (piece.strip() for piece in value.split(",")) if part]
        if isinstance(value, list | tuple):
            return tuple({"url": item} if isinstance(item, str) else item for item in value)
        return value

    @model_validator(mode="after")
    def _no_duplicates(self) -> Settings:
        urls = [worker.url for worker in self.workers]
        twice = sorted({url for url in urls if urls.count(url) > 1})
        if twice:
            raise ValueError(f"workers listed twice: {', '.join(twice)}")
        return self


class _FileSource(PydanticBaseSettingsSource):
    """The YAML file that `load` has read; below the environment, above the defaults."""

    def __init__(self, settings_cls: type[BaseSettings], content: Mapping[str, Any]) -> None:
        super().__init__(settings_cls)
        self.content = content

    def get_field_value(self, field: object, field_name: str) -> tuple[Any, str, bool]:
        return self.content.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return dict(self.content)


def normalise_worker_url(url: str) -> str:
    """The canonical form of a worker URL; ValueError for anything that is not a plain http(s) origin."""
    parts = urlsplit(url.strip())
    if parts.scheme not in ("http", "https"):
        raise ValueError("a worker URL starts with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a worker URL must not carry a user or password; use api_key")
    if not parts.hostname:
        raise ValueError("a worker URL needs a host")
    if parts.query or parts.fragment:
        raise ValueError("a worker URL must not have a query or fragment")
    host = parts.hostname.lower()
    _refuse_link_local(host)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}:{port}{parts.path.rstrip('/')}"


def _refuse_link_local(host: str) -> None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return
    # The metadata services of clouds live on link-local addresses; a worker never does.
    if address.is_link_local or address.is_multicast or address.is_unspecified:
        raise ValueError("a worker URL must not point to a link-local, multicast or unspecified address")


def load(file: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """Settings from all sources; raises SettingsError with every problem found."""
    content = _read_yaml(file) if file else {}
    problems = _unknown_keys(content, Settings, str(file)) + _unknown_environment(os.environ)

    class Loaded(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (init_settings, env_settings, _FileSource(settings_cls, content))

    try:
        settings = Loaded(**(flags or {}))
    except ValidationError as error:
        unknown = "extra_forbidden"  # reported above, with a suggestion
        problems += [_one_line(item["loc"], item["msg"]) for item in error.errors() if item["type"] != unknown]
        raise SettingsError(problems) from None
    if problems:
        raise SettingsError(problems)
    return settings


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text())
    except OSError as error:
        raise SettingsError([f"{file}: {error.strerror}"]) from None
    except yaml.YAMLError as error:
        raise SettingsError([f"{file}: not YAML: {' '.join(str(error).split())}"]) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError([f"{file}: expected a mapping of settings"])
    return content


def _one_line(location: Iterable[int | str], message: str) -> str:
    path = ".".join(str(part) for part in location)
    message = message.removeprefix("Value error, ")
    return f"{path}: {message}" if path else message


def _unknown_keys(content: Mapping[str, Any], model: type[BaseModel], where: str) -> list[str]:
    problems = []
    for key, value in content.items():
        field = model.model_fields.get(str(key))
        if field is None:
            problems.append(f"{where}: {key}: unknown setting{_suggest(str(key), model.model_fields)}")
        elif isinstance(value, dict) and isinstance(field.annotation, type) and issubclass(field.annotation, Group):
            problems += _unknown_keys(value, field.annotation, f"{where}: {key}")
    return problems


def _unknown_environment(environ: Mapping[str, str]) -> list[str]:
    problems = []
    for name in environ:
        if not name.startswith("ROUTER_"):
            continue
        first, *rest = name.removeprefix("ROUTER_").lower().split("__")
        field = Settings.model_fields.get(first)
        if field is None:
            problems.append(f"{name}: unknown setting{_suggest(first, Settings.model_fields)}")
            continue
        group = field.annotation
        if rest and isinstance(group, type) and issubclass(group, Group) and rest[0] not in group.model_fields:
            problems.append(f"{name}: unknown setting{_suggest(rest[0], group.model_fields)}")
    return problems


def _suggest(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""
