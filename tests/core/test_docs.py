"""Documented or failing: settings, metrics, reasons, errors, routes and commands stand in docs/, and agree with it."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel, SecretStr
from pydantic_core import PydanticUndefined

from loadtest import demo
from router import __main__ as command_line
from router import errors
from router.affinity import EvictionCause
from router.app import Router
from router.cachemodel import BELOW_BLOCK_FLOOR, CACHE_DISABLED
from router.control.app import create_control
from router.dataplane.attempts import Outcome
from router.doctor import command as doctor
from router.fit import report
from router.hashing import BLOCK_BYTES, DENSE_BLOCKS, DENSE_BYTES, boundaries
from router.metrics import MAX_SERIES
from router.policy import POLICIES, Reason
from router.reload import RESULTS as RELOADS
from router.reload import takes_effect
from router.replay import command
from router.routes import ROUTES
from router.settings import CacheSettings, Group, ModelSettings, Settings, TenantSettings, WorkerSettings, load
from router.sync import DROP_CAUSES, MAX_PEERS
from router.sync_codec import KINDS, MAX_DELTAS, MAX_MESSAGE, MAX_ROWS
from router.terminal import explain, top
from router.workers.health import State
from tests.core.test_docs_pages import DOCS, ROOT, anchors

SETTINGS_FILE = ROOT / "config" / "router.yaml"
SHED = (errors.Unavailable, errors.QueueFull, errors.Draining, errors.TooManyConnections, errors.TenantLimit)
# Groups that stand in lists and tables, and where.
INNER: dict[str, type[Group]] = {
    "workers[]": WorkerSettings,
    "models.*": ModelSettings,
    "models.*.cache": CacheSettings,
    "tenants.*": TenantSettings,
}


def page(name: str) -> str:
    return (DOCS / name).read_text()


def rows(text: str) -> Iterator[list[str]]:
    """The cells of every row of every Markdown table, heads and rules left out."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if line.startswith("| ") and not following.startswith("| ---") and not line.startswith("| ---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def words(text: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", text)


def section(text: str, title: str) -> str:
    """A section of a page, up to the next heading of the same or a higher level."""
    found = re.search(rf"^(#+) {re.escape(title)}\n", text, re.MULTILINE)
    assert found, f"no section {title!r}"
    rest = text[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


# -- settings --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    path: str
    default: object

    @property
    def written(self) -> str:
        """The default as the documentation shows it."""
        if self.default is PydanticUndefined:
            return "required"
        if self.default == "":
            return "empty"
        if isinstance(self.default, str):
            return f"`{self.default}`"
        return f"`{json.dumps(self.default)}`"


def plain(value: object) -> Any:
    """A default in the types that YAML and JSON have."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def settings_of(model: type[BaseModel], prefix: str = "") -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        if isinstance(field.default, Group):
            yield from settings_of(type(field.default), f"{path}.")
        else:
            yield Setting(path, field.default if field.is_required() else plain(field.default))


def inner_settings() -> Iterator[Setting]:
    for place, model in INNER.items():
        for name, field in model.model_fields.items():
            if not isinstance(field.default, Group):
                yield Setting(f"{place}.{name}", field.default if field.is_required() else plain(field.default))


OUTER = list(settings_of(Settings))
ALL_SETTINGS = [*OUTER, *inner_settings()]


def leaves(content: dict[str, Any], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in content.items():
        if isinstance(value, dict) and value:
            found |= leaves(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def test_what_takes_effect_without_a_restart_is_documented() -> None:
    paths = {setting.path for setting in OUTER}
    text = section(page("settings.md"), "Taking effect")
    named = set(words(text))
    groups = {path.partition(".")[0] for path in paths}
    assert named <= paths | groups
    whole = {name for name in named if "." not in name and name not in ("limits", "timeouts")}
    excepted = {"limits.decisions", "limits.strict_descriptors", "timeouts.drain"}
    live = {path for path in paths if path.partition(".")[0] in whole | {"limits", "timeouts"} or path in named}
    assert {path for path in paths if takes_effect(path)} == live - excepted


def test_the_settings_file_has_every_setting_with_its_default() -> None:
    written = leaves(yaml.safe_load(SETTINGS_FILE.read_text()))
    assert written == {setting.path: setting.default for setting in OUTER}


def test_the_settings_file_changes_nothing() -> None:
    assert load(SETTINGS_FILE).model_dump() == Settings().model_dump()


def examples() -> dict[str, Any]:
    """What the settings file shows in comments: blocks that begin with a top-level key."""
    content: dict[str, Any] = {}
    for block in re.findall(r"^# \w+:\n(?:# .*\n)+", SETTINGS_FILE.read_text(), re.MULTILINE):
        content |= yaml.safe_load(re.sub(r"^# ", "", block, flags=re.MULTILINE))
    return content


def test_the_settings_file_shows_lists_and_tables_by_example(tmp_path: Path) -> None:
    content = examples()
    file = tmp_path / "examples.yaml"
    file.write_text(yaml.safe_dump(content))
    settings = load(file)
    assert [worker.url for worker in settings.workers] == ["http://gpu1:8000", "https://gpu2.example:8000"]
    written = content["workers"][1]
    assert set(written) == set(WorkerSettings.model_fields)
    (model,) = content["models"].values()
    assert set(model) == set(ModelSettings.model_fields)
    assert set(model["cache"]) == set(CacheSettings.model_fields)
    assert next(iter(settings.models.values())) == ModelSettings()


def test_the_list_of_inner_groups_is_complete() -> None:
    groups = {model for model in Group.__subclasses__() if model.__module__.startswith("router.settings")}
    outer = {type(field.default) for field in Settings.model_fields.values() if isinstance(field.default, Group)}
    assert groups - outer == set(INNER.values())


def test_every_setting_is_documented_with_its_default() -> None:
    written = {words(cells[0])[0]: cells[1] for cells in rows(page("settings.md")) if words(cells[0])}
    assert written == {setting.path: setting.written for setting in ALL_SETTINGS}


@pytest.mark.parametrize("name", [*POLICIES, *get_args(ModelSettings.model_fields["reuse"].annotation)])
def test_every_choice_is_named_in_the_settings_file(name: str) -> None:
    assert re.search(rf"\b{name}\b", SETTINGS_FILE.read_text())


# -- metrics ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def router() -> Router:
    return Router(Settings())


def test_every_metric_is_documented_with_its_kind_and_labels(router: Router) -> None:
    kinds = {family.name: family.type for family in router.metrics.collect()}
    real = {part.name: (kinds[part.name.removesuffix("_total")], part.labels) for part in router.metrics._parts}
    written = {
        words(cells[0])[0]: (cells[1], tuple(words(cells[2])))
        for cells in rows(page("metrics.md"))
        if cells[0].startswith("`router_")
    }
    assert written == real
    assert set(written) == router.metrics.names()


@pytest.mark.parametrize(
    ("metric", "values"),
    [
        ("router_worker_state", {state.value for state in State}),
        ("router_upstream_errors_total", {outcome.value for outcome in Outcome} - {"answered"} | {"midstream"}),
        ("router_index_evictions_total", set(get_args(EvictionCause))),
        ("router_config_reloads_total", set(RELOADS)),
        ("router_sync_dropped_total", set(DROP_CAUSES)),
        ("router_sync_messages_total", {"in", "out", *KINDS}),
        ("router_shed_total", {kind.code for kind in SHED}),
    ],
)
def test_the_values_of_labels_are_documented(metric: str, values: set[str]) -> None:
    cells = next(cells for cells in rows(page("metrics.md")) if cells[0] == f"`{metric}`")
    assert set(words(cells[3])) == values


# -- reasons and errors ----------------------------------------------------------------------------------------


def test_every_reason_is_documented() -> None:
    text = section(page("how-it-decides.md"), "Reasons")
    assert sorted(words(cells[0])[0] for cells in rows(text)) == sorted(reason.value for reason in Reason)
    assert {CACHE_DISABLED, BELOW_BLOCK_FLOOR} <= {reason.value for reason in Reason}


def subclasses(kind: type[errors.RouterError]) -> Iterator[type[errors.RouterError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from subclasses(child)


def test_every_error_is_documented_with_its_status() -> None:
    real = {
        (str(kind.status), kind.code) for kind in subclasses(errors.RouterError) if kind.__module__ == "router.errors"
    }
    text = section(page("reference.md"), "Errors")
    assert {(cells[0], words(cells[1])[0]) for cells in rows(text)} == real


def test_what_nginx_says_is_documented() -> None:
    codes = set(re.findall(r'"code":"(\w+)"', (ROOT / "config" / "nginx" / "nginx.conf").read_text()))
    documented = set(words(section(page("reference.md"), "Errors")))
    assert codes
    assert codes <= documented


# -- routes and commands ---------------------------------------------------------------------------------------


def documented_routes(title: str) -> set[tuple[str, str]]:
    """(verb, path) of the first column of a section's table; a path without a verb has the one before it."""
    found = set()
    for cells in rows(section(page("reference.md"), title)):
        verb = ""
        for word in words(cells[0]):
            *verbs, path = word.split()
            verb = verbs[0] if verbs else verb
            found.add((verb, path))
    return found


def test_every_inference_route_is_documented() -> None:
    stored = {("GET", "/v1/responses/{id}"), ("POST", "/v1/responses/{id}/cancel")}
    real = {(route.method, route.path) for route in ROUTES.values()} | stored | {("GET", "/v1/models")}
    assert documented_routes("For clients") == real


def control_routes(router: Router) -> set[tuple[str, str]]:
    control = router.app.control
    app = getattr(control, "_app", None)
    assert isinstance(app, FastAPI), f"{create_control.__name__} wraps something else now"
    return {
        (method, route.path)
        for route in app.routes
        if isinstance(route, APIRoute)
        for method in (route.methods or set()) - {"HEAD"}
    }


def test_every_control_route_is_documented(router: Router) -> None:
    assert documented_routes("For operators") == control_routes(router) - {("GET", "/v1/models")}


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {
        name
        for action in parser._actions
        for name in action.option_strings
        if name.startswith("--") and name != "--help"
    }


def parsers() -> dict[str, argparse.ArgumentParser]:
    main = command_line._parser()
    commands = next(action for action in main._actions if isinstance(action, argparse._SubParsersAction))
    return {
        **commands.choices,
        "demo": demo._parser(),
        "doctor": doctor.parser(),
        "fit": report._parser(),
        "replay": command._parser(),
        "top": top.parser(),
        "explain": explain.parser(),
    }


@pytest.mark.parametrize("command", sorted(parsers()))
def test_every_command_and_flag_is_documented(command: str) -> None:
    text = section(page("reference.md"), f"`{command}`")
    if command == "check-config":
        text += section(page("reference.md"), "`serve`")  # it takes the same
    written = {word.split()[0] for cells in rows(text) for word in words(cells[0])}
    assert written == options(parsers()[command])


def test_every_alert_leads_to_its_own_heading_with_something_to_do() -> None:
    rules = yaml.safe_load((ROOT / "config" / "alerts.yml").read_text())["groups"][0]["rules"]
    alarms = section(page("operate.md"), "Alarms")
    explained = re.findall(r"^### (\w+)$", alarms, re.MULTILINE)
    assert sorted(explained) == sorted(rule["alert"] for rule in rules)
    for rule in rules:
        file, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert anchor == rule["alert"].lower()
        assert anchor in anchors((ROOT / file).read_text())
        assert len(section(alarms, rule["alert"]).split()) > 10


# -- figures ---------------------------------------------------------------------------------------------------

FIGURES = [
    (
        "how-it-decides.md",
        f"The first {DENSE_BYTES // 1024} KB of these bytes are cut into {DENSE_BLOCKS} blocks of {BLOCK_BYTES}.",
    ),
    ("how-it-decides.md", f"good for {Settings().affinity.tentative_seconds:.0f} seconds"),
    ("scale.md", f"| hashes of one request | {len(boundaries(1 << 30))}, "),
    ("scale.md", f"| {MAX_MESSAGE // 1024} KiB each; up to {MAX_DELTAS} deltas and {MAX_ROWS} workers in one |"),
    ("scale.md", f"| replicas heard at one time | {MAX_PEERS} |"),
    ("scale.md", f"| blocks remembered | {Settings().affinity.max_blocks:,} over all workers |"),
    ("scale.md", f"| label combinations of a metric | {MAX_SERIES:,} |"),
    ("metrics.md", f"at most {MAX_SERIES:,} combinations"),
]


@pytest.mark.parametrize(("name", "text"), FIGURES)
def test_a_figure_is_that_of_the_code(name: str, text: str) -> None:
    assert text in " ".join(page(name).split())


def test_the_slack_table_is_that_of_the_code() -> None:
    policy = Settings().policy
    table = [[f"below {limit:,}", str(slack)] for limit, slack in policy.slack]
    assert list(rows(section(page("how-it-decides.md"), "Counted in requests"))) == [
        *table,
        ["more", str(policy.slack_above)],
    ]
