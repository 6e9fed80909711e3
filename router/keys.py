"""API keys: one check for every door, in constant time."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from pydantic import SecretStr

_SCHEME = b"bearer "


class Keys:
    """The keys that open a door; false where none is configured, which leaves it to the caller what that means."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Iterable[SecretStr]) -> None:
        self._keys = [key.get_secret_value().encode() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._keys)

    def admit(self, authorization: bytes | None, x_api_key: bytes | None = None) -> bool:
        """Whether one of the two headers carries one of the keys; a bearer token is looked at first."""
        given = authorization or b""
        token = given[len(_SCHEME) :].strip() if given[: len(_SCHEME)].lower() == _SCHEME else x_api_key or b""
        # Every key is compared, so that the time taken says nothing about which came close. No key is empty:
        # one that was configured so must not let everybody in.
        return sum(hmac.compare_digest(token, key) for key in self._keys) > 0 and bool(token)
