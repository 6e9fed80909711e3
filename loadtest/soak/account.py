"""Where each request of a run is: with exactly one replica, or with none and why. Pure.

A replica's log names every request that it counts, by its id; its last word, or its metrics, say how many these were.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# Lines are written in batches; what a process that is killed has not written yet is gone.
UNWRITTEN_SECONDS = 0.5
_NAMED = re.compile(r" router\.decisions: .* request=(\S+)")
_LAST_WORD = re.compile(r" router: ended after (\d+) requests(?:: (.*))?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sent:
    """One request as its client saw it; seconds of the run."""

    outcome: str
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Life:
    """One process of a replica, by what it wrote; `counted` is unknown of one that was killed.

    `killed` are the moments before and after that, for the system takes its time.
    """

    name: str
    ids: frozenset[str]
    counted: Counter[str] | None
    killed: tuple[float, float] | None = None


@dataclass(slots=True)
class Account:
    """How many requests are where. `wrong` says what should not be; empty where everything adds up."""

    counted: int = 0
    by_killed: int = 0
    nowhere: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def life(
    name: str, log: str, counted: Mapping[str, int] | None = None, killed: tuple[float, float] | None = None
) -> Life:
    """What a process wrote, and what it counted: by its last word, if nothing else is known."""
    if counted is None and killed is None:
        counted = last_word(log)
    return Life(name, frozenset(_NAMED.findall(log)), None if counted is None else Counter(counted), killed)


def last_word(log: str) -> dict[str, int] | None:
    """How the requests of a process ended, as it said when it ended itself."""
    found = _LAST_WORD.search(log)
    if found is None:
        return None
    pairs = (pair.rpartition(" ") for pair in (found[2] or "").split(", ") if pair)
    return {outcome: int(count) for outcome, _, count in pairs}


def settle(sent: Mapping[str, Sent], lives: Sequence[Life]) -> Account:
    """Find every request in exactly one place."""
    account = Account()
    places: dict[str, list[str]] = {}
    for each in lives:
        for name in each.ids:
            places.setdefault(name, []).append(each.name)
        if each.killed is not None:
            account.by_killed += len(each.ids)
            continue
        counted = 0 if each.counted is None else sum(each.counted.values())
        account.counted += counted
        if each.counted is None:
            account.wrong.append(f"{each.name} said nothing at its end")
        elif counted != len(each.ids):
            account.wrong.append(f"{each.name} counted {counted} requests and named {len(each.ids)}")
    account.wrong += [f"{name} is with {', '.join(found)}" for name, found in places.items() if len(found) > 1]
    account.wrong += [f"nobody sent {name}" for name in places if name not in sent]
    kills = [each.killed for each in lives if each.killed is not None]
    for name, request in sent.items():
        if name not in places:
            why = _why_nowhere(request, kills)
            account.nowhere[why] += 1
            if why == LOST:
                account.wrong.append(f"{name} was {request.outcome} for its client, and no replica knows of it")
    return account


LOST = "lost"


def _why_nowhere(request: Sent, kills: Sequence[tuple[float, float]]) -> str:
    """Why no replica speaks of a request."""
    if any(request.began <= after and before <= request.ended + UNWRITTEN_SECONDS for before, after in kills):
        return "under way when a replica was killed"
    if request.outcome == "left":
        return "its client left before a replica had read it"
    if request.outcome == "balancer":
        return "answered by nginx: the replica had closed the connection"
    return LOST
