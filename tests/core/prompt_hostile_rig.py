"""Bodies of every form for tests, read as they are, or refused."""

from __future__ import annotations

import json
import time
from typing import Any

from hypothesis import settings

from router.errors import BadRequest
from router.hashing import HORIZON_BYTES
from router.prompt import Form, Prompt, read_prompt

JSON_FORMS = [form for form in Form if form is not Form.MULTIPART]
PROMPT_FORMS = [Form.CHAT, Form.COMPLETIONS, Form.RESPONSES, Form.MESSAGES]
fuzz = settings(max_examples=80)
BOUNDARY = b"multipart/form-data; boundary=XX"


def read(form: Form, body: Any) -> Prompt:
    return read_prompt(form, body if isinstance(body, bytes) else json.dumps(body).encode())


def read_any(form: Form, body: bytes) -> Prompt | None:
    """The prompt, or nothing for a body that was refused; anything else is a failure of the test."""
    try:
        prompt = read_prompt(form, body, BOUNDARY)
    except BadRequest:
        return None
    assert len(prompt.prefix) <= min(HORIZON_BYTES, prompt.size)
    assert prompt.max_tokens >= 0
    assert prompt.tokens is None or prompt.tokens >= 0
    return prompt


def seconds(form: Form, body: bytes) -> float:
    start = time.process_time()
    read_any(form, body)
    return time.process_time() - start
