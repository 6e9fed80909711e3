"""Frozen settings from defaults, a YAML file, `ROUTER_...` environment variables and flags, later ones winning.

Nested settings use two underscores in the environment: `ROUTER_SYNC__REDIS_URL`. Every problem is reported at
once, and nothing is corrected in silence.
"""

from router.settings.addresses import may_be_a_worker, normalise_worker_url
from router.settings.cautions import cautions
from router.settings.dns import read_name_server
from router.settings.keys_file import DEFAULT_TENANT, KeysFile
from router.settings.loading import load
from router.settings.schema import (
    AffinitySettings,
    AuthSettings,
    CacheSettings,
    DecisionFileSettings,
    DnsSettings,
    Group,
    HealthSettings,
    LimitSettings,
    LogSettings,
    ModelSettings,
    PolicyName,
    PolicySettings,
    RetrySettings,
    Settings,
    SyncSettings,
    TenancySettings,
    TenantSettings,
    TimeoutSettings,
    TracingSettings,
    WorkerSettings,
)

__all__ = [
    "DEFAULT_TENANT",
    "AffinitySettings",
    "AuthSettings",
    "CacheSettings",
    "DecisionFileSettings",
    "DnsSettings",
    "Group",
    "HealthSettings",
    "KeysFile",
    "LimitSettings",
    "LogSettings",
    "ModelSettings",
    "PolicyName",
    "PolicySettings",
    "RetrySettings",
    "Settings",
    "SyncSettings",
    "TenancySettings",
    "TenantSettings",
    "TimeoutSettings",
    "TracingSettings",
    "WorkerSettings",
    "cautions",
    "load",
    "may_be_a_worker",
    "normalise_worker_url",
    "read_name_server",
]
