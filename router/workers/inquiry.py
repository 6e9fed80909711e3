"""A prompt made ready for choosing, and what a match of it is worth on a worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from router.cachemodel import CacheProfile, resumable
from router.hashing import end_of
from router.policy import Match, Reason
from router.prompt import Form, Prompt
from router.settings import CacheSettings, ModelSettings
from router.workers.registry import Registry, Worker

# Forms whose prompts an engine can resume; the others are routed by load alone.
WITH_PREFIX = frozenset({Form.CHAT, Form.COMPLETIONS, Form.RESPONSES, Form.MESSAGES})
# How far into the block after the last that matched a prompt is taken to be shared.
EXPECTED = 0.5


@dataclass(slots=True)
class Inquiry:
    """A prompt made ready for choosing: resolved model, hashes, sizes in tokens."""

    prompt: Prompt
    model: str
    hashes: list[int]
    tokens: int
    tokens_per_byte: float
    key: int
    settings: ModelSettings
    # What the operator has set about the model's cache, if anything.
    cache: CacheSettings | None = None
    # The worker that keeps what the request refers to; any other would not know it.
    pinned: str | None = None
    # The hash of the whole prompt, of which nothing may follow; 0 if nobody asks for it.
    whole: int = 0
    # Where the blocks end, unless that is where `hashing` has them.
    ends: Sequence[int] | None = None
    # Whose share of the map its blocks count to.
    tenant: str = ""

    # Spelt out, since a generated one is not compiled.
    def __init__(
        self,
        prompt: Prompt,
        model: str,
        hashes: list[int],
        tokens: int,
        tokens_per_byte: float,
        key: int,
        settings: ModelSettings,
        cache: CacheSettings | None = None,
        pinned: str | None = None,
        whole: int = 0,
        ends: Sequence[int] | None = None,
        tenant: str = "",
    ) -> None:
        self.prompt = prompt
        self.model = model
        self.hashes = hashes
        self.tokens = tokens
        self.tokens_per_byte = tokens_per_byte
        self.key = key
        self.settings = settings
        self.cache = cache
        self.pinned = pinned
        self.whole = whole
        self.ends = ends
        self.tenant = tenant

    @property
    def window(self) -> int:
        """Tokens of context that the request needs."""
        return self.tokens + self.prompt.max_tokens

    def end(self, blocks: int) -> int:
        """The bytes that so many leading blocks stand for."""
        if self.ends is None:
            return end_of(blocks)
        return self.ends[blocks - 1] if blocks else 0


def worth(inquiry: Inquiry, depths: Mapping[str, int], registry: Registry) -> dict[str, Match]:
    """What each worker's leading blocks are worth to its engine."""
    matches: dict[str, Match] = {}
    # Workers are mostly alike, and many hold the same beginning.
    known: dict[tuple[int, int], Match] = {}
    for name, blocks in depths.items():
        worker = registry.get(name)
        if worker is None:
            continue
        profile = profile_of(worker, inquiry)
        match = known.get((blocks, id(profile)))
        if match is None:
            match = known[blocks, id(profile)] = _worth(profile, blocks, inquiry)
        matches[name] = match
    return matches


def _worth(profile: CacheProfile, blocks: int, inquiry: Inquiry) -> Match:
    size, ratio, tokens = inquiry.prompt.size, inquiry.tokens_per_byte, inquiry.tokens
    shared = inquiry.end(blocks)
    hit = resumable(profile, int(shared * ratio), tokens)
    if hit.reason is not None:
        return Match(blocks, hit.tokens, Reason(hit.reason))
    # What is shared ends anywhere before the end of the next block, which is up to twice as wide as the last one.
    rest = min(size - shared, 2 * (shared - inquiry.end(blocks - 1)))
    if blocks < len(inquiry.hashes):
        rest = inquiry.end(blocks + 1) - shared
    guess = resumable(profile, int((shared + EXPECTED * rest) * ratio), tokens).tokens
    return Match(blocks, hit.tokens, None, max(hit.tokens, guess))


def equal_to_all(inquiry: Inquiry, worker: Worker, match: Match | None) -> Match:
    """The match of a worker where the very same prompt waits to be computed."""
    match = match or Match()
    expected = resumable(profile_of(worker, inquiry), inquiry.tokens, inquiry.tokens).tokens
    return Match(match.blocks, match.resumable, match.withheld, max(expected, match.expected))


def profile_of(worker: Worker, inquiry: Inquiry) -> CacheProfile:
    """The worker's cache as its metrics describe it, corrected by what the operator has set for the model."""
    profile, cache = worker.facts.profile, inquiry.cache
    return profile if cache is None else _corrected(profile, cache.enabled, cache.block_size, cache.hit_unit)


@lru_cache(maxsize=1_000)
def _corrected(profile: CacheProfile, enabled: bool | None, block: int | None, unit: int | None) -> CacheProfile:
    if enabled is not None:
        profile = dataclasses.replace(profile, enabled=enabled)
    if block is not None or unit is not None:
        block = block or profile.block_size
        # A unit that does not divide the block is one that hits land on nevertheless: the block gives way.
        profile = dataclasses.replace(
            profile, block_size=block if unit is None or block % unit == 0 else unit, match_unit=unit, groups=()
        )
    return profile
