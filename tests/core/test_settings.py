"""Settings: which source wins, every problem at once and with its place, no secrets shown, worker addresses."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from router.__main__ import main
from router.errors import SettingsError
from router.settings import Settings, load, may_be_a_worker, normalise_worker_url
from router.workers.registry import worker_id

Write = Callable[[str | bytes], Path]


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("ROUTER_"):
            monkeypatch.delenv(name)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the settings file and name it."""

    def written(text: str | bytes) -> Path:
        file = tmp_path / "router.yaml"
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return file

    return written


def problems(file: Path | None = None, flags: Mapping[str, Any] | None = None) -> list[str]:
    """What is wrong, one line each, without the name of the directory."""
    with pytest.raises(SettingsError) as caught:
        load(file, flags)
    assert caught.value.problems
    assert all("\n" not in problem for problem in caught.value.problems)
    return [problem.replace(f"{file}", "FILE") for problem in caught.value.problems]


# -- precedence ------------------------------------------------------------------------------------------------------


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


# -- problems --------------------------------------------------------------------------------------------------------


def test_every_problem_is_reported_at_once_with_its_place(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTER_PROT", "1")
    monkeypatch.setenv("ROUTER_RETRY", "no group")
    monkeypatch.setenv("ROUTER_HEALTH__FAL", "1")
    monkeypatch.setenv("ROUTER_POLICY__SLACK", "no list")
    monkeypatch.setenv("ROUTER_LIMITS__HEADER_COUNT", "many")
    file = write(
        "workerz: []\n"
        "workers: ['ftp://a', {url: 'http://b', slotz: 3}]\n"
        "health: {intervall: 3}\n"
        "timeouts: {drain: -3}\n"
        "models: {m: {reusex: 1, reuse: maybe, cache: {blok_size: 3}}}\n"
    )
    assert sorted(problems(file, {"port": 70_000, "bogus": 1})) == sorted(
        [
            "ROUTER_PROT: unknown setting (did you mean ROUTER_PORT?)",
            "ROUTER_RETRY: a group of settings is expected here: attempts, budget_share, budget_min",
            "ROUTER_HEALTH__FAL: unknown setting (did you mean ROUTER_HEALTH__FALL?)",
            "ROUTER_POLICY__SLACK: must be a list: [one, another], or one in each line behind a dash",
            "ROUTER_LIMITS__HEADER_COUNT: must be a whole number",
            "FILE, line 1: workerz: unknown setting (did you mean workers?)",
            "FILE, line 2: workers.0.url: a worker URL starts with http:// or https://",
            "FILE, line 2: workers.1.slotz: unknown setting (did you mean slots?)",
            "FILE, line 3: health.intervall: unknown setting (did you mean interval?)",
            "FILE, line 4: timeouts.drain: must be more than 0",
            "FILE, line 5: models.m.reusex: unknown setting (did you mean reuse?)",
            "FILE, line 5: models.m.reuse: must be 'off', 'observe' or 'on'",
            "FILE, line 5: models.m.cache.blok_size: unknown setting (did you mean block_size?)",
            "port: must be at most 65535",
            "bogus: unknown setting",
        ]
    )


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("ROUTER_", "unknown setting"),
        ("ROUTER_QQQ", "unknown setting"),
        ("router_prot", "unknown setting (did you mean ROUTER_PORT?)"),
        ("ROUTER_PORT__X", "unknown setting"),
        ("ROUTER_WORKERS__0__URL", "unknown setting"),
        ("ROUTER_LOG__FILE__X", "unknown setting"),
        ("ROUTER_MODELS__M__REUSE__X", "unknown setting"),
        ("ROUTER_MODELS__M__REUSEX", "unknown setting (did you mean ROUTER_MODELS__M__REUSE?)"),
        (
            "ROUTER_SYNC_REDIS_URL",
            "unknown setting (did you mean ROUTER_SYNC__REDIS_URL, with two underscores?)",
        ),
        ("ROUTER_SYNC__REDIS", "unknown setting (did you mean ROUTER_SYNC__REDIS_URL?)"),
        ("ROUTER_SYNC__", "unknown setting"),
    ],
)
def test_a_variable_that_would_have_no_effect_is_refused(
    name: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    assert f"{name}: {problem}" in problems()


def test_other_variables_are_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PORT", "ROUTERX", "MY_ROUTER_PORT"):
        monkeypatch.setenv(name, "1")
    assert load().port == 8080


def test_the_place_is_that_of_the_source_that_won(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("port: x\nhealth: {fall: x}\nworkers: ['ftp://a']\n")
    assert [line.split(": ")[:2] for line in problems(file)] == [
        ["FILE, line 1", "port"],
        ["FILE, line 3", "workers.0.url"],
        ["FILE, line 2", "health.fall"],
    ]
    monkeypatch.setenv("ROUTER_WORKERS", "ftp://b")
    monkeypatch.setenv("ROUTER_HEALTH__FALL", "y")
    assert [line.split(": ")[0] for line in problems(file, {"port": "z"})] == [
        "port",
        "ROUTER_WORKERS",
        "ROUTER_HEALTH__FALL",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("port: x", "FILE, line 1: port: must be a whole number"),
        ("port: -1", "FILE, line 1: port: must be at least 0"),
        ("port:", "FILE, line 1: port: has no value: write one, or leave the line out"),
        ("health: 3", "FILE, line 1: health: a group of settings is expected here: interval, timeout, fall, rise"),
        ("workers: 3", "FILE, line 1: workers: must be a list: "),
        ("workers: [3]", "FILE, line 1: workers.0: a URL is expected here, or a group: url, api_key, slots"),
        ("workers: [{slots: 3}]", "FILE, line 1: workers.0.url: is required"),
        ("workers: [{url: 'http://a', slots: 0}]", "FILE, line 1: workers.0.slots: must be more than 0"),
        ("policy: {name: fastest}", "FILE, line 1: policy.name: must be 'work', 'slack', "),
        ("policy: {slack: [[4, 1], [2, 2]]}", "FILE, line 1: policy.slack: prompt sizes must ascend"),
        ("policy: {slack: [[4, 1], [4, 2]]}", "FILE, line 1: policy.slack: prompt sizes must ascend"),
        ("policy: {slack: [[4]]}", "FILE, line 1: policy.slack.0.1: a value is missing here"),
        ("timeouts: {first_byte: .inf}", "FILE, line 1: timeouts.first_byte: must be a number that is not infinite"),
        ("timeouts: {first_byte: .nan}", "FILE, line 1: timeouts.first_byte: must be "),
        ("timeouts: {drain_delay: .inf}", "FILE, line 1: timeouts.drain_delay: must be a number that is not infinite"),
        ("timeouts: {queue: 0}", "FILE, line 1: timeouts.queue: must be more than 0"),
        ("retry: {attempts: 4}", "FILE, line 1: retry.attempts: must be at most 3"),
        ("retry: {budget_share: 1.1}", "FILE, line 1: retry.budget_share: must be at most 1"),
        ("sync: {redis_url: 'http://a'}", "FILE, line 1: sync.redis_url: must start with redis://, rediss://, "),
        ("sync: {heartbeat_seconds: 3}", "FILE, line 1: sync: expire_seconds must be longer than heartbeat_seconds"),
        (
            "health: {eject_seconds: 61}",
            "FILE, line 1: health: eject_max_seconds must not be shorter than eject_seconds",
        ),
        ("affinity: {max_blocks: 0}", "FILE, line 1: affinity.max_blocks: must be more than 0"),
        ("3: x", "FILE, line 1: 3: unknown setting"),
        ("null: x", "FILE: None: unknown setting"),
        ("host: 3", "FILE, line 1: host: must be text: put it in quotes"),
        ("auth: {api_keys: [3]}", "FILE, line 1: auth.api_keys.0: must be text: put it in quotes"),
        ("decision_headers: perhaps", "FILE, line 1: decision_headers: must be true or false"),
        ("processes: 1.5", "FILE, line 1: processes: must be a whole number"),
        ("log: {file: 3}", "FILE, line 1: log.file: must be the path of a file"),
        ("models: [a]", "FILE, line 1: models: must be a table: "),
        ("policy: {slack: [[4, 1, 1]]}", "FILE, line 1: policy.slack.0: must have 2 values at most"),
        ("tracing: {service_name: ''}", "FILE, line 1: tracing.service_name: must not be empty"),
        (
            "timeouts: {queue: 5m}",
            "FILE, line 1: timeouts.queue: must be a number without a unit: times are in seconds",
        ),
        ("limits: {body_bytes: 16 MiB}", "FILE, line 1: limits.body_bytes: must be a whole number without a unit: "),
        ("health: {3: x}", "FILE, line 1: health.3: a name must be text: put it in quotes"),
    ],
)
def test_one_problem(text: str, problem: str, write: Write) -> None:
    (line,) = problems(write(text))
    assert line.startswith(problem)


STRANGE: list[Any] = [
    None,
    True,
    -1,
    1.5,
    1e30,
    float("inf"),
    "",
    "x",
    "5m",
    [],
    [3],
    [[]],
    [{}],
    {},
    {"a": {}},
    {3: 3},
]


def paths(kind: type[BaseModel] = Settings, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in kind.model_fields.items():
        yield (*prefix, name)
        if isinstance(field.default, BaseModel):
            yield from paths(type(field.default), (*prefix, name))


@pytest.mark.parametrize("path", list(paths()), ids=".".join)
def test_no_problem_speaks_the_language_of_the_validator(path: tuple[str, ...]) -> None:
    for value in STRANGE:
        inner: Any = value
        for name in reversed(path):
            inner = {name: inner}
        try:
            load(None, inner)
        except SettingsError as error:
            for problem in error.problems:
                assert not re.search("[Ii]nput|[Tt]uple|dictionary|valid |should|instance|class|Field", problem), (
                    problem
                )


# -- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a", "FILE, line 1, column 3: a list in brackets that is not closed"),
        ("a: b: c", "FILE, line 1, column 5: a second colon in a line"),
        ("port: 1\nhost: a\nport: 2\n", "FILE, line 3, column 1: port stands twice"),
        ("health: {fall: 1, rise: 2, fall: 3}", "FILE, line 1, column 28: fall stands twice"),
        ("a: *b", "FILE, line 1, column 4: found undefined alias; a value"),
        ("a: !!python/object:os.system {}", "FILE, line 1, column 4: could not determine a constructor"),
        ("[a, b]: c", "FILE, line 1, column 1: a name that is a list or a table"),
        ("\tport: 1", "FILE, line 1, column 1: a tab, where YAML indents with blanks"),
        ("a: {b: 1", "FILE, line 1, column 9: a table in braces that is not closed"),
        ("port: 1\nhost a\n", "FILE, line 3, column 1: a line without a colon: "),
        ("port: 1\n  host: a\n", "FILE, line 2, column 7: a second colon in a line, or a line that is indented"),
        ("workers:\n  - a\n - b\n", "FILE, line 3, column 2: a line that is indented unlike those around it"),
        ("host: 'a", "FILE, line 1, column 9: a quote that is not closed"),
        ("port: 1\n---\nport: 2\n", "FILE, line 2, column 1: a second document begins here"),
        ("%x\nport: 1\n", "FILE, line 2, column 1: text that belongs to no setting"),
        ("[1, 2]", "FILE: settings are expected, each written NAME: VALUE"),
        ("just text", "FILE: settings are expected, each written NAME: VALUE"),
        (b"\xff\xfe\x00", "FILE: not a YAML file in UTF-8"),
        (b"host: \xe9t\xe9", "FILE: not a YAML file in UTF-8"),
        ("host: a\x00b", "FILE: not a YAML file in UTF-8"),
        ("[" * 800, "FILE: not a YAML file in UTF-8"),
    ],
)
def test_a_file_that_is_no_settings(text: str | bytes, problem: str, write: Write) -> None:
    (line,) = problems(write(text))
    assert line.startswith(problem)


