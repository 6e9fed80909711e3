"""Settings that are right one by one and dangerous together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from router.__main__ import main
from router.settings import Settings
from router.settings.cautions import NGINX_IDLE, NGINX_READ, cautions

NGINX = (Path(__file__).resolve().parents[2] / "config/nginx/nginx.conf").read_text()


def of(**settings: Any) -> list[str]:
    return cautions(Settings.model_validate(settings))


def test_the_defaults_need_none() -> None:
    assert of(workers=["http://a:8000"]) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"timeouts": {"first_byte": 330}}, "timeouts.first_byte is 330 s, but the shipped nginx"),
        ({"timeouts": {"stream_idle": 400}}, "timeouts.stream_idle is 400 s, but the shipped nginx"),
        ({"timeouts": {"upstream_keep_alive": 5}}, "timeouts.upstream_keep_alive is 5 s, but vLLM"),
        ({"timeouts": {"keep_alive": 60}}, "timeouts.keep_alive is 60 s, but the shipped nginx"),
        ({"health": {"interval": 1}}, "health.timeout is longer than health.interval"),
        ({"limits": {"total_body_bytes": 1_000_000}}, "limits.total_body_bytes has no room"),
        ({"limits": {"media_body_bytes": 1_000}}, "limits.media_body_bytes is smaller"),
        ({"auth": {"api_keys": ["k"]}, "host": "0.0.0.0"}, "there is no auth.admin_key"),
        ({"auth": {"api_keys": ["k"], "admin_key": "k"}}, "auth.admin_key is a client's key too"),
        ({"tenancy": {"salt_secret": "s"}}, "no two tenants are told apart"),
        ({"tenants": {"alpha": {"max_requests": 1}}}, "tenants.alpha: no key names this tenant"),
    ],
)
def test_what_is_worth_a_line(settings: dict[str, Any], words: str) -> None:
    [line] = of(**settings)
    assert words in line


def test_tenants_without_a_hash_secret_can_aim_for_each_other(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("alpha canary-1\nbeta canary-2\n")
    auth = {"keys_file": str(file)}
    [line] = of(auth=auth)
    assert "no affinity.hash_secret" in line
    assert of(auth=auth, affinity={"hash_secret": "s"}, tenancy={"salt_secret": "t"}) == []


def test_check_config_says_them_and_finds_the_settings_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-config", "--worker", "http://a:8000"]) == 0
    assert "timeouts" not in capsys.readouterr().err
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ROUTER_TIMEOUTS__FIRST_BYTE", "600")
        assert main(["check-config", "--worker", "http://a:8000"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("ok: 1 worker")
    assert "prefix-router: caution: timeouts.first_byte is 600 s" in said.err


def test_the_shipped_nginx_is_as_the_cautions_say() -> None:
    assert f"proxy_read_timeout {NGINX_READ:g}s;" in NGINX
    assert f"keepalive_timeout {NGINX_IDLE:g}s;" in NGINX
