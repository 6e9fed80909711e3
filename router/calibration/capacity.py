"""How much a worker's cache really holds: from what it declares, corrected by what came true."""

from __future__ import annotations

# Of the formula measured in simulation: capacity = min(capacity, shadow) * (1 + RATE * relative error).
RATE = 0.2
# A confirmed hit of an entry that was about to be dropped here says little, but says it often.
CONFIRMED_ERROR = 0.05
# Below this share of its claim, a shadow does not touch its bound, and hits say nothing about that.
FULL = 0.9
# What is declared may leave out memory below the GPU, but not without measure.
MOST = 4.0
LEAST_TOKENS = 1_024


class Capacity:
    """Tokens that one worker is believed to hold; None as long as nobody knows.

    `declared` is what its metrics say. A shadow is what the map remembers of the worker, in tokens.
    """

    __slots__ = ("declared", "tokens")

    def __init__(self) -> None:
        self.declared: int | None = None
        self.tokens: int | None = None

    def declare(self, tokens: int | None) -> None:
        """The worker's word for it; what was learned counts until it says something else."""
        if tokens != self.declared:
            self.declared = self.tokens = tokens

    def fell_short(self, shadow: int, missing: int, prompt_tokens: int) -> None:
        """An entry had been evicted there and not here: of a prompt, so many tokens were not there."""
        error = min(1.0, missing / max(1, prompt_tokens))
        self.tokens = max(LEAST_TOKENS, int(self._held(shadow) * (1 - RATE * error)))

    def exceeded(self, shadow: int, more: int, prompt_tokens: int) -> None:
        """The worker had tokens that the map, full to its bound, did not know of any more."""
        if self.tokens is not None and shadow >= FULL * self.tokens:
            self._grow(min(1.0, more / max(1, prompt_tokens)))

    def confirmed(self, shadow: int, *, oldest_half: bool) -> None:
        """A hit came true; `oldest_half`: of an entry that would have been among the next to be dropped here.

        It lets a claim grow back, and not beyond what the worker declares.
        """
        below = self.declared is None or (self.tokens is not None and self.tokens < self.declared)
        if self.tokens is not None and below and oldest_half and shadow >= FULL * self.tokens:
            self._grow(CONFIRMED_ERROR)

    def _held(self, shadow: int) -> int:
        return shadow if self.tokens is None else min(self.tokens, shadow)

    def _grow(self, error: float) -> None:
        assert self.tokens is not None
        grown = int(self.tokens * (1 + RATE * error)) + 1
        limit = grown if self.declared is None else int(MOST * self.declared)
        self.tokens = max(self.tokens, min(grown, limit))
