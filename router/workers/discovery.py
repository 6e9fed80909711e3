"""What a worker says about itself: its model list and its metrics, read from bytes that may be anything.

Both readers are bounded and never raise: what is missing, malformed or too large is unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from router.workers.registry import Model

MAX_BYTES: Final = 4 << 20
MAX_MODELS: Final = 1024
MAX_NAME: Final = 256
_MAX_TOKENS: Final = 1 << 40  # a larger window is no window
# One sample per engine and API process is expected; more than this is not vLLM.
_MAX_SAMPLES: Final = 4096
_MAX_LINE: Final = 64 << 10


# -- GET /v1/models --------------------------------------------------------------------------------------------


class _ModelList(msgspec.Struct):
    data: list[msgspec.Raw]


_decode_list = msgspec.json.Decoder(_ModelList).decode
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


def parse_models(body: bytes) -> dict[str, Model]:
    """The models of a `/v1/models` answer, cards byte for byte; empty if the answer is not understood."""
    if len(body) > MAX_BYTES:
        return {}
    try:
        cards = _decode_list(body).data
    except _UNREADABLE:
        return {}
    models: dict[str, Model] = {}
    for card in cards[:MAX_MODELS]:
        model = _model(bytes(card))  # a copy: Raw would keep the whole answer alive
        if model is not None:
            models.setdefault(model.name, model)
    return {name: _with_window(model, models) for name, model in models.items()}


def _model(card: bytes) -> Model | None:
    """One card, or None if clients could not use it: no name, or one that fits neither header nor label."""
    try:
        fields: object = msgspec.json.decode(card)
    except _UNREADABLE:
        return None
    if not isinstance(fields, dict):
        return None
    name, parent = fields.get("id"), fields.get("parent")
    if not (isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable()):
        return None
    if not isinstance(parent, str) or not parent or parent == name:
        parent = None
    return Model(name, card, _window(fields.get("max_model_len")), parent)


def _window(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MAX_TOKENS:
        return None
    return int(value)


def _with_window(model: Model, models: Mapping[str, Model]) -> Model:
    """An adapter's card carries no window: it has that of its base."""
    if model.window is not None or model.parent is None:
        return model
    base = models.get(model.parent)
    return model if base is None else replace(model, window=base.window)


# -- GET /metrics ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MetricsFacts:
    """The samples that routing needs, summed over engines; None is unknown."""

    started: float | None = None  # Unix time in seconds at which the process began
    cache_labels: Mapping[str, str] | None = None
    running: int | None = None
    waiting: int | None = None
    # Counters, in tokens since the process began.
    cache_queries: float | None = None
    cache_hits: float | None = None
    external_hits: float | None = None  # in a cache outside the GPU, behind a connector
    prompt_tokens: float | None = None
    asleep: bool = False


# What follows a metric's name: labels, then the value. Possessive, so that odd input costs no backtracking.
_SAMPLE = re.compile(rb'(?:[ \t]*+\{((?:[^"}]|"(?:[^"\\]|\\.)*+")*+)\}[ \t]*+|[ \t]++)([^\s{]\S*+)')
_LABEL = re.compile(rb'[\s,]*+([a-zA-Z_]\w*+)\s*+=\s*+"((?:[^"\\]|\\.)*+)"')
_ESCAPE = re.compile(rb'\\([\\n"])')


def parse_metrics(text: bytes | str) -> MetricsFacts:
    """The few samples needed from a metrics page of some 100 KB, without looking at the others."""
    page = text.encode(errors="replace") if isinstance(text, str) else text
    if len(page) > MAX_BYTES:
        return MetricsFacts()
    return MetricsFacts(
        started=max(_values(page, b"process_start_time_seconds") or [0.0]) or None,
        cache_labels=_cache_labels(page),
        running=_count(page, b"vllm:num_requests_running"),
        waiting=_count(page, b"vllm:num_requests_waiting"),
        cache_queries=_total(page, b"vllm:prefix_cache_queries_total"),
        cache_hits=_total(page, b"vllm:prefix_cache_hits_total"),
        external_hits=_total(page, b"vllm:external_prefix_cache_hits_total"),
        prompt_tokens=_total(page, b"vllm:prompt_tokens_total"),
        asleep=_asleep(page),
    )


def all_hits(facts: MetricsFacts) -> float | None:
    """Tokens found in any cache, as answers report them."""
    return None if facts.cache_hits is None else facts.cache_hits + (facts.external_hits or 0.0)


def _samples(page: bytes, name: bytes) -> Iterator[tuple[bytes, float]]:
    """Labels and value of each sample of one metric; the value of a malformed one is not a number."""
    end = 0  # of the line looked at last; each line is looked at once
    at = page.find(name)
    while at >= 0:
        start = page.rfind(b"\n", end, at) + 1
        end = page.find(b"\n", at)
        if end < 0:
            end = len(page)
        if not page[start:at].strip():
            after = page[at + len(name) : at + len(name) + 1]
            if after in (b"{", b" ", b"\t", b"\r", b"\n", b""):  # else the name of another metric goes on
                yield _sample(page, at + len(name), end)
        at = page.find(name, end)


def _sample(page: bytes, start: int, end: int) -> tuple[bytes, float]:
    match = _SAMPLE.match(page, start, end) if end - start <= _MAX_LINE else None
    if match is None:
        return b"", math.nan
    labels, digits = match.groups(b"")
    try:
        return labels, math.nan if b"_" in digits else float(digits)
    except ValueError:
        return labels, math.nan


def _values(page: bytes, name: bytes) -> list[float] | None:
    """The values of all samples; None if there are none, too many, or one is not a count."""
    values: list[float] = []
    for _, value in _samples(page, name):
        if len(values) >= _MAX_SAMPLES or not 0 <= value < math.inf:
            return None
        values.append(value)
    return values or None


def _total(page: bytes, name: bytes) -> float | None:
    values = _values(page, name)
    total = math.inf if values is None else sum(values)
    return total if total < math.inf else None


def _count(page: bytes, name: bytes) -> int | None:
    total = _total(page, name)
    return None if total is None or total > _MAX_TOKENS else int(total)


def _cache_labels(page: bytes) -> Mapping[str, str] | None:
    """The cache's configuration; every engine declares the same."""
    for labels, _ in _samples(page, b"vllm:cache_config_info"):
        return _labels(labels)
    return None


def _asleep(page: bytes) -> bool:
    """Whether an engine has put its weights away or stopped its scheduler."""
    for seen, (labels, value) in enumerate(_samples(page, b"vllm:engine_sleep_state")):
        if seen >= _MAX_SAMPLES:
            break
        state = _labels(labels).get("sleep_state")
        if (state == "awake" and value == 0) or (state in ("weights_offloaded", "discard_all") and value > 0):
            return True
    return False


def _labels(text: bytes) -> dict[str, str]:
    labels: dict[str, str] = {}
    at = 0
    while match := _LABEL.match(text, at):
        name, value = match.groups()
        if b"\\" in value:
            value = _ESCAPE.sub(lambda escape: b"\n" if escape[1] == b"n" else escape[1], value)
        labels[name.decode()] = value.decode(errors="replace")
        at = match.end()
    return labels
