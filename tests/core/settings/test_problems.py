"""Every problem with settings at once, with its place, in words for people."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from router.errors import SettingsError
from router.settings import Settings, load
from tests.core.settings.rig import Write, problems


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
