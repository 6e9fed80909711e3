"""Choose one of the candidates: affinity is a preference that gives way to load, never a queue.

The functions get plain values and return a `Decision`; whatever is random or counts comes in as an argument.
Candidates have passed every filter before they come here.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from xxhash import xxh3_64_intdigest


class Reason(enum.StrEnum):
    """Why a worker was chosen; the same words in metrics, headers, log and tests."""

    HIT = "hit"
    MISS = "miss"
    SPILL = "spill"
    SHORT = "short"
    CACHE_DISABLED = "cache_disabled"
    BELOW_BLOCK_FLOOR = "below_block_floor"
    ONLY = "only"
    BYPASS = "bypass"


class Candidate(Protocol):
    """What the policies may know of a worker."""

    @property
    def id(self) -> str: ...
    @property
    def load(self) -> int:
        """Requests in flight on the worker, from all replicas."""
        ...


C = TypeVar("C", bound=Candidate)


# Made for every request, and a frozen dataclass takes four times as long to make: nobody changes these all the same.
@dataclass(slots=True)
class Match:
    """What a worker is believed to hold of a prompt: blocks shared, and tokens its engine can resume from them.

    `resumable` is what is certain, `expected` the best estimate: what is shared ends somewhere in the block after the
    last that matched. `withheld` says why a match is worth nothing to the engine, where that is known.
    """

    blocks: int = 0
    resumable: int = 0
    withheld: Reason | None = None
    expected: int = 0

    # Spelt out, since a generated one is not compiled.
    def __init__(
        self,
        blocks: int = 0,
        resumable: int = 0,
        withheld: Reason | None = None,
        expected: int = 0,
    ) -> None:
        self.blocks = blocks
        self.resumable = resumable
        self.withheld = withheld
        self.expected = expected


NO_MATCH = Match()


@dataclass(frozen=True, slots=True)
class SlackTable:
    """In-flight requests that a match may cost more than the freest candidate, by prompt tokens (ascending limits)."""

    steps: tuple[tuple[int, int], ...] = ((1_000, 0), (4_000, 1), (8_000, 2), (32_000, 3))
    above: int = 4

    def slack(self, prompt_tokens: int) -> int:
        for limit, slack in self.steps:
            if prompt_tokens < limit:
                return slack
        return self.above


@dataclass(slots=True)
class Ask:
    """The request as a policy sees it.

    `key` is the hash that all requests with this beginning share; `draw` two numbers in [0, 1); `turn` a counter;
    `bypass` is set for requests that have no prefix to look for, `cut_off` while other replicas can't be heard.
    """

    blocks: int
    prompt_tokens: int
    key: int
    draw: tuple[float, float] = (0.0, 0.0)
    turn: int = 0
    bypass: bool = False
    cut_off: bool = False

    # Spelt out, since a generated one is not compiled.
    def __init__(
        self,
        blocks: int,
        prompt_tokens: int,
        key: int,
        draw: tuple[float, float] = (0.0, 0.0),
        turn: int = 0,
        bypass: bool = False,
        cut_off: bool = False,
    ) -> None:
        self.blocks = blocks
        self.prompt_tokens = prompt_tokens
        self.key = key
        self.draw = draw
        self.turn = turn
        self.bypass = bypass
        self.cut_off = cut_off


class Decision(Generic[C]):
    """The chosen worker, why, and what the choice looked like."""

    __slots__ = ("blocks", "load", "match", "min_load", "reason", "runner_up", "scores", "slack", "worker")

    def __init__(
        self,
        worker: C,
        reason: Reason,
        match: Match,
        blocks: int,
        load: int,
        min_load: int,
        slack: int,
        runner_up: C | None = None,
        scores: Sequence[float] | None = None,
    ) -> None:
        self.worker = worker
        self.reason = reason
        self.match = match
        self.blocks = blocks
        self.load = load
        self.min_load = min_load
        self.slack = slack
        self.runner_up = runner_up
        # Of a policy that scores: the candidates' scores in their order, for those who ask why.
        self.scores = scores

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Decision):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _DECIDED)

    __hash__ = None  # type: ignore[assignment]


_DECIDED: Final = ("blocks", "load", "match", "min_load", "reason", "runner_up", "scores", "slack", "worker")

Matches = Mapping[str, Match]


class Policy(Protocol):
    """The shape of every policy."""

    def __call__(self, candidates: Sequence[C], matches: Matches, ask: Ask, table: SlackTable) -> Decision[C]:
        """Choose among candidates, of which there is at least one."""
        ...


def rendezvous(worker: str, key: int) -> int:
    """The worker's weight for a key, equal on all replicas; the largest wins (highest random weight hashing)."""
    return xxh3_64_intdigest(worker.encode(), key)


