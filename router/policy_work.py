"""Choose by work: the worker on which this prompt, and what waits there before it, leaves the least to compute.

Load and slack are measured in tokens of prefill instead of requests. A worker that holds the prefix wins exactly while
its extra queue is shorter than the prefill it saves, so a preference never becomes a queue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from router.policy import NO_MATCH, Ask, Candidate, Decision, Matches, Reason, reason_without_match, rendezvous
from router.work import DECODING_TOKENS


@dataclass(frozen=True, slots=True)
class Weights:
    """The constants of the score.

    `uncached`: how much dearer a token to compute is than a token in the queue, for it also slows those who decode.
    `decoding`: tokens for each request that decodes; one that waits counts as much at least. `lifetimes`: re-use
    intervals after which an entry is worth a third. `full`: the share of a cache's capacity from which a new prompt
    pushes others out. `home`: the share of a prompt that its home may be ahead of others while replicas can't hear each
    other.
    """

    uncached: float = 1.25
    decoding: float = DECODING_TOKENS
    lifetimes: float = 3.0
    full: float = 0.9
    home: float = 0.5


WEIGHTS = Weights()
# Of equals in the order that all replicas share, so many are compared by when they were last used.
FIRST_FEW = 3


class Terms(NamedTuple):
    """The parts of one candidate's score, in tokens."""

    queued: float
    uncached: float
    decoding: float
    evicting: float

    @property
    def score(self) -> float:
        return self.queued + self.uncached + self.decoding + self.evicting


class Worked(Protocol):
    """The work at a candidate, see `router.work.WorkQueue`."""

    @property
    def decoding(self) -> float: ...
    def ahead(self, now: float) -> float: ...


class Busy(Candidate, Protocol):
    """A candidate whose work is known; `turn` is the number of the last request that this replica gave it."""

    @property
    def work(self) -> Worked: ...
    @property
    def turn(self) -> int: ...


B = TypeVar("B", bound=Busy)


@dataclass(slots=True)
class View:
    """What the rule knows beside the queues: the time, and of a worker's cache by its name

    `pressure`: what a token that is pushed out there is worth, in [0, 1]; `last_used`: when a request last went there,
    from whatever replica.
    """

    now: float
    pressure: Callable[[str], float] | None = None
    last_used: Callable[[str], float] | None = None
    weights: Weights = WEIGHTS

    # Spelt out, since a generated one is not compiled.
    def __init__(
        self,
        now: float,
        pressure: Callable[[str], float] | None = None,
        last_used: Callable[[str], float] | None = None,
        weights: Weights = WEIGHTS,
    ) -> None:
        self.now = now
        self.pressure = pressure
        self.last_used = last_used
        self.weights = weights


def pressure(fill: float, oldest: float, interval: float, weights: Weights = WEIGHTS) -> float:
    """What a token is worth that the next prompt pushes out of a cache.

    `fill`: share of the capacity in use; `oldest`: seconds since the oldest entry was used; `interval`: seconds after
    which prefixes are used again.
    """
    if fill < weights.full:
        return 0.0
    return math.exp(-oldest / (weights.lifetimes * interval))


def terms(candidate: Busy, matches: Matches, ask: Ask, view: View) -> Terms:
    """The score of one candidate, taken apart."""
    match = matches.get(candidate.id)
    uncached = max(0, ask.prompt_tokens - match.expected) if match is not None else ask.prompt_tokens
    weights = view.weights
    return Terms(
        candidate.work.ahead(view.now),
        weights.uncached * uncached,
        weights.decoding * candidate.work.decoding,
        uncached * view.pressure(candidate.id) if view.pressure is not None else 0.0,
    )


def scores(candidates: Sequence[B], matches: Matches, ask: Ask, view: View) -> list[float]:
    """The candidates' scores; `terms` spelt out, since this runs for every request."""
    now, tokens, worth = view.now, ask.prompt_tokens, view.pressure
    per_token, per_request = view.weights.uncached, view.weights.decoding
    none = per_token * tokens
    found: list[float] = []
    for candidate in candidates:
        work = candidate.work
        score = work.ahead(now) + per_request * work.decoding
        match = matches.get(candidate.id) if matches else None
        if match is None:
            score += none if worth is None else none + tokens * worth(candidate.id)
        else:
            uncached = max(0, tokens - match.expected)
            score += per_token * uncached
            if worth is not None:
                score += uncached * worth(candidate.id)
        found.append(score)
    return found


def choose_work(candidates: Sequence[B], matches: Matches, ask: Ask, view: View) -> Decision[B]:
    """The candidate with the least work; equals are told apart alike on all replicas, see `_first`."""
    found = scores(candidates, matches, ask, view)
    deepest = _deepest(candidates, matches) if matches else None
    if ask.cut_off and deepest is None and ask.blocks:
        _prefer_home(found, candidates, ask, view)
    least = min(found)
    if found.count(least) == 1:
        chosen = candidates[found.index(least)]
    else:
        tied = [candidate for candidate, score in zip(candidates, found, strict=True) if score == least]
        chosen = _first(tied, ask, view)
    match = matches.get(chosen.id, NO_MATCH) if matches else NO_MATCH
    runner_up: B | None = None
    worth = 0
    if deepest is None:
        reason = reason_without_match(candidates, matches, ask)
    else:
        best = matches[deepest.id]
        worth = int(view.weights.uncached * best.expected)
        reason = Reason.HIT if match.resumable >= best.resumable else Reason.SPILL
        if reason is Reason.SPILL:
            runner_up = deepest
    free = min([candidate.load for candidate in candidates])
    return Decision(chosen, reason, match, ask.blocks, chosen.load, free, worth, runner_up, found)


def _deepest(candidates: Sequence[B], matches: Matches) -> B | None:
    """The candidate with the most to resume, if any has something."""
    deepest, most = None, 0
    for candidate in candidates:
        match = matches.get(candidate.id)
        if match is not None and match.resumable > most:
            deepest, most = candidate, match.resumable
    return deepest


def _first(tied: Sequence[B], ask: Ask, view: View) -> B:
    """The first of equals: with the fewest in flight, then by the order that all replicas share.

    A new prefix goes to that of its first few which rests longest, so that prompts that come one after another spread,
    while replicas whose news crosses still agree, and do not all turn to the one worker that rests. A prompt without a
    whole block seeds nothing that replicas would have to agree upon: the worker that has rested longest takes it.
    """
    key = ask.key
    least = min([one.load for one in tied])
    tied = [one for one in tied if one.load == least]
    if not ask.blocks:
        return min(tied, key=lambda one: (one.turn, -rendezvous(one.id, key)))
    if view.last_used is None or ask.cut_off:
        return max(tied, key=lambda one: rendezvous(one.id, key))
    last_used = view.last_used
    first = sorted(tied, key=lambda one: rendezvous(one.id, key), reverse=True)[:FIRST_FEW]
    return min(first, key=lambda one: last_used(one.id))


def _prefer_home(found: list[float], candidates: Sequence[Busy], ask: Ask, view: View) -> None:
    """Where all replicas put this beginning if they know nothing of each other, it may cost a little more."""
    home = max(range(len(candidates)), key=lambda position: rendezvous(candidates[position].id, ask.key))
    found[home] -= view.weights.home * ask.prompt_tokens
