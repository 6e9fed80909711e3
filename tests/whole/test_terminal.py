"""`top` and `explain` as somebody at a terminal would use them, on real replicas."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from loadtest.fleet import ROUTER, free_port, until
from router.terminal.ask import KEY_VARIABLE
from tests.whole.rig import ADMIN_KEY, Rig, RigBuilder, chat_body, group, text_of

ROOT = Path(__file__).resolve().parents[2]
MODEL = "onstage"
TEXT = text_of("somebody wants to know why", 8_000)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with ExitStack() as stack:
        made = RigBuilder(tmp_path_factory.mktemp("terminal"), stack)(group(MODEL, 2))
        for _ in range(3):
            made.chat(TEXT, model=MODEL)
        yield made


def decisions(rig: Rig) -> int:
    """How many have fallen so far."""
    reasons: dict[str, int] = rig.control("/router/state")["totals"]["reasons"]
    return sum(reasons.values())


def run(*words: str, key: str | None = ADMIN_KEY, given: str = "") -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ROUTER_")}
    return subprocess.run(
        [*ROUTER, *words],
        cwd=ROOT,
        env={**inherited, **({KEY_VARIABLE: key} if key else {})},
        input=given,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_the_fleet_once(rig: Rig) -> None:
    made = run("top", "--once", "--url", rig.front, "--url", f"http://127.0.0.1:{free_port()}")
    assert made.returncode == 0
    assert f"{rig.front}  ready  policy work  alone" in made.stdout
    assert "no router there (Connection refused)" in made.stdout
    assert f"{decisions(rig)} decisions: hit " in made.stdout
    for worker in rig.control("/router/workers")["workers"]:
        assert f"{worker['id']}  ready" in made.stdout
    assert "\x1b" not in made.stdout


def test_without_the_key_the_fleet_is_shown_and_a_hint(rig: Rig) -> None:
    made = run("top", "--once", "--url", rig.front, key=None)
    assert made.returncode == 0
    assert "needs the admin key" in made.stdout
    assert f"decisions ({decisions(rig)} so far) are not" in made.stdout
    assert made.stdout.count(MODEL) == 2


def test_nobody_there_is_an_exit_code_and_a_sentence() -> None:
    made = run("top", "--once", "--url", f"http://127.0.0.1:{free_port()}")
    assert made.returncode == 2
    assert "no router there" in made.stdout
    assert "Traceback" not in made.stderr


def test_a_request_is_explained_from_a_file_and_from_standard_input(rig: Rig, tmp_path: Path) -> None:
    body = json.dumps(chat_body(TEXT, model=MODEL))
    file = tmp_path / "request.json"
    file.write_text(body)
    for words, given in (([str(file)], ""), (["-"], body)):
        made = run("explain", *words, "--url", rig.front, given=given)
        assert made.returncode == 0, made.stderr
        chosen = rig.explain(json.loads(body))["chosen"]
        assert f"{chosen} would be chosen: hit." in made.stdout
        assert "It has the least to compute:" in made.stdout
    raw = run("explain", str(file), "--url", rig.front, "--json")
    assert json.loads(raw.stdout)["chosen"] == chosen


def test_the_endpoint_is_known_by_the_body(rig: Rig) -> None:
    for body, endpoint in (({"prompt": TEXT}, "/v1/completions"), ({"input": TEXT}, "/v1/responses")):
        made = run("explain", "-", "--url", rig.front, given=json.dumps({"model": MODEL, **body}))
        assert made.stdout.startswith(f"{endpoint}, model {MODEL}")


@pytest.mark.parametrize(
    ("given", "key", "code", "reason"),
    [
        ("{", ADMIN_KEY, 1, "400 bad_request"),
        ('{"model": "nobody", "messages": []}', ADMIN_KEY, 1, "404 model_not_found"),
        (json.dumps({"model": MODEL}), ADMIN_KEY, 1, "the body has no messages"),
        ("{}", "wrong", 2, "the admin key is not the right one"),
        ("{}", None, 2, "needs the admin key"),
    ],
)
def test_what_can_not_be_explained_is_said_in_a_line(
    rig: Rig, given: str, key: str | None, code: int, reason: str
) -> None:
    made = run("explain", "-", "--url", rig.front, key=key, given=given)
    assert made.returncode == code
    assert reason in made.stderr
    assert made.stderr.count("\n") == 1


def test_a_worker_is_no_router(rig: Rig) -> None:
    made = run("explain", "-", "--url", rig.workers[0].url, given="{}")
    assert made.returncode == 2
    assert "no prefix-router" in made.stderr


def test_a_live_terminal_follows_and_is_left_as_it_was(rig: Rig) -> None:
    master, slave = pty.openpty()
    environment = {**os.environ, KEY_VARIABLE: ADMIN_KEY, "TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
    words = [*ROUTER, "top", "--interval", "0.1", "--url", rig.front]
    process = subprocess.Popen(words, cwd=ROOT, env=environment, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    try:
        shown = read(master, b"decisions: ")
        assert b"\x1b[?1049h" in shown
        assert b"\x1b[32mready" in shown
        rig.chat("a new one " * 100, model=MODEL)
        read(master, f"{decisions(rig)} decisions: ".encode())
        process.send_signal(signal.SIGINT)
        rest = read(master, b"\x1b[?1049l")
        assert rest.endswith(b"\x1b[?25h\x1b[?1049l")
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)


def read(terminal: int, wanted: bytes) -> bytes:
    """What a terminal shows until something is there."""
    shown = b""
    for _ in until(20, f"{wanted!r} on the terminal"):
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                shown += os.read(terminal, 65_536)
            except OSError:  # the other side has gone
                break
        if wanted in shown:
            break
    assert wanted in shown
    return shown
