"""What is fed with mutated inputs, and what must hold of it, whatever they are.

A target raises AssertionError for a broken promise; any other exception that gets out of it is a finding too.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from router.dataplane.sse import Tap
from router.dataplane.unasked import Unasked
from router.errors import BadRequest, SettingsError
from router.prompt.reader import Form, read_prompt
from router.prompt.salting import with_salt
from router.prompt.usage import with_usage
from router.settings.keys_file import read_keys_file
from router.settings.loading import load
from router.sync_codec import Refused, couple, encode, open_envelope, read, uncouple
from tests.core.upstream_corpus import bytewise, read_answer
from tests.fuzzing.framing import hold_conversation
from tests.fuzzing.mutate import pieces

CORPUS: Final = Path(__file__).resolve().parents[1] / "data" / "corpus"
FINGERPRINT: Final = "f" * 16
BOM: Final = b"\xef\xbb\xbf"
# Larger counts than any engine has are none: sums of them must stay numbers that can be shown.
MOST: Final = 1 << 53
# Shown by an error, it would be a secret that leaked.
CANARY: Final = "canary-key-1"

Target = Callable[[random.Random, bytes], None]


def corpus(name: str) -> dict[str, bytes]:
    """The files of a target, by name."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / name).iterdir())}


# -- bodies ------------------------------------------------------------------------------------------------


def bodies(rng: random.Random, data: bytes) -> None:
    """Every form reads it or refuses it, and sees in JSON what Python's own reader sees."""
    for form in Form:
        try:
            prompt = read_prompt(form, data, b"multipart/form-data; boundary=XX")
        except BadRequest:
            if form is Form.OTHER:
                assert _unreadable(data), "a body was refused that is JSON"
            continue
        assert prompt.size >= 0
        assert 0 <= prompt.max_tokens <= 1 << 40
        assert 1 <= prompt.choices <= 1 << 40
        if form is Form.MULTIPART:
            continue
        fields = _fields(data)
        if fields is None:
            continue
        model = fields.get("model")
        assert prompt.model == (model if isinstance(model, str) else ""), "another model"
        assert prompt.stream is (fields.get("stream") is True), "another wish for a stream"
        _add_salt(data, fields)
        asked = with_usage(prompt, data)
        if asked is not None:
            _only_differs(fields, asked, "stream_options")
            assert read_prompt(form, asked).wants_usage


def _add_salt(data: bytes, fields: dict[str, Any]) -> None:
    owns: list[str | None] = []

    def salt_for(own: str | None) -> str:
        owns.append(own)
        return "pepper"

    try:
        salted, _ = with_salt(data, salt_for)
    except BadRequest:
        assert "cache_salt" in fields or len(fields) > 900 or data.count(b":") > 1000
        return
    assert owns == [fields.get("cache_salt")]
    _only_differs(fields, salted, "cache_salt")
    assert json.loads(salted.removeprefix(BOM))["cache_salt"] == "pepper"


def _only_differs(fields: dict[str, Any], data: bytes, name: str) -> None:
    after = json.loads(data.removeprefix(BOM))
    # As text: NaN equals nothing.
    assert {key: repr(value) for key, value in after.items() if key != name} == {
        key: repr(value) for key, value in fields.items() if key != name
    }


def _fields(data: bytes) -> dict[str, Any] | None:
    """What json sees in it; None where json is the stricter one, as for text within values that is not UTF-8."""
    try:
        value = json.loads(data.removeprefix(BOM).decode())
    except (ValueError, RecursionError):
        return None
    assert isinstance(value, dict), "a body was read that is no object"
    return value


