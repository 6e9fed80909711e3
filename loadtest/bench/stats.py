"""Medians, spreads, percentiles and ratios of rounds. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Spread:
    """Several rounds of one figure: their median, the least and the greatest."""

    median: float
    least: float
    greatest: float
    rounds: int


def spread(values: Sequence[float]) -> Spread | None:
    """The spread of the rounds; None of no rounds."""
    if not values:
        return None
    return Spread(median(values), min(values), max(values), len(values))


def ratios(ours: Sequence[float | None], theirs: Sequence[float | None]) -> Spread | None:
    """Ours by theirs, round by round: what both rounds share, such as a busy machine, falls out."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None and b > 0])


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share of the ordered values lies, between neighbours by distance; 0 of no values."""
    if not ordered:
        return 0.0
    place = (len(ordered) - 1) * share
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
