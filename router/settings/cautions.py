"""Settings that are right one by one and dangerous together. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from router.settings.schema import Settings

# What the shipped nginx and vLLM do unless they are told otherwise; seconds.
NGINX_READ = 330.0
NGINX_IDLE = 60.0
VLLM_KEEP_ALIVE = 5.0


def cautions(settings: Settings) -> list[str]:
    """What the operator should think about, one line each, without values that may be secret."""
    return [*_timeouts(settings), *_sizes(settings), *_keys(settings), *_replicas(settings)]


def _timeouts(settings: Settings) -> Iterator[str]:
    timeouts, health = settings.timeouts, settings.health
    for name, value in (("first_byte", timeouts.first_byte), ("stream_idle", timeouts.stream_idle)):
        if value >= NGINX_READ:
            yield (
                f"timeouts.{name} is {value:g} s, but the shipped nginx gives up after {NGINX_READ:g} s without a byte "
                "(proxy_read_timeout)"
            )
    if timeouts.upstream_keep_alive >= VLLM_KEEP_ALIVE:
        yield (
            f"timeouts.upstream_keep_alive is {timeouts.upstream_keep_alive:g} s, but vLLM closes idle connections "
            f"after {VLLM_KEEP_ALIVE:g} s unless VLLM_HTTP_TIMEOUT_KEEP_ALIVE says otherwise"
        )
    if timeouts.keep_alive <= NGINX_IDLE:
        yield (
            f"timeouts.keep_alive is {timeouts.keep_alive:g} s, but the shipped nginx keeps connections for "
            f"{NGINX_IDLE:g} s, and requests on one that is being closed fail"
        )
    if health.timeout > health.interval:
        yield "health.timeout is longer than health.interval, so that a silent worker is found later than it seems"


def _sizes(settings: Settings) -> Iterator[str]:
    limits = settings.limits
    if limits.total_body_bytes < max(limits.body_bytes, limits.media_body_bytes):
        yield "limits.total_body_bytes has no room for one body of the size that is allowed"
    if limits.media_body_bytes < limits.body_bytes:
        yield "limits.media_body_bytes is smaller than limits.body_bytes"


def _keys(settings: Settings) -> Iterator[str]:
    auth, tenancy = settings.auth, settings.tenancy
    named = {tenant for tenant, _ in auth.client_keys}
    if settings.host not in ("127.0.0.1", "::1", "localhost") and auth.client_keys and auth.admin_key is None:
        yield "clients need keys, but decisions are open to everybody: there is no auth.admin_key"
    if auth.admin_key is not None and auth.admin_key in [key for _, key in auth.client_keys]:
        yield "auth.admin_key is a client's key too"
    if tenancy.salt_secret is not None and len(named) < 2:
        yield "tenancy.salt_secret is set, but no two tenants are told apart (auth.keys_file)"
    for tenant in sorted(settings.tenants.keys() - named):
        yield f"tenants.{tenant}: no key names this tenant"


def _replicas(settings: Settings) -> Iterator[str]:
    secret = settings.affinity.hash_secret.get_secret_value()
    if len({tenant for tenant, _ in settings.auth.client_keys}) > 1 and not secret:
        yield "there are several tenants and no affinity.hash_secret: one can aim for collisions with another's prompts"
