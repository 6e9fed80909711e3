"""The address of Redis in all its forms, and what is wrong with those that are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from router.errors import SettingsError
from router.settings import SyncSettings
from router.settings.redis_url import RedisUrl, read_redis_url
from router.sync_places import Places


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://host", RedisUrl("single", False, (("host", 6379),))),
        ("redis://10.0.0.1:7000/3", RedisUrl("single", False, (("10.0.0.1", 7000),), db=3)),
        ("rediss://user:p%40ss@host:1", RedisUrl("single", True, (("host", 1),), username="user", password="p@ss")),
        ("redis://:secret@[::1]:1/0?x=1", RedisUrl("single", False, (("::1", 1),), password="secret", query="x=1")),
        ("unix:///run/redis.sock", RedisUrl("single", False, (), path="/run/redis.sock")),
        ("unix://u:p@/a%20b.sock", RedisUrl("single", False, (), path="/a b.sock", username="u", password="p")),
        (
            "redis+sentinel://a,b:1/main/2",
            RedisUrl("sentinel", False, (("a", 26379), ("b", 1)), service="main", db=2),
        ),
        ("rediss+sentinel://u:p@a/main", RedisUrl("sentinel", True, (("a", 26379),), "", "main", 0, "u", "p")),
        ("redis+cluster://a:1,b", RedisUrl("cluster", False, (("a", 1), ("b", 6379)))),
        ("rediss+cluster://a/0", RedisUrl("cluster", True, (("a", 6379),))),
    ],
)
def test_a_url_is_taken_apart(url: str, expected: RedisUrl) -> None:
    assert read_redis_url(url) == expected


SECRET = "s3cret"


@pytest.mark.parametrize(
    "url",
    [
        "http://host",
        "host:6379",
        f"redis://:{SECRET}#x@host:1/0",
        f"redis://:{SECRET}@host:port/0",
        f"redis://:{SECRET}@host:0",
        f"redis://:{SECRET}@host:65536",
        f"redis://:{SECRET}@",
        f"redis://:{SECRET}/x@host",
        f"redis://:{SECRET}@a,b",
        f"redis://:{SECRET}@host/zero",
        f"redis://:{SECRET}@host/0/1",
        f"redis://:{SECRET}@ho\tst",
        f"unix://:{SECRET}@host/run/redis.sock",
        f"unix://:{SECRET}@",
        f"redis+sentinel://:{SECRET}@a,b",
        f"redis+sentinel://:{SECRET}@a,,b/main",
        f"redis+cluster://:{SECRET}@a/1",
    ],
)
def test_what_is_wrong_is_said_without_showing_it(url: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        read_redis_url(url)
    assert SECRET not in str(caught.value)
    with pytest.raises(ValidationError):
        SyncSettings.model_validate({"redis_url": url})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"redis://u:{SECRET}@a:1/0", "a:1"),
        (f"unix://:{SECRET}@/run/r.sock", "/run/r.sock"),
        (f"redis+cluster://u:{SECRET}@a:1,b:2", "cluster a:1,b:2"),
    ],
)
def test_the_log_shows_no_secret(url: str, shown: str) -> None:
    assert read_redis_url(url).shown == shown


def test_passwords_stand_in_one_place(tmp_path: Path) -> None:
    file = tmp_path / "password"
    SyncSettings.model_validate({"redis_url": "redis://user@a", "password_file": file})
    with pytest.raises(ValidationError, match="password"):
        SyncSettings.model_validate({"redis_url": "redis://user:pa@a", "password_file": file})


def test_a_ca_is_for_tls(tmp_path: Path) -> None:
    SyncSettings.model_validate({"redis_url": "rediss://a", "ca_file": tmp_path / "ca.pem"})
    with pytest.raises(ValidationError, match="rediss"):
        SyncSettings.model_validate({"redis_url": "redis://a", "ca_file": tmp_path / "ca.pem"})


def test_an_option_that_the_client_does_not_understand_is_a_settings_error() -> None:
    with pytest.raises(SettingsError, match="option"):
        Places(SyncSettings.model_validate({"redis_url": "redis://a?health_check_interval=often"}))
