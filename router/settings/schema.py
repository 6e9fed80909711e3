"""Every setting, its type and its default; frozen."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from router.settings.addresses import normalise_worker_url
from router.settings.dns import read_dns_name, read_name_server
from router.settings.keys_file import DEFAULT_TENANT, TENANT_NAME, KeysFile, read_keys_file
from router.settings.redis_url import read_redis_url

PolicyName = Literal["work", "slack", "power_of_two", "least_loaded", "round_robin"]
# Without an end, a wait would have no bound.
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(gt=0)]
MIB = 1 << 20
PREFIX, NESTED = "ROUTER_", "__"


def _check_key(key: SecretStr) -> SecretStr:
    # It travels in a header; a line break that came with it from a file would end the header.
    if not re.fullmatch("[!-~]+", key.get_secret_value()):
        raise ValueError("a key consists of visible ASCII characters, at least one")
    return key


def _none_if_empty(value: object) -> object:
    # Compose files write `ROUTER_AUTH__ADMIN_KEY=${ADMIN_KEY:-}`; an empty key must not open a door.
    return None if value == "" else value


def _comma_list(text: str) -> list[str]:
    return [piece.strip() for piece in text.split(",") if piece.strip()]


def _read_keys(value: object) -> object:
    return read_keys_file(Path(value)) if value and isinstance(value, str | Path) else value or None


def _check_tenant(name: str) -> str:
    if not TENANT_NAME.fullmatch(name):
        raise ValueError("a tenant's name has up to 64 letters, digits, dots, dashes and underscores")
    return name


Key = Annotated[SecretStr, AfterValidator(_check_key)]
Tenant = Annotated[str, AfterValidator(_check_tenant)]
Share = Annotated[float, Field(gt=0, le=1)]
OptionalKey = Annotated[Key | None, BeforeValidator(_none_if_empty)]


class Group(BaseModel):
    """A group of settings: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)


class WorkerSettings(Group):
    """One vLLM server: where it listens, its key, and how many requests it may hold at once."""

    url: str
    api_key: OptionalKey = None
    slots: Positive | None = None

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        return normalise_worker_url(url)


class PolicySettings(Group):
    """How a worker is chosen among the candidates."""

    name: PolicyName = "work"
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
    tentative_seconds: Seconds = 300.0
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
    client_connections: Positive | None = None
    strict_descriptors: bool = False
    choices: Positive = 128
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
    drain_delay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0


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

    @model_validator(mode="after")
    def _limit_above_first(self) -> HealthSettings:
        if self.eject_max_seconds < self.eject_seconds:
            raise ValueError("eject_max_seconds must not be shorter than eject_seconds")
        return self


class SyncSettings(Group):
    """News between replicas over Redis pub/sub; without a URL the replica keeps to itself."""

    redis_url: SecretStr | None = None
    username: str | None = None
    password_file: Path | None = None
    sentinel_password_file: Path | None = None
    ca_file: Path | None = None
    channel: str = "prefix-router"
    flush_seconds: Seconds = 0.01
    heartbeat_seconds: Seconds = 1.0
    expire_seconds: Seconds = 3.0
    digest_seconds: Seconds = 10.0
    max_queue: Positive = 10_000

    @model_validator(mode="after")
    def _heard_before_expired(self) -> SyncSettings:
        # Else the other replicas' load would come and go with every heartbeat.
        if self.expire_seconds <= self.heartbeat_seconds:
            raise ValueError("expire_seconds must be longer than heartbeat_seconds")
        return self

    @field_validator("redis_url")
    @classmethod
    def _check_redis(cls, url: SecretStr | None) -> SecretStr | None:
        if url is None or not url.get_secret_value():
            return None
        read_redis_url(url.get_secret_value())
        return url

    @model_validator(mode="after")
    def _one_password(self) -> SyncSettings:
        if self.redis_url is None:
            return self
        url = read_redis_url(self.redis_url.get_secret_value())
        if self.password_file is not None and url.password is not None:
            raise ValueError("the password is either in redis_url or in password_file")
        if self.ca_file is not None and not url.tls:
            raise ValueError("ca_file is for rediss:// alone")
        return self


class AuthSettings(Group):
    """Keys: of clients, of the administrator, and the one that workers expect."""

    api_keys: tuple[Key, ...] = ()
    keys_file: Annotated[KeysFile | None, BeforeValidator(_read_keys)] = None
    admin_key: OptionalKey = None
    worker_api_key: OptionalKey = None

    @field_validator("api_keys", mode="before")
    @classmethod
    def _key_list(cls, value: object) -> object:
        return _comma_list(value) if isinstance(value, str) else value

    @property
    def client_keys(self) -> list[tuple[str, SecretStr]]:
        """Every key that a client may show, and whose it is."""
        unnamed = [(DEFAULT_TENANT, key) for key in self.api_keys]
        return unnamed + (list(self.keys_file.keys) if self.keys_file else [])

    @model_validator(mode="after")
    def _each_key_once(self) -> AuthSettings:
        if {key for _, key in (self.keys_file.keys if self.keys_file else ())} & set(self.api_keys):
            raise ValueError("a key stands in api_keys and in keys_file")
        return self


