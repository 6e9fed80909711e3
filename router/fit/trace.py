"""What of a recorded trace's prompts a cache could have given back, if it forgot nothing.

A trace is JSON lines with `input_length` (tokens) and, where it has them, `hash_ids`: one id for each 512 tokens of
the prompt, equal where two prompts are equal up to there. Without ids every prompt counts as repeated once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from router.cachemodel import CacheProfile, Rule, checkpoint, resumable
from router.fit.model import ModelConfigError

ID_TOKENS = 512
MAX_REQUESTS = 1_000_000
MAX_LINE = 1 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt: its length, and the ids of its prefixes."""

    tokens: int
    ids: tuple[int, ...] = ()


@dataclass(slots=True)
class Tally:
    """Tokens of all prompts, and how many of them came back."""

    requests: int = 0
    prompt_tokens: int = 0
    shared_tokens: int = 0
    resumed_tokens: dict[str, int] = field(default_factory=dict)

    def share(self, tokens: int) -> float:
        return tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def read(lines: Iterable[str]) -> Iterator[Request]:
    """The requests of a trace; raises ModelConfigError with the line's number where one is not as described."""
    count = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        count += 1
        if count > MAX_REQUESTS:
            raise ModelConfigError(f"the trace has more than {MAX_REQUESTS:,} requests")
        yield _request(line, number)


def _request(line: str, number: int) -> Request:
    try:
        value = json.loads(line) if len(line) <= MAX_LINE else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ModelConfigError(f"line {number} of the trace is no JSON object")
    tokens, ids = value.get("input_length"), value.get("hash_ids", [])
    if type(tokens) is not int or not 0 <= tokens <= 1 << 32:
        raise ModelConfigError(f"line {number} of the trace has no input_length in tokens")
    if not isinstance(ids, list) or not all(type(one) is int for one in ids):
        raise ModelConfigError(f"line {number} of the trace has hash_ids that are no whole numbers")
    return Request(tokens, tuple(ids))


def tally(requests: Iterable[Request], rules: dict[str, CacheProfile]) -> Tally:
    """Share of the prompts' tokens that each rule gives back, with one cache that holds everything."""
    total = Tally(resumed_tokens=dict.fromkeys(rules, 0))
    seen: set[int] = set()
    states: dict[str, dict[int, int]] = {name: {} for name in rules}
    for request in requests:
        shared = _shared(request, seen)
        total.requests += 1
        total.prompt_tokens += request.tokens
        total.shared_tokens += shared
        for name, profile in rules.items():
            total.resumed_tokens[name] += _resumed(profile, states[name], request, shared)
        seen.update(request.ids)
    return total


def _shared(request: Request, seen: set[int]) -> int:
    if not request.ids:
        return request.tokens
    matched = 0
    for one in request.ids:
        if one not in seen:
            break
        matched += 1
    return min(matched * ID_TOKENS, request.tokens)


def _resumed(profile: CacheProfile, states: dict[int, int], request: Request, shared: int) -> int:
    """Tokens that one rule gives back; where states are kept only at ends and junctions, as far as one was kept.

    `states` maps the id of a prefix to the deepest state within its last 512 tokens. A prompt leaves one at its own
    end, and one where it parted from an earlier prompt (vLLM 0.33 `shared_prefix_boundary`). Its end is taken as that
    of its last whole 512 tokens, since the trace does not say what is shared beyond them.
    """
    best = resumable(profile, shared, request.tokens).tokens
    if profile.rule is not Rule.CHECKPOINTS or not request.ids:
        return best
    found = 0
    for i in range(min(len(request.ids), -(-best // ID_TOKENS)) - 1, -1, -1):
        at = states.get(request.ids[i], 0)
        if 0 < at <= best:
            found = at
            break
    whole = request.tokens // ID_TOKENS * ID_TOKENS
    for at in (best, checkpoint(profile, min(request.tokens, whole + 1))):
        i = (at - 1) // ID_TOKENS
        if at > 0 and i < len(request.ids):
            states[request.ids[i]] = max(at, states.get(request.ids[i], 0))
    return found
