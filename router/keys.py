"""API keys: one check for every door, and whose key it was."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from hashlib import blake2b

from pydantic import SecretStr

from router.settings import DEFAULT_TENANT

_SCHEME = b"bearer "


class Keys:
    """The keys that open a door; false where none is configured, which leaves it to the caller what that means.

    A token is looked up by a keyed hash of it, and then compared in constant time: how long that takes says neither
    how many keys there are nor how close one of them came.
    """

    __slots__ = ("_by_digest", "_hash_key")

    def __init__(self, keys: Iterable[SecretStr] = (), named: Iterable[tuple[str, SecretStr]] = ()) -> None:
        """`keys` are those that name no tenant; `named` are pairs of a tenant and one of its keys."""
        self._hash_key = secrets.token_bytes(32)
        unnamed = [(DEFAULT_TENANT, key) for key in keys]
        pairs = [(tenant, key.get_secret_value().encode()) for tenant, key in [*unnamed, *named]]
        self._by_digest = {self._digest(key): (tenant, key) for tenant, key in pairs}

    def __bool__(self) -> bool:
        return bool(self._by_digest)

    def tenant(self, authorization: bytes | None, x_api_key: bytes | None = None) -> str | None:
        """Whose key one of the two headers carries, if it is one of these; a bearer token is looked at first."""
        given = authorization or b""
        token = given[len(_SCHEME) :].strip() if given[: len(_SCHEME)].lower() == _SCHEME else x_api_key or b""
        tenant, key = self._by_digest.get(self._digest(token), (None, b""))
        # No key is empty: one that was configured so must not let everybody in.
        return tenant if token and hmac.compare_digest(token, key) else None

    def admit(self, authorization: bytes | None, x_api_key: bytes | None = None) -> bool:
        """Whether one of the two headers carries one of the keys."""
        return self.tenant(authorization, x_api_key) is not None

    def _digest(self, token: bytes) -> bytes:
        return blake2b(token, key=self._hash_key, digest_size=16).digest()
