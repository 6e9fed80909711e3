"""What the demo says before it starts anything that can't work."""

from __future__ import annotations

import importlib.util

import pytest

from loadtest import demo
from loadtest.fleet import free_port


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--worker", "gpu1:8000"], "argument --worker: a worker URL starts with http:// or https://"),
        (["--turns", "0"], "argument --turns: '0' is no whole number"),
    ],
)
def test_a_flag_that_will_not_do_is_named(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        demo.main(flags)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_worker_that_is_down_is_named_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PATIENCE_SECONDS", 0.1)
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(SystemExit, match=f"{url} does not answer"):
        demo.main(["--once", "--worker", url])


def test_a_missing_client_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"needs the openai client: pip install 'prefix-router\[demo\]'"):
        demo.main(["--once"])
