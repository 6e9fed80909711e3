"""Bodies and answers for tests of the simulated worker's routes."""

from __future__ import annotations

import json
from typing import Any

from loadtest.simworker import Adapter, SimConfig

TEXT = "the worker that has seen the beginning of a prompt answers its continuation much sooner than any other "
CONFIG = SimConfig(
    models=("base", "alias"),
    adapters=(Adapter("tuned", "base"),),
    time_scale=0.0,
    enable_prompt_tokens_details=True,
    dev_mode=True,
)


def chat(text: str = TEXT, **fields: Any) -> dict[str, object]:
    return {"model": "base", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}


def events(text: str) -> list[Any]:
    """The data of an event stream, in order; [DONE] as a string."""
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]
