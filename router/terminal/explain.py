"""The command line of `prefix-router explain`: what would become of a request, and why."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from router.flags import Parser
from router.terminal.ask import DEFAULT_URL, KEY_VARIABLE, Refused, Replica, Trouble
from router.terminal.style import Style
from router.terminal.words import lines

MAX_BYTES: Final = 64 << 20
_CHAT: Final = "/v1/chat/completions"
# The field that tells what kind of request a body is; anything else is a chat.
_ENDPOINTS: Final = {"prompt": "/v1/completions", "input": "/v1/responses"}


def main(argv: Sequence[str] | None = None) -> int:
    """Explain one request; 1 if it would be refused, 2 if it could not be asked."""
    arguments = parser().parse_args(argv)
    try:
        body = _read(arguments.file)
        replica = Replica(arguments.url, arguments.admin_key)
        fields = _fields_of(body)
        endpoint = arguments.endpoint or _endpoint_of(fields)
        said = replica.post("/router/explain", body, {"endpoint": endpoint})
    except Refused as refused:
        sys.stderr.write(f"prefix-router explain: the router would refuse it: {refused}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"prefix-router explain: {arguments.file}: {error.strerror}\n")
        return 2
    except Trouble as trouble:
        sys.stderr.write(f"prefix-router explain: {trouble}\n")
        return 2
    if arguments.json:
        sys.stdout.write(json.dumps(said, indent=2) + "\n")
    else:
        style = Style(colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ)
        sys.stdout.write("\n".join(lines(said, style)) + "\n")
    if endpoint == _CHAT and fields is not None and "messages" not in fields:
        sys.stderr.write("prefix-router explain: the body has no messages: a worker would refuse it\n")
        return 1
    return 1 if said.get("refusal") else 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = Parser(
        prog="prefix-router explain",
        description="What a replica would do with a request, and every worker's terms. Nothing is sent to any worker.",
    )
    add = made.add_argument
    add("file", metavar="FILE", help="the request's body, as JSON; - reads standard input")
    add("--url", default=DEFAULT_URL, help=f"the replica to ask (default {DEFAULT_URL})")
    add("--endpoint", metavar="PATH", help="where the body would be sent (default: by its fields)")
    add("--admin-key", metavar="KEY", help=f"where the replica has one (default: the variable {KEY_VARIABLE})")
    add("--json", action="store_true", help="print what the router says as it is")
    return made


def _read(name: str) -> bytes:
    if name == "-":
        body = sys.stdin.buffer.read(MAX_BYTES + 1)
    else:
        with open(name, "rb") as file:
            body = file.read(MAX_BYTES + 1)
    if len(body) > MAX_BYTES:
        raise Trouble(f"{name}: larger than any request may be")
    return body


def _fields_of(body: bytes) -> dict[str, Any] | None:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return None  # the router says what is wrong with it
    return fields if isinstance(fields, dict) else None


def _endpoint_of(fields: dict[str, Any] | None) -> str:
    if fields is not None and "messages" not in fields:
        for field, endpoint in _ENDPOINTS.items():
            if field in fields:
                return endpoint
    return _CHAT
