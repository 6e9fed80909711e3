"""What every program shares: where the router is, the conversation, and a line for each thing that was tried."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

URL = os.environ.get("CLIENT_URL", "http://127.0.0.1:8080")
MODEL = os.environ.get("CLIENT_MODEL", "sim-model")
KEY = os.environ.get("CLIENT_KEY", "none")
TURNS = 5
# Longer than a few blocks of any cache, and another one for each program.
OPENING = f"A conversation held by {os.path.basename(sys.argv[0])}. " + "It goes on for a while before it asks. " * 120


def question(turn: int) -> str:
    """What the user says in a turn."""
    return OPENING if turn == 0 else f"And what then, after {turn} answers? " + "Tell me more about it. " * 12


def check(name: str, work: Callable[[], object]) -> None:
    """Try one thing and say what was seen; a failure is said too, and the next thing tried."""
    try:
        said = {"check": name, "ok": True, "seen": str(work())}
    except Exception as error:
        said = {"check": name, "ok": False, "seen": f"{type(error).__name__}: {error}"[:500]}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def refusal(work: Callable[[], object], kind: type[Exception]) -> str:
    """The name of the class that a refused request raises, which has to be this one."""
    try:
        work()
    except kind as error:
        return type(error).__name__
    raise AssertionError("nothing was raised")
