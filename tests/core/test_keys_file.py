"""The file of clients' keys: read whole, refused whole, and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.errors import SettingsError
from router.settings import AuthSettings, load
from router.settings.keys_file import MAX_TENANTS, read_keys_file


def written(tmp_path: Path, text: str | bytes) -> Path:
    file = tmp_path / "keys"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def test_a_line_is_a_tenant_and_a_key(tmp_path: Path) -> None:
    text = "# who  what\n\n  alpha\tkey-1 \r\nbeta key-2\n   # another\nalpha key#3\n"
    read = read_keys_file(written(tmp_path, text))
    assert [(tenant, key.get_secret_value()) for tenant, key in read.keys] == [
        ("alpha", "key-1"),
        ("beta", "key-2"),
        ("alpha", "key#3"),
    ]
    assert read.tenants == {"alpha", "beta"}
    assert "key-" not in repr(read)
    assert str(read) == str(tmp_path / "keys")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("alpha", "line 1: expected a tenant's name and a key"),
        ("\nalpha canary and-more", "line 2: expected a tenant's name and a key"),
        ("al/pha canary", "line 1: a tenant's name has up to 64 letters, digits, dots, dashes and underscores"),
        ("a" * 65 + " canary", "line 1: a tenant's name has up to 64 letters, digits, dots, dashes and underscores"),
        ("alpha canary\u00e4", "line 1: a key consists of visible ASCII characters"),
        ("alpha canary\nbeta canary", "line 2: the key of line 1 again"),
        (
            "alpha\n\nbeta canary 3",
            "line 1: expected a tenant's name and a key; line 3: expected a tenant's name and a key",
        ),
        (b"alpha \xff", "not a text file in UTF-8"),
    ],
)
def test_every_line_that_is_wrong_is_named_and_none_shown(text: str | bytes, problem: str, tmp_path: Path) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ValueError, match="keys") as caught:
        read_keys_file(file)
    assert str(caught.value) == f"{file}: {problem}"
    assert "canary" not in str(caught.value)


def test_there_are_not_ever_so_many_tenants(tmp_path: Path) -> None:
    read_keys_file(written(tmp_path, "".join(f"t{n} k{n}\n" for n in range(MAX_TENANTS))))
    with pytest.raises(ValueError, match="more than"):
        read_keys_file(written(tmp_path, "".join(f"t{n} k{n}\n" for n in range(MAX_TENANTS + 1))))


def test_a_file_that_is_not_there_is_a_problem_of_its_setting(tmp_path: Path) -> None:
    config = tmp_path / "router.yaml"
    config.write_text(f"port: 1\nauth:\n  keys_file: {tmp_path}/none\n")
    with pytest.raises(SettingsError) as caught:
        load(config)
    assert caught.value.problems == [f"{config}, line 3: auth.keys_file: {tmp_path}/none: No such file or directory"]


def test_the_keys_are_those_of_the_file_and_those_that_name_nobody(tmp_path: Path) -> None:
    file = written(tmp_path, "alpha key-1\n")
    auth = AuthSettings.model_validate({"keys_file": str(file), "api_keys": ["key-0"]})
    assert [(tenant, key.get_secret_value()) for tenant, key in auth.client_keys] == [
        ("default", "key-0"),
        ("alpha", "key-1"),
    ]
    assert AuthSettings.model_validate({"keys_file": ""}).client_keys == []
    with pytest.raises(ValueError, match="a key stands in api_keys and in keys_file"):
        AuthSettings.model_validate({"keys_file": str(file), "api_keys": ["key-1"]})


def test_settings_differ_when_the_file_does(tmp_path: Path) -> None:
    file = written(tmp_path, "alpha key-1\n")
    before = AuthSettings.model_validate({"keys_file": str(file)})
    assert AuthSettings.model_validate({"keys_file": str(file)}) == before
    written(tmp_path, "alpha key-2\n")
    assert AuthSettings.model_validate({"keys_file": str(file)}) != before
