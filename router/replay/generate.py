"""Made-up traffic: sessions of coding agents, short questions, cold documents, and mixes of them.

A session's next turn comes a think time after the end of the turn before it, so a slow fleet slows its users down.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from router.replay.trace import ID_TOKENS, Request, Trace


@dataclass(frozen=True, slots=True)
class Agents:
    """Sessions of coding agents; tokens and seconds."""

    templates: int = 6
    system_tokens: int = 20_000
    turns: tuple[int, int] = (10, 60)
    task_tokens: tuple[int, int] = (200, 3_000)
    growth_tokens: tuple[int, int] = (500, 3_000)
    output_median: float = 120.0
    output_spread: float = 0.8
    think_seconds: float = 4.0


class _Ids:
    """Fresh block ids."""

    def __init__(self) -> None:
        self._last = 0

    def take(self, count: int) -> list[int]:
        first = self._last + 1
        self._last += count
        return list(range(first, self._last + 1))


def generate(kind: str, requests: int, seed: int) -> Trace:
    """About so many requests of one kind of traffic, one root arrival a second on average."""
    rng = random.Random(f"{kind}:{seed}")
    found = KINDS[kind](requests, rng, _Ids())
    return Trace(kind, tuple(found))


def _agents(requests: int, rng: random.Random, ids: _Ids, shape: Agents | None = None) -> list[Request]:
    shape = shape or Agents()
    blocks = shape.system_tokens // ID_TOKENS
    templates = [ids.take(blocks) for _ in range(shape.templates)]
    found: list[Request] = []
    at = 0.0
    while len(found) < requests:
        at += rng.expovariate(1.0)
        # A few templates carry most of the traffic.
        template = templates[min(int(rng.paretovariate(1.0)) - 1, shape.templates - 1)]
        found.extend(_session(at, template, len(found), rng, ids, shape))
    return found


def _session(
    at: float, template: list[int], position: int, rng: random.Random, ids: _Ids, shape: Agents
) -> Iterator[Request]:
    own: list[int] = []
    tokens = shape.system_tokens + rng.randint(*shape.task_tokens)
    after: int | None = None
    for turn in range(rng.randint(*shape.turns)):
        growth = rng.randint(*shape.growth_tokens)
        output = max(1, min(int(rng.lognormvariate(math.log(shape.output_median), shape.output_spread)), growth - 50))
        whole = tokens // ID_TOKENS
        own += ids.take(whole - len(template) - len(own))
        # The unfinished block at the end is another one in the next turn.
        rest = ids.take(1) if tokens % ID_TOKENS else []
        yield Request(at, (*template, *own, *rest), tokens, output, after, len(template))
        after = position + turn
        at = rng.expovariate(1.0 / shape.think_seconds)
        tokens += growth


def _singles(
    prompt: Callable[[random.Random], int], output: Callable[[random.Random], int]
) -> Callable[[int, random.Random, _Ids], list[Request]]:
    def make(requests: int, rng: random.Random, ids: _Ids) -> list[Request]:
        found = []
        at = 0.0
        for _ in range(requests):
            at += rng.expovariate(1.0)
            tokens = prompt(rng)
            found.append(Request(at, tuple(ids.take(-(-tokens // ID_TOKENS))), tokens, output(rng)))
        return found

    return make


_short = _singles(lambda rng: rng.randint(5, 300), lambda rng: rng.randint(20, 300))
_cold = _singles(lambda rng: rng.randint(4_000, 32_000), lambda rng: rng.randint(50, 400))


def _mix(requests: int, rng: random.Random, ids: _Ids) -> list[Request]:
    """By requests: 6 of 10 from agents, 3 short questions, 1 cold document."""
    agents = _agents(requests * 6 // 10, rng, ids)
    seconds = max(request.at for request in agents if request.after is None)
    found = list(agents)
    for make, share in ((_short, 3), (_cold, 1)):
        singles = make(requests * share // 10, rng, ids)
        scale = seconds / singles[-1].at if singles else 1.0
        found.extend(replace(single, at=single.at * scale) for single in singles)
    return found


KINDS: dict[str, Callable[[int, random.Random, _Ids], list[Request]]] = {
    "agent": _agents,
    "short": _short,
    "cold": _cold,
    "mix": _mix,
}
