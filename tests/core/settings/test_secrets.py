"""Keys and passwords in settings are never shown."""

from __future__ import annotations

import pytest

from router.errors import SettingsError
from router.settings import load
from tests.core.settings.rig import Write, problems

CANARY = "canary-7f3a"
SECRETS = f"""
workers: [{{url: 'http://a', api_key: {CANARY}1}}]
affinity: {{hash_secret: {CANARY}2}}
sync: {{redis_url: 'redis://:{CANARY}3@redis:6379/0'}}
auth: {{api_keys: [{CANARY}4], admin_key: {CANARY}5, worker_api_key: {CANARY}6}}
"""


def test_secrets_are_never_shown(write: Write) -> None:
    loaded = load(write(SECRETS))
    assert loaded.auth.api_keys[0].get_secret_value() == CANARY + "4"
    assert loaded.sync.redis_url is not None
    assert loaded.sync.redis_url.get_secret_value().startswith(f"redis://:{CANARY}")
    for shown in (repr(loaded), str(loaded), f"{loaded.model_dump()}", loaded.model_dump_json()):
        assert "canary" not in shown


@pytest.mark.parametrize(
    "text",
    [
        SECRETS + "port: x\n",
        SECRETS + "[",
        SECRETS.replace("api_key:", "api_kee:"),
        f"auth: {{api_keys: ['{CANARY} 4'], admin_key: '{CANARY} é', worker_api_key: ['{CANARY}']}}",
        f"auth: {{admin_key: {CANARY}, oops: '{CANARY}'",
        f"sync: {{redis_url: 'http://:{CANARY}@x'}}",
        f"workers: ['http://user:{CANARY}@host']",
        f"{CANARY}: {{admin_key: {CANARY}}}".replace(CANARY + ":", "auht:", 1),
        f"auth: {CANARY}",
    ],
)
def test_problems_do_not_show_secrets(text: str, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTER_AUTH__ADMIN_KEY", f"{CANARY} 9")
    assert not [line for line in problems(write(text)) if "canary" in line]
    with pytest.raises(SettingsError) as caught:
        load(write(text))
    assert "canary" not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_keys_that_are_empty_are_no_keys(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a compose file passes on what is not set."""
    monkeypatch.setenv("ROUTER_AUTH__ADMIN_KEY", "")
    monkeypatch.setenv("ROUTER_AUTH__WORKER_API_KEY", "")
    monkeypatch.setenv("ROUTER_AUTH__API_KEYS", "")
    monkeypatch.setenv("ROUTER_SYNC__REDIS_URL", "")
    loaded = load(write("workers: [{url: 'http://a', api_key: ''}]"))
    assert (loaded.auth.admin_key, loaded.auth.worker_api_key, loaded.auth.api_keys) == (None, None, ())
    assert loaded.sync.redis_url is None
    assert loaded.workers[0].api_key is None


@pytest.mark.parametrize("key", ["", "a b", "a\nb", "\x7f", "clé", "a\x00"])
def test_a_key_that_can_not_stand_in_a_header_is_refused(key: str) -> None:
    assert problems(None, {"auth": {"api_keys": [key]}}) == [
        "auth.api_keys.0: a key consists of visible ASCII characters, at least one"
    ]
