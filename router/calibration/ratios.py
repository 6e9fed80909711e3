"""How many tokens a byte of a model's prompts is worth."""

from __future__ import annotations

from collections import OrderedDict

# Tokens per byte of canonical prompt before anything was reported: English text in common tokenizers.
DEFAULT_RATIO = 0.25
# A report counts for this share of what was learned before, so that a ratio follows the traffic within ~50 requests.
KEEP = 0.98
MAX_MODELS = 1_000


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
