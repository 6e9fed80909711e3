"""One answer: what was believed of the worker's cache, whether that came true, and if not, why."""

from __future__ import annotations

import enum
from dataclasses import dataclass

# Estimates are this far off before a difference says anything about the cache, as a share of the prompt.
TOLERANCE = 0.03
# Once its worker has used this share of what its cache holds after an entry, the entry may well have been pushed out.
# States go long before tokens; where nobody knows what a cache holds, so many prompts of the same length have to do.
PRESSURE = 0.5
STATEFUL_PRESSURE = 0.1
PRESSURE_PROMPTS = 4
# What no engine lets go by age alone.
EXPIRY_SECONDS = 60.0


@dataclass(slots=True)
class Usage:
    """What an answer reported: prompt tokens, and how many of them came from the cache (None: not reported)."""

    prompt_tokens: int
    cached_tokens: int | None = None
    completion_tokens: int = 0

    # Spelt out, since a generated one is not compiled.
    def __init__(
        self,
        prompt_tokens: int,
        cached_tokens: int | None = None,
        completion_tokens: int = 0,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = cached_tokens
        self.completion_tokens = completion_tokens


class Verdict(enum.StrEnum):
    """Whether a predicted hit came true."""

    CONFIRMED = "confirmed"
    FELL_SHORT = "fell_short"
    BETTER = "better"
    UNKNOWN = "unknown"


# An attribute of an enum is looked up slowly.
_CONFIRMED, _FELL_SHORT, _BETTER, _UNKNOWN = Verdict.CONFIRMED, Verdict.FELL_SHORT, Verdict.BETTER, Verdict.UNKNOWN


class Cause(enum.StrEnum):
    """Why a hit fell short, as far as it can be known; the values are labels and never more than these."""

    RESTARTED = "restarted"  # the worker's cache has begun a new life since the decision
    CACHE_DISABLED = "cache_disabled"  # the worker says by now that it caches nothing
    BELOW_BLOCK_FLOOR = "below_block_floor"  # counted exactly, the prompt was too short to resume anything
    NOT_RESIDENT = "not_resident"  # used lately and not pushed out, yet not there
    EVICTED = "evicted"  # more was used since than after anything that is known to have stayed
    EXPIRED = "expired"  # older than anything that is known to have stayed, though little was used since
    UNKNOWN = "unknown"


# Made for every answer; a frozen dataclass takes four times as long to make.
@dataclass(slots=True)
class Belief:
    """What was believed of the chosen worker when a request was sent; tokens.

    `credited` is what the decision counted on, `predicted` the same with the prompt's exact length. A difference below
    `step` is noise; with `at_least` the prediction is a lower bound. `used` is when the entry was used last before, on
    the router's clock (None if the map can't tell); `tentative`: that was a request which had no answer yet.
    """

    credited: int
    predicted: int
    step: int
    at_least: bool = False
    used: float | None = None
    tentative: bool = False

    # Spelt out, since a generated one is not compiled.
    def __init__(
        self,
        credited: int,
        predicted: int,
        step: int,
        at_least: bool = False,
        used: float | None = None,
        tentative: bool = False,
    ) -> None:
        self.credited = credited
        self.predicted = predicted
        self.step = step
        self.at_least = at_least
        self.used = used
        self.tentative = tentative


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What else is known of the worker at the time of the answer.

    `age` is seconds since the entry's last use (None if the map can't tell), `since` the tokens that the worker used
    after it; `proven_age` and `proven_since` are the most after which an entry of this worker was still there, of late.
    `capacity` is what the worker holds in tokens. `stateful` caches lose what they need of a prefix long before its
    tokens; `emptied`: that has just been found out.
    """

    same_life: bool = True
    enabled: bool | None = None
    stateful: bool = False
    emptied: bool = False
    age: float | None = None
    since: int = 0
    proven_age: float = 0.0
    proven_since: int = 0
    capacity: int | None = None


def judge(predicted: int, usage: Usage | None, unit: int, *, at_least: bool = False) -> Verdict:
    """Compare predicted with reported cached tokens; less than a unit or the tolerance is noise.

    `unit` is what the engine's and the map's steps may make of a difference, in tokens. With `at_least` the prediction
    is a lower bound, since the map does not look beyond its horizon.
    """
    if usage is None or usage.cached_tokens is None:
        return _UNKNOWN
    allowed = _allowed(unit, usage)
    difference = usage.cached_tokens - predicted
    if difference < -allowed:
        return _FELL_SHORT
    if difference > allowed and not at_least:
        return _BETTER
    return _CONFIRMED


def verdict_of(belief: Belief, usage: Usage | None) -> Verdict:
    """Whether a belief came true.

    A decision that counted on tokens which the exact length rules out has fallen short, though nothing was left to
    predict by then.
    """
    verdict = judge(belief.predicted, usage, belief.step, at_least=belief.at_least)
    if verdict is _CONFIRMED and belief.predicted == 0 and usage is not None and not usage.cached_tokens:
        return _FELL_SHORT if 0 < belief.step <= belief.credited else verdict
    return verdict


def cause_of(belief: Belief, now: Circumstances, prompt_tokens: int) -> Cause:
    """Why a belief fell short, from the surest cause to the least sure."""
    if not now.same_life:
        return Cause.RESTARTED
    if now.enabled is False:
        return Cause.CACHE_DISABLED
    if belief.predicted == 0:
        return Cause.BELOW_BLOCK_FLOOR
    if belief.tentative or now.emptied:
        return Cause.NOT_RESIDENT
    if now.age is None:
        return Cause.UNKNOWN
    if now.since > now.proven_since and _under_pressure(now, prompt_tokens):
        return Cause.EVICTED
    return Cause.EXPIRED if now.age > max(EXPIRY_SECONDS, now.proven_age) else Cause.NOT_RESIDENT


def _under_pressure(now: Circumstances, prompt_tokens: int) -> bool:
    """Whether what was used since then explains that an entry is gone."""
    if now.capacity is None:
        return now.since >= PRESSURE_PROMPTS * prompt_tokens
    return now.since >= (STATEFUL_PRESSURE if now.stateful else PRESSURE) * now.capacity


def _allowed(unit: int, usage: Usage) -> int:
    return max(unit, int(TOLERANCE * usage.prompt_tokens))
