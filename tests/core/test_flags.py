"""What the command line says to those who are nearly right."""

from __future__ import annotations

import pytest

from router.__main__ import main

URL = "http://a:1"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--workers", URL], "prefix-router serve: error: there is no --workers (did you mean --worker?)"),
        (["serve", "--workers", URL, "http://b:1"], "serve: error: there is no --workers (did you mean --worker?)"),
        (["serve", "--workers=x"], "there is no --workers (did you mean --worker?)"),
        (["serve", "--upstream", URL], "there is no --upstream (did you mean --worker?)"),
        (["serve", "--redis-url", "redis://a"], "there is no --redis-url (did you mean --redis?)"),
        (["serve", "-c", "file.yaml"], "there is no -c (did you mean --config?)"),
        (["serve", "-x"], "there is no -x"),
        (["serve", URL], f"{URL} stands alone: each address needs a flag, --worker {URL}"),
        (["check-config", "--worker", URL, "http://b"], "http://b stands alone: each address needs a flag, --worker"),
        (["serve", "file.yaml"], "serve: error: too much: file.yaml"),
        (["doctor", "--workers", URL], "doctor: error: there is no --workers (did you mean --worker?)"),
        (["top", "--worker", URL], "top: error: there is no --worker (did you mean --url?)"),
        (["explain", "body.json", URL], f"{URL} stands alone: each address needs a flag, --url {URL}"),
        (["replay", "--traces", "x"], "replay: error: there is no --traces (did you mean --trace?)"),
        (["fit", "--model-config", "x", "--tensor-parallel", "2"], "fit: error: there is no --tensor-parallel"),
        (["srve"], "prefix-router: error: there is no command srve (did you mean serve?)"),
        (["run"], "there is no command run: serve, check-config, demo, "),
        (["--worker", URL], "there is no command before --worker"),
        (["--worker", URL, "serve"], "the command comes first: serve --worker …"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_the_right_flag_is_named(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    usage, *_, last = err.splitlines()
    assert usage.startswith("usage: prefix-router")
    assert said in last
    assert last.endswith("?)") == ("(did you mean" in said)
