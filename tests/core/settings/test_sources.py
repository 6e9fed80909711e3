"""Which source of a setting wins."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from router.settings import Settings, load
from tests.core.settings.rig import Write


@pytest.mark.parametrize(
    ("sources", "port"), [("", 8080), ("f", 1), ("e", 2), ("g", 3), ("fe", 2), ("fg", 3), ("eg", 3), ("feg", 3)]
)
def test_flags_win_over_the_environment_over_the_file_over_defaults(
    sources: str, port: int, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "e" in sources:
        monkeypatch.setenv("ROUTER_PORT", "2")
    file = write("port: 1\n") if "f" in sources else None
    assert load(file, {"port": 3} if "g" in sources else None).port == port


def test_groups_are_put_together_from_all_sources(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTER_HEALTH__FALL", "7")
    monkeypatch.setenv("ROUTER_HEALTH__RISE", "8")
    health = load(write("health: {interval: 1.5, fall: 9, timeout: 0.5}\n"), {"health": {"rise": 4}}).health
    assert (health.interval, health.timeout, health.fall, health.rise, health.eject_after) == (1.5, 0.5, 7, 4, 5)


def test_a_group_may_come_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTER_HEALTH", '{"fall": 7, "rise": 3}')
    monkeypatch.setenv("ROUTER_HEALTH__RISE", "4")
    monkeypatch.setenv("ROUTER_POLICY__SLACK", "[[10, 1], [20, 2]]")
    monkeypatch.setenv("ROUTER_MODELS", '{"Org/Model": {"reuse": "observe", "cache": {"block_size": 16}}}')
    loaded = load()
    assert (loaded.health.fall, loaded.health.rise) == (7, 4)
    assert loaded.policy.slack == ((10, 1), (20, 2))
    assert loaded.models["Org/Model"].reuse == "observe"
    assert loaded.models["Org/Model"].cache.block_size == 16


def test_one_setting_of_one_model_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTER_MODELS__LLAMA__REUSE", "off")
    assert load().models["llama"].reuse == "off"


def test_names_in_the_environment_may_be_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("router_health__fall", "7")
    assert load().health.fall == 7


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("http://a:1", ["http://a:1"]),
        ("http://a:1,http://b:2", ["http://a:1", "http://b:2"]),
        (" http://a:1 , http://b:2 ,", ["http://a:1", "http://b:2"]),
        ("", []),
    ],
)
def test_workers_in_the_environment_are_a_list_with_commas(
    text: str, urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUTER_WORKERS", text)
    assert [worker.url for worker in load().workers] == urls


def test_a_list_replaces_the_one_below_it(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("workers: ['http://a:1', {url: 'http://b:2', slots: 7, api_key: k}]\n")
    both = load(file).workers
    assert [(worker.url, worker.slots) for worker in both] == [("http://a:1", None), ("http://b:2", 7)]
    assert both[1].api_key is not None
    monkeypatch.setenv("ROUTER_WORKERS", "http://c:3")
    assert [worker.url for worker in load(file).workers] == ["http://c:3"]
    assert [worker.url for worker in load(file, {"workers": ["http://d:4"]}).workers] == ["http://d:4"]


def test_keys_in_the_environment_are_a_list_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("one,two", " one , two", '["one", "two"]'):
        monkeypatch.setenv("ROUTER_AUTH__API_KEYS", text)
        assert [key.get_secret_value() for key in load().auth.api_keys] == ["one", "two"]
    monkeypatch.setenv("ROUTER_AUTH__API_KEYS", "")
    assert load().auth.api_keys == ()


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "{}\n", "null\n"])
def test_an_empty_file_changes_nothing(text: str, write: Write) -> None:
    assert load(write(text)) == load() == load(None, {})


def test_loaded_settings_are_frozen_and_plain(write: Write) -> None:
    loaded = load(write("port: 1\n"))
    assert type(loaded) is Settings
    assert loaded == load(None, {"port": 1}) != load()
    with pytest.raises(ValidationError):
        loaded.port = 2
    with pytest.raises(ValidationError):
        loaded.health.fall = 2