def test_the_line_is_that_of_the_setting_whatever_stands_around_it(write: Write) -> None:
    file = write(
        "# a comment\n"
        "\n"
        "base: &base\n"
        "  fall: x\n"
        "health:\n"
        "  <<: *base\n"
        "  rise: y\n"
        "workers:\n"
        "  - http://a\n"
        "  - url: http://b\n"
        "    slots: many\n"
        "  - slots: 3\n"
        "tenants:\n"
        "  good: {}\n"
        "  not good: {}\n"
        "models: {m:\n"
        "  {reuse: perhaps}}\n"
    )
    assert [line.split(": ")[:2] for line in problems(file)] == [
        ["FILE, line 11", "workers.1.slots"],
        ["FILE, line 12", "workers.2.url"],
        ["FILE, line 4", "health.fall"],
        ["FILE, line 7", "health.rise"],
        ["FILE, line 17", "models.m.reuse"],
        ["FILE, line 15", "tenants.not good"],
        ["FILE, line 3", "base"],
    ]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert problems(tmp_path / "none.yaml") == ["FILE: No such file or directory"]
    assert problems(tmp_path) == ["FILE: Is a directory"]


def test_anchors_and_merges_are_yaml_as_ever(write: Write) -> None:
    loaded = load(write("health: &h {fall: 4}\nmodels:\n  a: &a {reuse: off}\n  b: {<<: *a, cache: {enabled: true}}\n"))
    assert loaded.health.fall == 4
    assert loaded.models["b"].reuse == "off"


