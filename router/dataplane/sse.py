"""The tap on an answer: it looks at bytes that pass and never changes or delays them.

It wants three things: the usage that the engine reports, an answer's id where the engine stores answers, and whether
a stream stands between two events, which is the only place where an error event can be added.
"""

from __future__ import annotations

import json
import re
from collections import deque
from typing import Any

from router.calibration import Usage

# Usage stands at the very end of every form's answer; this much of the end is kept.
TAIL_BYTES = 16 * 1024
HEAD_BYTES = 2 * 1024
# Of what looks like usage so much is read; an answer has one or two, and an attempt costs as much as its text is long.
MOST_ATTEMPTS = 16
# No engine counts as far. What is larger could not be added to a metric, nor shown.
MOST_TOKENS = 1 << 40
_USAGE = b'"usage":'
# The form in which vLLM writes it for chat and completions; any other is read as JSON.
_PLAIN_USAGE = re.compile(
    rb'"usage":\{"prompt_tokens":(0|[1-9]\d{0,11}),"total_tokens":\d{1,12},"completion_tokens":(0|[1-9]\d{0,11})'
    rb'(?:,"prompt_tokens_details":(?:null|\{"cached_tokens":(0|[1-9]\d{0,11})\}))?\}'
)
_COMMENTS = re.compile(rb"(?:(?::[^\r\n]*)?[\r\n])*(?::[^\r\n]*)?")
_ERRORS = (b'data: {"error"', b'data:{"error"', b"event: error", b"event:error")
_DONE = (b"data: [DONE]", b"data:[DONE]")
_LAST_EVENTS = frozenset({b"message_stop", b"response.completed", b"response.incomplete", b"response.failed"})
_decoder = json.JSONDecoder()


class Tap:
    """Feed it each chunk; ask it once the answer has ended."""

    __slots__ = ("_kept", "_tail", "events", "head")

    def __init__(self, *, events: bool) -> None:
        self.events = events
        self.head = b""
        self._tail: deque[bytes] = deque()
        self._kept = 0

    def feed(self, chunk: bytes) -> None:
        """Look at the next bytes of the answer."""
        if len(self.head) < HEAD_BYTES:
            self.head += chunk[: HEAD_BYTES - len(self.head)]
        tail = self._tail
        tail.append(chunk)
        self._kept += len(chunk)
        while self._kept - len(tail[0]) >= TAIL_BYTES:
            self._kept -= len(tail.popleft())

    def tail(self) -> bytes:
        """The last bytes seen."""
        return b"".join(self._tail)[-TAIL_BYTES:]

    @property
    def between_events(self) -> bool:
        """A stream of events has just ended one, so that another may follow."""
        if not self._tail:
            return True
        end = self._tail[-1][-4:]
        if len(end) < 4:
            end = self.tail()[-4:]
        return end.replace(b"\r\n", b"\n").replace(b"\r", b"\n").endswith(b"\n\n")

    @property
    def finished(self) -> bool:
        """The stream has said its last event, after which clients hang up without waiting for the transfer's end."""
        if not self.events or not self.between_events:
            return False
        tail = self.tail().rstrip()
        if tail.endswith(_DONE):
            return True
        at = tail.rfind(b"event:")
        return at >= 0 and tail[at + 6 : at + 40].split(b"\n", 1)[0].strip() in _LAST_EVENTS

    @property
    def only_comments(self) -> bool:
        """So far nothing but keep-alive comments, which say that the worker is there and nothing of its answer."""
        return self.events and len(self.head) < HEAD_BYTES and not self._first_event()

    @property
    def failed_at_once(self) -> bool:
        """The answer's first event, under status 200, is an error."""
        return self.events and self._first_event().startswith(_ERRORS)

    def _first_event(self) -> bytes:
        """What is known of the answer's beginning without the comments before it."""
        head = self.head
        if not head.startswith((b":", b"\n", b"\r")):
            return head
        comments = _COMMENTS.match(head)
        return head[comments.end() :] if comments else head

    def usage(self) -> Usage | None:
        """The last usage in the answer, in whatever form it was reported."""
        tail = self.tail()
        at = len(tail)
        plain = _PLAIN_USAGE.match(tail, tail.rfind(_USAGE))
        if plain is not None:
            prompt, completion, cached = plain.groups()
            return Usage(int(prompt), None if cached is None else int(cached), int(completion))
        for _ in range(MOST_ATTEMPTS):
            at = tail.rfind(_USAGE, 0, at)
            if at < 0:
                break
            found = _object_at(tail, at + len(_USAGE))
            if found is not None:
                return _read_usage(found, self.head)
        return None

    def response_id(self) -> str | None:
        """The id of a stored response, as the responses form names it."""
        at = self.head.find(b'"id":')
        if at < 0:
            return None
        text = self.head[at + 5 : at + 300].decode("utf-8", "replace").lstrip()
        try:
            value, _ = _decoder.raw_decode(text)
        except ValueError:
            return None
        return value if isinstance(value, str) and value.startswith("resp_") else None


def _object_at(data: bytes, start: int) -> dict[str, Any] | None:
    text = data[start : start + 4096].decode("utf-8", "replace").lstrip()
    try:
        value, _ = _decoder.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _read_usage(usage: dict[str, Any], head: bytes) -> Usage | None:
    if "prompt_tokens" in usage:
        prompt = _count(usage["prompt_tokens"])
        details = usage.get("prompt_tokens_details")
        output = _count(usage.get("completion_tokens"))
    else:
        return _read_input_usage(usage, head)
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return Usage(prompt, cached, output or 0) if prompt is not None else None


def _read_input_usage(usage: dict[str, Any], head: bytes) -> Usage | None:
    """Responses count cached tokens within input tokens; messages count them apart and may split the two by events."""
    details = usage.get("input_tokens_details")
    prompt = _count(usage.get("input_tokens"))
    output = _count(usage.get("output_tokens")) or 0
    if isinstance(details, dict):
        return Usage(prompt, _count(details.get("cached_tokens")), output) if prompt is not None else None
    cached = _count(usage.get("cache_read_input_tokens"))
    if not prompt:
        at = head.find(b'"input_tokens":')
        prompt = _leading_number(head[at + 15 : at + 40]) if at >= 0 else None
    if prompt is None:
        return None
    created = _count(usage.get("cache_creation_input_tokens")) or 0
    return Usage(prompt + (cached or 0) + created, cached, output)


def _leading_number(data: bytes) -> int | None:
    digits = data.lstrip()
    end = 0
    while end < len(digits) and digits[end : end + 1].isdigit():
        end += 1
    return _count(int(digits[:end])) if end else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS else None
