"""One check of API keys for every door."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from router.keys import Keys


def keys(*values: str) -> Keys:
    return Keys(map(SecretStr, values))


@pytest.mark.parametrize(
    ("authorization", "x_api_key", "admitted"),
    [
        (b"Bearer one", None, True),
        (b"bearer  two ", None, True),
        (None, b"two", True),
        (b"Basic b25l", b"one", True),
        (b"Bearer wrong", b"one", False),
        (b"Bearer on", None, False),
        (b"Bearer onee", None, False),
        (b"Bearer", None, False),
        (b"one", None, False),
        (None, None, False),
        (b"", b"", False),
    ],
)
def test_who_is_admitted(authorization: bytes | None, x_api_key: bytes | None, admitted: bool) -> None:
    assert keys("one", "two").admit(authorization, x_api_key) is admitted


def test_an_empty_key_locks_the_door_instead_of_opening_it() -> None:
    empty = keys("")
    assert empty
    for given in (None, b"", b"Bearer ", b"Bearer"):
        assert not empty.admit(given, b"")


def test_no_key_at_all_is_false() -> None:
    assert not keys()
    assert not keys().admit(b"Bearer x")


def test_keys_beyond_ascii() -> None:
    assert keys("schlüssel").admit("Bearer schlüssel".encode())


def test_a_key_is_its_tenants() -> None:
    both = Keys(
        [SecretStr("one")], [("alpha", SecretStr("two")), ("beta", SecretStr("three")), ("alpha", SecretStr("4"))]
    )
    assert both.tenant(b"Bearer one") == "default"
    assert both.tenant(b"Bearer two") == "alpha"
    assert both.tenant(None, b"three") == "beta"
    assert both.tenant(b"Bearer 4", b"three") == "alpha"
    assert both.tenant(b"Bearer alpha") is None
    assert both.tenant(None, b"") is None
