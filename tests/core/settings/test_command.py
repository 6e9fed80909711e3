"""Settings as the command line takes them, and what it says of wrong ones."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from router.__main__ import main
from router.workers.registry import worker_id
from tests.core.settings.rig import problems


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["serve"], "no workers"),
        (["serve", "--worker", "http://a", "--worker", "http://a:80"], "--worker: listed twice: http://a:80"),
        (["serve", "--worker", "gpu1"], "--worker: a worker URL starts with http:// or https://"),
        (["serve", "--worker", "http://a", "--worker", "b"], "--worker (number 2): a worker URL starts with"),
        (["serve", "--port", "70000"], "--port: must be at most 65535"),
        (["serve", "--port", "http"], "--port: must be a whole number"),
        (["serve", "--processes", "two"], "--processes: must be a whole number"),
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
    shipped = str(Path(__file__).resolve().parents[3] / "config" / "router.yaml")
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
    assert capsys.readouterr().out.split()[:2] == ["prefix-router", version("prefix-router")]