@pytest.mark.parametrize("word", ["on", "off", "observe", "'on'", "'off'"])
def test_words_that_yaml_takes_for_truth_values_stay_words(word: str, write: Write) -> None:
    assert load(write(f"models: {{m: {{reuse: {word}}}}}")).models["m"].reuse == word.strip("'")


# -- secrets ---------------------------------------------------------------------------------------------------------

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


# -- worker addresses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("http://gpu1:8000", "http://gpu1:8000"),
        ("http://gpu1:8000/", "http://gpu1:8000"),
        ("  http://gpu1  ", "http://gpu1:80"),
        ("https://gpu1", "https://gpu1:443"),
        ("http://gpu1:", "http://gpu1:80"),
        ("HTTP://GPU1.Example.COM.:8000", "http://gpu1.example.com:8000"),
        ("http://vllm_0.vllm-workers.svc:8000", "http://vllm_0.vllm-workers.svc:8000"),
        ("http://10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://[0:0:0:0:0:0:0:1]", "http://[::1]:80"),
        ("http://[2001:DB8::0001]:8000", "http://[2001:db8::1]:8000"),
        ("http://gateway/fleet/a/", "http://gateway:80/fleet/a"),
        ("http://gateway/v1beta", "http://gateway:80/v1beta"),
        ("http://3com.example", "http://3com.example:80"),
        ("http://host:65535", "http://host:65535"),
    ],
)
def test_an_address_has_one_form(url: str, canonical: str) -> None:
    assert normalise_worker_url(url) == canonical
    assert normalise_worker_url(canonical) == canonical


