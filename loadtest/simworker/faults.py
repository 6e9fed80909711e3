"""Scripted faults: which request a rule hits, and what then happens instead of, or in the middle of, its answer."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from loadtest.simworker.http import Request

Kind = Literal["refuse", "stall", "reset", "close", "end", "stream_error", "raw", "status"]
Stage = Literal["connect", "head", "request"]
MAX_RULES = 1000


class Action(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """What happens.

    refuse: reset the connection and take no new ones for `seconds`.

    These act at a place in the answer, `after` n of `unit` (bytes of the whole response, bytes of the body, or writes
    of a stream), and `extra` bytes further. stall: send nothing for `seconds` (none: until the client leaves). reset,
    close: end the connection with RST or FIN. end: finish the framing early, as if complete. stream_error: what a
    failing engine sends last.

    raw: send exactly these bytes, `then` close or reset, or keep the connection, or go on with the answer. status:
    this answer instead. `delay` seconds pass before anything else, with nothing sent.
    """

    kind: Kind
    seconds: float | None = None
    after: int = 0
    unit: Literal["response", "body", "event"] = "response"
    extra: int = 0
    status: int = 500
    headers: dict[str, str] = {}
    body: str | dict[str, Any] | None = None
    body_bytes: int = 0
    text: str = ""
    base64: str = ""
    then: Literal["close", "reset", "keep", "answer"] = "close"
    delay: float = 0.0

    def __post_init__(self) -> None:
        if self.after < 0 or self.extra < 0 or self.delay < 0 or (self.seconds is not None and self.seconds < 0):
            raise ValueError("after, extra, delay and seconds must not be negative")
        if not 200 <= self.status <= 599:
            raise ValueError("status must be a final one, 200 to 599")

    @property
    def cuts(self) -> bool:
        """It acts inside an answer that is otherwise made as usual."""
        return self.kind in ("stall", "reset", "close", "end", "stream_error")

    @property
    def raw_bytes(self) -> bytes:
        """The bytes of a raw answer: `base64`, or `text` as latin-1."""
        return base64.b64decode(self.base64) if self.base64 else self.text.encode("latin-1")

    @property
    def answer(self) -> bytes:
        """The body of a status answer; `body_bytes` asks for that much filler."""
        if self.body_bytes:
            return b"x" * self.body_bytes
        if self.body is None:
            error = {"message": "scripted", "type": "InternalServerError", "param": None, "code": self.status}
            return msgspec.json.encode({"error": error})
        return self.body.encode() if isinstance(self.body, str) else msgspec.json.encode(self.body)


class Rule(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An action for the matching requests from the `nth` on, `times` of them (none: for ever).

    `path` is exact, or a beginning when it ends in `*`; without one, POST requests match and probes do not.
    `header` is the value of x-sim-fault, `body` a part of the body, `ordinal` the request's place on its connection,
    from 1. `at`: as the connection opens, once the head is
    read (the body is not), or once the request is complete.
    """

    action: Action
    path: str | None = None
    method: str | None = None
    header: str | None = None
    body: str | None = None
    at: Stage = "request"
    ordinal: int | None = None
    nth: int = 1
    times: int | None = 1
    seen: int = 0
    used: int = 0

    def __post_init__(self) -> None:
        if self.at == "connect" and self.action.kind not in ("raw", "reset", "close", "stall"):
            raise ValueError("as a connection opens there can only be raw, reset, close or stall")

    def matches(self, request: Request, ordinal: int) -> bool:
        if not self._matches_path(request):
            return False
        if self.method is not None and request.method != self.method:
            return False
        if self.ordinal is not None and ordinal != self.ordinal:
            return False
        if self.header is not None and request.header(b"x-sim-fault") != self.header:
            return False
        return self.body is None or self.body.encode() in request.body

    def _matches_path(self, request: Request) -> bool:
        if self.path is None:
            return request.method == "POST"
        if self.path.endswith("*"):
            return request.path.startswith(self.path[:-1])
        return request.path == self.path

    def take(self) -> bool:
        """Count a match; True when it is this one's turn."""
        self.seen += 1
        if self.seen < self.nth:
            return False
        self.used += 1
        return True

    @property
    def spent(self) -> bool:
        return self.times is not None and self.used >= self.times


class FaultTable:
    """The rules of a worker, tried in order; the first that applies is used up by one."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self._stages: set[Stage] = set()

    def add(self, *rules: Rule | dict[str, Any]) -> None:
        """Append rules, given as objects or in their JSON form. Raises ValueError for a rule that makes no sense."""
        converted = [rule if isinstance(rule, Rule) else _convert(rule) for rule in rules]
        if len(self.rules) + len(converted) > MAX_RULES:
            raise ValueError(f"more than {MAX_RULES} rules")
        self._extend(converted)

    def clear(self) -> None:
        self.rules.clear()
        self._stages.clear()

    def pick(self, at: Stage, request: Request, ordinal: int) -> Action | None:
        if at not in self._stages:
            return None
        for rule in self.rules:
            if rule.at == at and not rule.spent and rule.matches(request, ordinal) and rule.take():
                return rule.action
        return None

    def pick_for_connection(self) -> Action | None:
        """The action for a connection that opens; nothing about requests is known yet."""
        if "connect" not in self._stages:
            return None
        for rule in self.rules:
            if rule.at == "connect" and not rule.spent and rule.take():
                return rule.action
        return None

    def _extend(self, rules: Iterable[Rule]) -> None:
        self.rules.extend(rules)
        self._stages = {rule.at for rule in self.rules}


def parse_rules(data: bytes) -> list[Rule]:
    """A JSON list of rules. Raises msgspec.ValidationError, a ValueError, when it is not one."""
    return msgspec.json.decode(data, type=list[Rule])


def parse_action(data: bytes) -> Action:
    """The JSON of one action, as the x-sim-fault header carries it."""
    return msgspec.json.decode(data, type=Action)


def _convert(rule: dict[str, Any]) -> Rule:
    return msgspec.convert(rule, type=Rule)
