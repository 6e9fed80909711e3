"""Asking for the usage of a stream whose client did not, without writing the rest of its body anew. Pure."""

from __future__ import annotations

from router.errors import BadRequest
from router.prompt.fields import inserted, places_of
from router.prompt.reader import Form, Prompt

FIELD = "stream_options"
_ASKED = b'{"include_usage":true}'


def with_usage(prompt: Prompt, body: bytes) -> bytes | None:
    """The body with a wish for usage; None where there is nothing to wish for, or the client has said what it wants.

    Options that are null count as none. Only chat and completions have such a wish; the others report usage always.
    """
    if not prompt.stream or prompt.wants_usage or prompt.form not in (Form.CHAT, Form.COMPLETIONS):
        return None
    try:
        places = places_of(body, FIELD)
    except BadRequest:
        return None  # odd, and the worker's to judge: usage is not worth a refusal
    if not places:
        return inserted(body, FIELD, _ASKED)
    if any(body[start:end] != b"null" for start, end in places):
        return None
    pieces = []
    at = 0
    for start, end in places:
        pieces += [body[at:start], _ASKED]
        at = end
    return b"".join([*pieces, body[at:]])