@pytest.mark.parametrize(
    "url",
    [
        "",
        "gpu1:8000",
        "//gpu1",
        "file:///etc/passwd",
        "ftp://gpu1",
        "unix:///run/vllm.sock",
        "javascript:alert(1)",
        "http://",
        "http:///path",
        "http://:8000",
        "http://user@gpu1",
        "http://user:pass@gpu1",
        "http://@gpu1",
        "http://:@gpu1",
        "http://gpu1:8000@evil",
        "http://gpu1?x=1",
        "http://gpu1/?",
        "http://gpu1#x",
        "http://gpu1/#",
        "http://gpu1:0",
        "http://gpu1:65536",
        "http://gpu1:-1",
        "http://gpu1:port",
        "http://gpu 1",
        "http://gpu\n1",
        "http://gpu1/\r\nX: y",
        "http://gpu1\\evil",
        "http://gpu%31",
        "http://bücher",
        "http://-.-..x",
        "http://[::1",
        "http://[fe80::1%25eth0]",
        "http://gpu1/v1",
        "http://gpu1/v1/",
        "http://gpu1/fleet/v1",
        "http://gpu1/a/../b",
        "http://gpu1/a//b",
        "http://gpu1/a%2fb",
        "http://gpu1/a;b",
        "http://169.254.169.254",
        "http://169.254.169.254./latest",
        "http://[fe80::1]",
        "http://[::ffff:169.254.169.254]",
        "http://[::ffff:a9fe:a9fe]",
        "http://2852039166",
        "http://0xa9fea9fe",
        "http://169.254.43518",
        "http://0251.0376.0251.0376",
        "http://0xa9.0xfe.0xa9.0xfe",
        "http://127.1",
        "http://0",
        "http://0.0.0.0:8000",
        "http://[::]:8000",
        "http://[::ffff:0.0.0.0]",
        "http://224.0.0.1",
        "http://[ff02::1]",
    ],
)
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|Port|port"):
        normalise_worker_url(url)
    assert problems(None, {"workers": [url]})[0].startswith("workers.0.url: ")


def test_addresses_with_blanks_between_want_commas() -> None:
    with pytest.raises(ValueError, match="several worker URLs in one; commas"):
        normalise_worker_url("http://gpu1:8000 http://gpu2:8000")