def _unreadable(data: bytes) -> bool:
    """Not an object of JSON as the standard has it, or one whose own fields have odd types."""
    try:
        value = json.loads(data.removeprefix(BOM).decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return True
    if not isinstance(value, dict) or not isinstance(value.get("model"), str | None):
        return True
    return b"\\u" in data or data.count(b"model") > 1 or data.count(b"[") + data.count(b"{") > 500


def _refuse(word: str) -> None:
    raise ValueError(word)


# -- streams -----------------------------------------------------------------------------------------------


def streams(rng: random.Random, data: bytes) -> None:
    """The tap sees the same however the bytes come, and counts that can be counted."""
    for events in (True, False):
        seen = _tapped(events, [data])
        ways = [pieces(rng, data)]
        if len(data) <= 2_000:
            ways.append(list(bytewise(data)))
        for way in ways:
            assert _tapped(events, way) == seen, "what is seen depends on the pieces"

    whole = _without_usage([data])
    assert _without_usage(pieces(rng, data)) == whole, "what a client gets depends on the pieces"
    cut = len(data) - len(whole)
    at = _common(data, whole)
    assert data[:at] + data[at + cut :] == whole, "more than one event is gone"


def _without_usage(parts: list[bytes]) -> bytes:
    unasked = Unasked()
    return b"".join([*(unasked.feed(part) for part in parts if part), unasked.end()])


def _common(one: bytes, other: bytes) -> int:
    """How many bytes they have in common at their beginning."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _tapped(events: bool, parts: list[bytes]) -> tuple[object, ...]:
    tap = Tap(events=events)
    for part in parts:
        if part:
            tap.feed(part)
    usage = tap.usage()
    if usage is not None:
        numbers = (usage.prompt_tokens, usage.cached_tokens or 0, usage.completion_tokens)
        assert all(0 <= number < MOST for number in numbers), "a count beyond all measure"
    name = tap.response_id()
    assert name is None or name.startswith("resp_")
    return tap.between_events, tap.finished, tap.only_comments, tap.failed_at_once, usage, name


# -- messages between replicas -----------------------------------------------------------------------------


def sync(rng: random.Random, data: bytes) -> None:
    """A message is refused, or says the same after it was written again."""
    try:
        messages = uncouple(data)
    except Refused:
        return
    if len(messages) > 1:
        assert couple(messages) == data
    for message in messages:
        try:
            envelope = open_envelope(message, FINGERPRINT)
            content = read(envelope)
        except Refused:
            continue
        again = open_envelope(encode(FINGERPRINT, envelope.sender, envelope.sequence, content), FINGERPRINT)
        assert (again.sender, again.sequence, again.kind) == (envelope.sender, envelope.sequence, envelope.kind)
        assert read(again) == content


# -- settings ----------------------------------------------------------------------------------------------


def settings(rng: random.Random, data: bytes) -> None:
    """Files of settings and of keys are taken, or refused by name and without their content."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        path = Path(place) / "file.yaml"
        path.write_bytes(data)
        for read_file, refusal in ((load, SettingsError), (read_keys_file, ValueError)):
            said = ""
            try:
                read_file(path)
            except refusal as error:
                said = str(error)
            # Names of settings are shown, and the canary can be one.
            lines = [line for line in said.splitlines() if "unknown setting" not in line and "stands twice" not in line]
            assert CANARY not in " ".join(lines), "the error shows a secret"


# -- answers of workers, requests of clients ---------------------------------------------------------------


def answers(rng: random.Random, data: bytes) -> None:
    """The same outcome however the bytes come, and whether or not whole chunks go past the engine."""
    parts = pieces(rng, data)
    whole = read_answer([data] if data else [])
    assert read_answer(parts) == whole, "the answer depends on the pieces"
    assert read_answer(parts, plain=True) == whole, "the answer depends on the way of its chunks"
    assert len(whole.body) <= len(data)


def requests(rng: random.Random, data: bytes) -> None:
    """The same requests however the bytes come; none has more than it was sent."""
    whole = hold_conversation([data])
    assert hold_conversation(pieces(rng, data)) == whole, "the requests depend on the pieces"
    assert sum(len(body) for _, _, body in whole) <= len(data)


TARGETS: Final[dict[str, Target]] = {
    "bodies": bodies,
    "streams": streams,
    "sync": sync,
    "settings": settings,
    "answers": answers,
    "requests": requests,
}
