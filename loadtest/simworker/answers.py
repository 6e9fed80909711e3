"""Bodies that several routes share: errors, usage, text. Pure."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import msgspec
import xxhash

JsonObject = dict[str, Any]
ErrorForm = Literal["openai", "anthropic"]

_TYPES = {
    400: "BadRequestError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    422: "UnprocessableEntityError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "Service Unavailable",
}
_TEXT = """the worker keeps blocks of a prompt in memory and a later turn that begins with them is answered sooner
because only new tokens need their prefill while every other token has been seen before so nothing must be computed
twice when requests return to where they began"""
_WORDS = _TEXT.split()
# Every offset up to the number of words, and as much text again as most answers need.
_CYCLE = [f" {word}" for word in itertools.islice(itertools.cycle(_WORDS), 4096)]


class ApiError(Exception):
    """An answer the engine refuses with."""

    def __init__(self, status: int, message: str, *, param: str | None = None, kind: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.kind = kind or _TYPES.get(status, "InternalServerError")

    def body(self, form: ErrorForm = "openai") -> bytes:
        if form == "anthropic":
            shown: JsonObject = {"type": "error", "error": {"type": self.kind, "message": self.message}}
        else:
            error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
            shown = {"error": error}
        return msgspec.json.encode(shown)


def invalid_body(message: str, param: str | None = None) -> ApiError:
    """What body validation answers: 400, never 422, and in every route the OpenAI form."""
    return ApiError(400, message, param=param, kind="Bad Request")


def stream_error(path: str) -> tuple[bytes, ...]:
    """The last events of a stream whose engine fails under way; the responses route breaks off without any."""
    if path.startswith("/v1/responses"):
        return ()
    error = ApiError(500, "scripted failure")
    if path.startswith("/v1/messages"):
        return (b"event: error\ndata: " + error.body("anthropic") + b"\n\n",)
    return (b"data: " + error.body() + b"\n\n", b"data: [DONE]\n\n")


def pieces(count: int, seed: int, echo: str | None) -> list[str]:
    """`count` tokens of text, the same for the same seed; the first carries what is to be echoed."""
    if count <= 0:
        return []
    offset = seed % len(_WORDS)
    if offset + count <= len(_CYCLE):
        words = _CYCLE[offset : offset + count]
    else:
        words = list(itertools.islice(itertools.cycle(_CYCLE[: len(_WORDS)]), offset, offset + count))
    words[0] = echo if echo is not None else words[0][1:]
    return words


def seed_of(hashes: tuple[int, ...], tail: bytes) -> int:
    """A number that stands for the prompt."""
    return xxhash.xxh3_64_intdigest(tail, hashes[-1] if hashes else 0)


def usage(prompt: int, completion: int, details: JsonObject | None) -> JsonObject:
    """Usage of chat and completions; `details` are null when they are switched off."""
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": details,
    }


def event(body: object) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def named_event(body: JsonObject) -> bytes:
    """An event whose name is its body's type."""
    return f"event: {body['type']}\n".encode() + event(body)
