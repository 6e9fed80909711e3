"""Scripted faults: which request a rule hits, and what then happens instead of, or in the middle of, its answer."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

Kind = Literal["refuse", "stall", "reset", "close", "end", "stream_error", "raw", "status"]
Stage = Literal["connect", "head", "request"]
MAX_RULES = 1000


class Action(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """What happens.

    refuse: reset the connection and take no new ones for `seconds`. stall: send nothing for `seconds` (none: until the
    client leaves). reset, close: end the connection with RST or FIN. end: finish the framing early, as if complete.
    stream_error: the error event and [DONE] of a failing engine. All of these act at a place in the answer: `after` n
    of `unit`, and `extra` bytes further (bytes of the whole response, bytes of the body, or writes of a stream).
    raw: send exactly these bytes instead of an answer, `then` close, reset or keep. status: this answer instead.
    `delay` seconds pass before anything else, with nothing sent.
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
    then: Literal["close", "reset", "keep"] = "close"
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
    `header` is the value of x-sim-fault, `body` a part of the body. `at`: as the connection opens, once the head is
    read (the body is not), or once the request is complete.
    """

    action: Action
    path: str | None = None
    method: str | None = None
    header: str | None = None
    body: str | None = None
    at: Stage = "request"
    nth: int = 1
    times: int | None = 1
    seen: int = 0
    used: int = 0

    def matches(self, method: str, path: str, header: str | None, body: bytes) -> bool:
        if self.path is None:
            if method != "POST":
                return False
        elif self.path.endswith("*"):
            if not path.startswith(self.path[:-1]):
                return False
        elif path != self.path:
            return False
        if self.method is not None and method != self.method:
            return False
        if self.header is not None and header != self.header:
            return False
        return self.body is None or self.body.encode() in body


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

    def pick(self, at: Stage, method: str, path: str, header: str | None, body: bytes) -> Action | None:
        if at not in self._stages:
            return None
        for rule in self.rules:
            if rule.at != at or (rule.times is not None and rule.used >= rule.times):
                continue
            if at != "connect" and not rule.matches(method, path, header, body):
                continue
            rule.seen += 1
            if rule.seen < rule.nth:
                continue
            rule.used += 1
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