def test_an_address_with_the_api_path_is_told_what_to_leave_out() -> None:
    assert problems(None, {"workers": ["http://gpu1:8000/v1"]}) == [
        "workers.0.url: a worker URL ends before /v1, which the router adds"
    ]


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=30), st.text("htps:/[]@.0123456789axf%#?\\ ", max_size=30).map("http://".__add__)))
def test_any_text_is_an_address_or_an_error(text: str) -> None:
    try:
        canonical = normalise_worker_url(text)
    except ValueError:
        return
    assert canonical.startswith(("http://", "https://"))
    assert not set(canonical) & set("@?#\\% \r\n\t")
    assert normalise_worker_url(canonical) == canonical


@pytest.mark.parametrize(
    "urls",
    [
        ["http://a", "http://b", "http://a"],
        ["http://a", "http://a:80/"],
        ["http://a", "HTTP://A."],
        ["https://a", "https://a:443"],
        ["http://[::1]", "http://[0::1]:80"],
    ],
)
def test_a_worker_that_is_listed_twice_is_refused(urls: list[str]) -> None:
    (line,) = problems(None, {"workers": urls})
    assert line == f"workers: listed twice: {normalise_worker_url(urls[0])}"


def test_a_double_is_reported_beside_other_problems(write: Write) -> None:
    lines = problems(write("workers: ['http://a', 'http://a']\nport: x\n"))
    assert lines[1:] == ["FILE, line 1: workers: listed twice: http://a:80"]


def test_the_same_host_may_serve_on_several_ports_and_paths() -> None:
    urls = ["http://a:1", "http://a:2", "http://a:1/x", "https://a:1"]
    assert [worker.url for worker in load(None, {"workers": urls}).workers] == urls


# -- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["serve"], "no workers"),
        (["serve", "--worker", "http://a", "--worker", "http://a:80"], "--worker: listed twice: http://a:80"),
        (["serve", "--worker", "gpu1"], "--worker: a worker URL starts with http:// or https://"),
        (["serve", "--worker", "http://a", "--worker", "b"], "--worker (number 2): a worker URL starts with"),
        (["serve", "--port", "70000"], "--port: must be at most 65535"),
        (["serve", "--redis", "http://a"], "--redis: "),
        (["serve", "--policy", "slak"], "--policy: must be 'work', 'slack', 'power_of_two', 'least_loaded' or"),
        (["check-config"], "the settings are right, but serve would refuse them: no workers"),
        (["check-config", "--worker", "http://u:p@a"], "--worker: a worker URL must not carry a user"),
        (["serve", "--config", "/none.yaml"], "/none.yaml: No such file or directory"),
    ],
)
def test_a_bad_worker_list_ends_the_command_with_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (only,) = err.splitlines()
    assert only.startswith(f"prefix-router: {line}")


def test_a_good_configuration_is_said_to_be_one_and_names_its_workers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-config", "--worker", "http://a", "--worker", "http://b"]) == 0
    head, *workers = capsys.readouterr().out.splitlines()
    assert head == "ok: 2 workers, policy work"
    assert workers == [f"{worker_id(url)}  {url}" for url in ("http://a:80", "http://b:80")]


def test_with_an_admin_key_workers_may_come_later(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROUTER_AUTH__ADMIN_KEY", "key")
    assert main(["check-config"]) == 0
    assert capsys.readouterr().out == "ok: 0 workers, policy work\n"


def test_the_shipped_file_needs_workers_alone(capsys: pytest.CaptureFixture[str]) -> None:
    shipped = str(Path(__file__).resolve().parents[2] / "config" / "router.yaml")
    assert main(["check-config", "--config", shipped]) == 2
    assert "serve would refuse them: no workers" in capsys.readouterr().err
    assert main(["check-config", "--config", shipped, "--worker", "http://a"]) == 0


def test_a_word_that_is_nearly_right_is_guessed() -> None:
    (problem,) = problems(None, {"policy": {"name": "slak"}})
    assert problem.endswith("(did you mean slack?)")


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"prefix-router {version('prefix-router')}\n"


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("10.0.0.1", True),
        ("127.0.0.1", True),
        ("8.8.8.8", True),
        ("::1", True),
        ("fd00::1", True),
        ("::ffff:10.0.0.1", True),
        ("169.254.169.254", False),
        ("::ffff:169.254.169.254", False),
        ("fe80::1%eth0", False),
        ("fe80::1", False),
        ("224.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("no address", False),
    ],
)
def test_where_a_name_may_lead(host: str, allowed: bool) -> None:
    assert may_be_a_worker(host) is allowed
