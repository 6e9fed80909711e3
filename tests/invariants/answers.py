"""The invariants of an answer, as its client sees it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any

import httpx

from tests.invariants import require
from tests.invariants.replicas import CANARIES

_MODELS = re.compile(rb'"model": ?"([^"]*)"')
ERROR_KEYS = {"message", "type", "param", "code"}


def check_answer(answer: httpx.Response, secrets: Collection[str]) -> None:
    """An answer that was read to its end, which a broken one cannot be."""
    require(5, _unfinished(answer))
    require(6, _of_another(answer))
    require(9, _wrong_words(answer, secrets))


def _unfinished(answer: httpx.Response) -> Iterator[str]:
    kind = answer.headers.get("content-type", "")
    if answer.status_code == 200 and kind.startswith("text/event-stream") and "chat/completions" in str(answer.url):
        last = answer.content.rstrip().rpartition(b"\n")[2]
        if last != b"data: [DONE]" and b'"error"' not in last:
            yield f"a stream ends with {last[-100:]!r}"


def _of_another(answer: httpx.Response) -> Iterator[str]:
    name = _json(answer).get("id")
    # A worker makes the answer's id of the request's.
    if answer.status_code == 200 and isinstance(name, str) and name.partition("-")[0] in ("chatcmpl", "cmpl"):
        asked = answer.headers.get("x-request-id")
        if not name.partition("-")[2].startswith(asked or "?"):
            yield f"the answer {name} to the request {asked}"


def _wrong_words(answer: httpx.Response, secrets: Collection[str]) -> Iterator[str]:
    whole = answer.text + str(answer.headers)
    # The name of a model that nobody knows is said to whoever asked for it.
    own = b"".join(_MODELS.findall(answer.request.content)).decode(errors="replace")
    kept = [secret for secret in (*secrets, *CANARIES) if secret not in own]
    yield from (f"{secret!r} is in the answer" for secret in kept if secret in whole)
    error = _json(answer).get("error")
    if answer.status_code < 400 or not isinstance(error, dict) or not isinstance(error.get("code"), str):
        return  # a worker's own
    if set(error) != ERROR_KEYS or not answer.headers.get("x-request-id"):
        yield f"an error without the API's form or an id: {answer.text[:200]}"


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = json.loads(answer.content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