class TenancySettings(Group):
    """What keeps the holders of different keys apart, and from living at each other's expense."""

    salt_secret: OptionalKey = None
    max_requests: Positive | None = None
    index_share: Share = 0.5


class TenantSettings(Group):
    """What differs for one tenant."""

    max_requests: Positive | None = None
    index_share: Share | None = None


class CalibrationSettings(Group):
    """What is done with the difference between predicted and reported cached tokens."""

    correct: bool = True
    ask_usage: bool = False


class LogSettings(Group):
    """Where and how the log is written."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    file: Path | None = None


class TracingSettings(Group):
    """Spans of OpenTelemetry, sent over OTLP/HTTP; without an endpoint there are none."""

    endpoint: str | None = None
    sample: Annotated[float, Field(ge=0, le=1)] = 1.0
    queue: Positive = 2048
    service_name: Annotated[str, Field(min_length=1)] = "prefix-router"

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str | None) -> str | None:
        if endpoint and not re.fullmatch(r"https?://[!-~]+", endpoint):
            raise ValueError("must be the whole URL of a collector: http://collector:4318/v1/traces")
        return endpoint or None


class DnsSettings(Group):
    """How the names in `workers_dns` are looked up."""

    interval: Seconds = 5.0
    timeout: Seconds = 2.0
    server: str | None = None

    @field_validator("server")
    @classmethod
    def _check_server(cls, server: str | None) -> str | None:
        if not server:
            return None
        read_name_server(server)
        return server


class DecisionFileSettings(Group):
    """A file of all decisions as JSON lines; without a path there is none."""

    path: Path | None = None
    max_bytes: Annotated[int, Field(ge=MIB)] = 128 * MIB
    keep: Annotated[int, Field(ge=0, le=1000)] = 4
    queue: Positive = 10_000


class CacheSettings(Group):
    """What the operator knows better than the worker's metrics say about a model's cache."""

    enabled: bool | None = None
    block_size: Positive | None = None
    hit_unit: Positive | None = None


class ModelSettings(Group):
    """Settings of one model, by its served name."""

    reuse: Literal["off", "observe", "on"] = "on"
    cache: CacheSettings = CacheSettings()

    @field_validator("reuse", mode="before")
    @classmethod
    def _words(cls, value: object) -> object:
        # YAML reads a bare `on` or `off` as a truth value.
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class Settings(BaseSettings):
    """All settings of one router process."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter=NESTED,
        frozen=True,
        extra="forbid",
        nested_model_default_partial_update=True,
    )

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    processes: Annotated[int, Field(ge=1, le=64)] = 1
    workers: Annotated[tuple[WorkerSettings, ...], NoDecode] = ()
    workers_dns: Annotated[tuple[str, ...], NoDecode] = ()
    dns: DnsSettings = DnsSettings()
    decision_headers: bool = True
    policy: PolicySettings = PolicySettings()
    affinity: AffinitySettings = AffinitySettings()
    limits: LimitSettings = LimitSettings()
    timeouts: TimeoutSettings = TimeoutSettings()
    retry: RetrySettings = RetrySettings()
    health: HealthSettings = HealthSettings()
    sync: SyncSettings = SyncSettings()
    auth: AuthSettings = AuthSettings()
    tenancy: TenancySettings = TenancySettings()
    calibration: CalibrationSettings = CalibrationSettings()
    log: LogSettings = LogSettings()
    decision_file: DecisionFileSettings = DecisionFileSettings()
    tracing: TracingSettings = TracingSettings()
    models: dict[str, ModelSettings] = {}
    tenants: dict[Tenant, TenantSettings] = {}

    @field_validator("workers", mode="before")
    @classmethod
    def _worker_list(cls, value: object) -> object:
        if isinstance(value, str):
            value = _comma_list(value)
        if isinstance(value, list | tuple):
            return tuple({"url": item} if isinstance(item, str) else item for item in value)
        return value

    @field_validator("workers_dns", mode="before")
    @classmethod
    def _name_list(cls, value: object) -> object:
        return _comma_list(value) if isinstance(value, str) else value

    @field_validator("workers_dns")
    @classmethod
    def _check_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(read_dns_name(name) for name in names))

    @field_validator("workers")
    @classmethod
    def _no_duplicates(cls, workers: tuple[WorkerSettings, ...]) -> tuple[WorkerSettings, ...]:
        urls = [worker.url for worker in workers]
        twice = sorted({url for url in urls if urls.count(url) > 1})
        if twice:
            raise ValueError(f"listed twice: {', '.join(twice)}")
        return workers
