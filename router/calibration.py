"""Predicted against reported: how many tokens a byte is worth, and whether predicted hits came true."""

from __future__ import annotations

import enum
from collections import OrderedDict
from dataclasses import dataclass

# Tokens per byte of canonical prompt before anything was reported: English text in common tokenizers.
DEFAULT_RATIO = 0.25
# A report counts for this share of what was learned before, so that a ratio follows the traffic within ~50 requests.
KEEP = 0.98
MAX_MODELS = 1_000
# Estimates are this far off before a difference says anything about the cache, as a share of the prompt.
TOLERANCE = 0.03


@dataclass(slots=True)
class Usage:
    """What an answer reported: prompt tokens, and how many of them came from the cache (None: not reported)."""

    prompt_tokens: int
    cached_tokens: int | None = None
    completion_tokens: int = 0


class Verdict(enum.StrEnum):
    """Whether a predicted hit came true."""

    CONFIRMED = "confirmed"
    FELL_SHORT = "fell_short"
    BETTER = "better"
    UNKNOWN = "unknown"


class TokenRatios:
    """Tokens per byte of prompt, learned per model from reported usage; a model is any served name."""

    def __init__(self) -> None:
        self._sums: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def ratio(self, model: str) -> float:
        """Tokens per byte."""
        sums = self._sums.get(model)
        return sums[0] / sums[1] if sums else DEFAULT_RATIO

    def learn(self, model: str, size: int, tokens: int) -> None:
        """A prompt of `size` canonical bytes had this many tokens."""
        if size <= 0 or tokens <= 0:
            return
        before_tokens, before_bytes = self._sums.get(model, (0.0, 0.0))
        self._sums[model] = (before_tokens * KEEP + tokens, before_bytes * KEEP + size)
        if len(self._sums) > MAX_MODELS:
            self._sums.popitem(last=False)


def judge(predicted: int, usage: Usage | None, unit: int, *, at_least: bool = False) -> Verdict:
    """Compare predicted with reported cached tokens; less than a unit or the tolerance is noise.

    `unit` is the coarser of the engine's and the map's steps in tokens. With `at_least` the prediction is a lower
    bound, since the map does not look beyond its horizon.
    """
    if usage is None or usage.cached_tokens is None:
        return Verdict.UNKNOWN
    allowed = max(unit, int(TOLERANCE * usage.prompt_tokens))
    difference = usage.cached_tokens - predicted
    if difference < -allowed:
        return Verdict.FELL_SHORT
    if difference > allowed and not at_least:
        return Verdict.BETTER
    return Verdict.CONFIRMED
