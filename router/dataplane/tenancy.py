"""Whose a request is, how many of one tenant may run, and the salt that keeps tenants' caches apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from router.errors import BadRequest, TenantLimit, Unauthorized
from router.keys import Keys
from router.metrics import Metrics
from router.prompt import Prompt
from router.prompt.salting import tenant_salt, with_salt
from router.quota import Quota
from router.settings import DEFAULT_TENANT, Settings, TenantSettings
from router.workers.selection import WITH_PREFIX

_PLAIN = TenantSettings()
RETRY_SECONDS = 1


class Tenancy:
    """One for all of a process. Tenants are named by the settings alone, so what is kept of them is bounded.

    `replicas` tells how many add to the map, this one included.
    """

    def __init__(self, settings: Settings, replicas: Callable[[], int] = lambda: 1) -> None:
        self._replicas = replicas
        self.running: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        self.reconfigure(settings)

    def reconfigure(self, settings: Settings) -> None:
        """Go on with other keys and limits; what runs is counted on."""
        keys = settings.auth.client_keys
        self._keys = Keys(named=keys)
        self._settings = settings.tenancy
        self._own = settings.tenants
        # Looked up for every request, so that nobody pays for limits that there are not.
        limits = [settings.tenancy.max_requests, *(own.max_requests for own in settings.tenants.values())]
        self._limited = any(limit is not None for limit in limits)
        self._choices = settings.limits.choices
        secret = settings.tenancy.salt_secret
        self._secret = secret.get_secret_value().encode() if secret is not None else None
        self.tenants = frozenset(tenant for tenant, _ in keys) | {DEFAULT_TENANT}
        # A tenant alone has nobody to be kept from.
        self._several = len({tenant for tenant, _ in keys}) > 1
        self.refused = {tenant: count for tenant, count in self.refused.items() if tenant in self.tenants}

    def tenant(self, fields: Mapping[bytes, bytes]) -> str:
        """Whose request one with these header fields is; raises Unauthorized where keys are needed and none fits."""
        if not self._keys:
            return DEFAULT_TENANT
        tenant = self._keys.tenant(fields.get(b"authorization"), fields.get(b"x-api-key"))
        if tenant is None:
            raise Unauthorized("A valid API key is required.")
        return tenant

    def look(self, tenant: str) -> None:
        """Raise TenantLimit if the tenant has as much under way as it may."""
        if not self._limited:
            return
        most = self._own.get(tenant, _PLAIN).max_requests or self._settings.max_requests
        if most is not None and self.running.get(tenant, 0) >= most:
            self.refused[tenant] = self.refused.get(tenant, 0) + 1
            raise TenantLimit(f"No more than {most} requests may be under way at a time.", retry_after=RETRY_SECONDS)

    def enter(self, tenant: str) -> None:
        """One more is under way, and `leave` follows; raises TenantLimit."""
        self.look(tenant)
        self.running[tenant] = self.running.get(tenant, 0) + 1

    def leave(self, tenant: str) -> None:
        """One less."""
        left = self.running[tenant] - 1
        if left:
            self.running[tenant] = left
        else:
            del self.running[tenant]

    def share(self, tenant: str) -> float:
        """The part of the ownership map that the tenant may fill by requests to this replica.

        What one replica remembers all do, so each of them gives away its part of a tenant's share.
        """
        if not self._several:
            return 1.0
        share = self._own.get(tenant, _PLAIN).index_share or self._settings.index_share
        return share if share >= 1 else share / self._replicas()

    def prepare(self, tenant: str, prompt: Prompt, body: bytes) -> bytes:
        """The body as the worker gets it: with the tenant's salt, where that is on; raises BadRequest.

        The prompt's own salt becomes what the engine will see.
        """
        if prompt.choices > self._choices:
            raise BadRequest(f"n and best_of must not be above {self._choices}.", param="n")
        secret = self._secret
        if secret is None or prompt.form not in WITH_PREFIX:
            return body
        body, prompt.salt = with_salt(body, lambda own: tenant_salt(secret, tenant, own))
        return body


def describe_tenancy(metrics: Metrics, tenancy: Tenancy, quota: Quota, clock: Callable[[], float]) -> None:
    """Metrics by tenant, read from their owners."""
    label = ("tenant",)
    metrics.gauge(
        "router_tenant_requests", "Requests under way.", label, lambda: [((t,), n) for t, n in tenancy.running.items()]
    )
    metrics.gauge(
        "router_tenant_blocks",
        "Blocks that the tenant has added to the map within their time to live.",
        label,
        lambda: [((tenant,), quota.used(tenant, clock())) for tenant in sorted(tenancy.tenants)],
    )
    metrics.counter(
        "router_tenant_refused_total",
        "Requests beyond what the tenant may have under way.",
        label,
        lambda: [((tenant,), count) for tenant, count in tenancy.refused.items()],
    )