def choose_slack(candidates: Sequence[C], matches: Matches, ask: Ask, table: SlackTable) -> Decision[C]:
    """The deepest match whose worker is at most `slack` busier than the freest candidate, else the freest."""
    least = min([candidate.load for candidate in candidates])
    slack = table.slack(ask.prompt_tokens)
    chosen = busy = None
    match = busy_match = NO_MATCH
    for candidate in candidates if matches else ():
        mine = matches.get(candidate.id)
        if mine is None or mine.resumable <= 0:
            continue
        if candidate.load <= least + slack:
            if chosen is None or _outranks(candidate, mine, chosen, match, ask.key):
                chosen, match = candidate, mine
        elif busy is None or _outranks(candidate, mine, busy, busy_match, ask.key):
            busy, busy_match = candidate, mine
    if chosen is not None:
        reason = Reason.HIT if match.resumable >= busy_match.resumable else Reason.SPILL
        other = busy if busy is not None and _outranks(busy, busy_match, chosen, match, ask.key) else None
    else:
        chosen = _freest(candidates, least, ask.key)
        if ask.cut_off and busy is None:
            chosen = _home(candidates, least + slack, ask.key) or chosen
        match = matches.get(chosen.id, NO_MATCH)
        reason = Reason.SPILL if busy is not None else reason_without_match(candidates, matches, ask)
        other = busy
    return Decision(chosen, reason, match, ask.blocks, chosen.load, least, slack, other)


def choose_least_loaded(candidates: Sequence[C], matches: Matches, ask: Ask, table: SlackTable) -> Decision[C]:
    """The candidate with the fewest requests in flight, whatever it holds."""
    least = min([candidate.load for candidate in candidates])
    return _blind(_freest(candidates, least, ask.key), candidates, matches, ask, least)


def choose_power_of_two(candidates: Sequence[C], matches: Matches, ask: Ask, table: SlackTable) -> Decision[C]:
    """The freer of two candidates drawn at random, whatever they hold (Mitzenmacher's power of two choices)."""
    count = len(candidates)
    first = int(ask.draw[0] * count)
    second = int(ask.draw[1] * (count - 1)) if count > 1 else 0
    second += second >= first and count > 1
    pair = (candidates[first], candidates[second])
    least = min([candidate.load for candidate in candidates])
    return _blind(pair[pair[1].load < pair[0].load], candidates, matches, ask, least)


def choose_round_robin(candidates: Sequence[C], matches: Matches, ask: Ask, table: SlackTable) -> Decision[C]:
    """The candidates in turn."""
    least = min([candidate.load for candidate in candidates])
    return _blind(candidates[ask.turn % len(candidates)], candidates, matches, ask, least)


POLICIES: dict[str, Policy] = {
    "slack": choose_slack,
    "power_of_two": choose_power_of_two,
    "least_loaded": choose_least_loaded,
    "round_robin": choose_round_robin,
}


def _blind(chosen: C, candidates: Sequence[C], matches: Matches, ask: Ask, least: int) -> Decision[C]:
    """A decision that ignored affinity, described by what it happened to meet."""
    match = matches.get(chosen.id, NO_MATCH)
    deepest = max([matches.get(candidate.id, NO_MATCH).resumable for candidate in candidates]) if matches else 0
    if deepest <= 0:
        reason = reason_without_match(candidates, matches, ask)
    else:
        reason = Reason.HIT if match.resumable >= deepest else Reason.MISS
    return Decision(chosen, reason, match, ask.blocks, chosen.load, least, 0)


def _outranks(candidate: C, match: Match, best: C, best_match: Match, key: int) -> bool:
    """More to resume, then deeper, then freer, then the order that all replicas share."""
    if match.resumable != best_match.resumable:
        return match.resumable > best_match.resumable
    if match.blocks != best_match.blocks:
        return match.blocks > best_match.blocks
    if candidate.load != best.load:
        return candidate.load < best.load
    return rendezvous(candidate.id, key) > rendezvous(best.id, key)


def _freest(candidates: Sequence[C], least: int, key: int) -> C:
    ties = [candidate for candidate in candidates if candidate.load == least]
    if len(ties) == 1:
        return ties[0]
    return max(ties, key=lambda candidate: rendezvous(candidate.id, key))


def _home(candidates: Sequence[C], most: int, key: int) -> C | None:
    """Where all replicas put this beginning if they know nothing of each other, unless it is too busy."""
    home = max(candidates, key=lambda candidate: rendezvous(candidate.id, key))
    return home if home.load <= most else None


def reason_without_match(candidates: Sequence[Candidate], matches: Matches, ask: Ask) -> Reason:
    """Why the choice was made by load alone."""
    if ask.bypass:
        return Reason.BYPASS
    if ask.blocks == 0:
        return Reason.SHORT
    # Workers that are no candidates may hold something too, but it explains nothing here.
    found = [matches[candidate.id] for candidate in candidates if candidate.id in matches] if matches else []
    withheld = [(match.blocks, match.withheld) for match in found if match.withheld is not None]
    if withheld:
        return max(withheld)[1]
    return Reason.ONLY if len(candidates) == 1 else Reason.MISS
