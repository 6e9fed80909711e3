"""What an engine can resume of a shared prefix: a match is not a hit.

A profile says how one model's cache on one worker is cut and where a hit may land; `resumable` turns the tokens
that a prompt shares with that worker into the tokens the engine can really restart from, and the state they are in.
All lengths are tokens. Where a worker declares nothing, plain attention is assumed.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace


class Resume(enum.StrEnum):
    """How much of a match an engine can restart from; each state is credited differently by the decision."""

    RESUMABLE = "resumable"
    NEEDS_IO_WAIT = "needs_io_wait"
    NEEDS_PARTIAL_RECOMPUTE = "needs_partial_recompute"
    NEEDS_FULL_RECOMPUTE = "needs_full_recompute"


class Rule(enum.StrEnum):
    """Where hits may land, by the kind of cache that the worker declares."""

    BLOCKS = "blocks"
    OPEN_BLOCK = "open_block"
    CHECKPOINTS = "checkpoints"


class Kind(enum.StrEnum):
    """Kinds of cache groups, after what their layers keep. A compressed history is attention with wide blocks."""

    FULL_ATTENTION = "full_attention"
    SLIDING_WINDOW = "sliding_window"
    RECURRENT = "mamba"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class Group:
    """One cache group: layers that share block size and kind; `window` counts for sliding windows only."""

    kind: Kind
    block_size: int
    window: int = 0

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ValueError(f"the block size of a cache group must be positive: {self.block_size}")
        if self.kind is Kind.SLIDING_WINDOW and self.window < 1:
            raise ValueError(f"a sliding window must be positive: {self.window}")

    # Pickled by what made it, for processes share profiles, and one that is compiled can't be filled in afterwards.
    def __reduce__(self) -> tuple[type[Group], tuple[object, ...]]:
        return Group, (self.kind, self.block_size, self.window)


@dataclass(frozen=True, slots=True)
class Tier:
    """Cache memory below the GPU; reading a token back takes `wait_permille` thousandths of computing it."""

    medium: str
    wait_permille: int

    def __post_init__(self) -> None:
        if not 0 <= self.wait_permille <= 1000:
            raise ValueError(f"wait_permille of tier {self.medium!r} must lie in 0..1000, not {self.wait_permille}")

    def __reduce__(self) -> tuple[type[Tier], tuple[object, ...]]:
        return Tier, (self.medium, self.wait_permille)


# Assumptions until an operator sets measured ones: what PCIe and an NVMe disk leave of a prefill of a mid-size model.
CPU_TIER = Tier("CPU", 125)
DISK_TIER = Tier("STORAGE", 500)


@dataclass(frozen=True, slots=True)
class CacheProfile:
    """One model's cache on one worker. The defaults describe an unknown engine: plain attention, caching assumed on."""

    enabled: bool | None = None
    block_size: int = 16
    match_unit: int | None = None  # finer boundary for hits inside a block, where the engine allows it
    held_back: int = 0  # units that speculative decoding drops from the end of every hit
    rule: Rule = Rule.BLOCKS
    retention: int | None = None  # tokens between kept states; 0: only the last one, None: all of them
    groups: tuple[Group, ...] = ()
    tiers: tuple[Tier, ...] = ()
    capacity_tokens: int | None = None
    unit: int = field(init=False)  # a hit is a multiple of it
    dropped: int = field(init=False)  # units lost at the end of every match
    computed: int = field(init=False)  # tokens at the end of a prompt that are computed whatever the cache holds

    def __post_init__(self) -> None:
        if self.block_size < 1 or self.held_back < 0:
            raise ValueError(
                f"block_size must be positive and held_back not negative: {self.block_size}, {self.held_back}"
            )
        if self.match_unit is not None and self.match_unit < 1:
            raise ValueError(f"match_unit must be positive: {self.match_unit}")
        block = math.lcm(*(group.block_size for group in self.groups)) if self.groups else self.block_size
        unit = landing(block, self.match_unit, self.groups)
        coarse = self.rule is Rule.OPEN_BLOCK and unit == block
        object.__setattr__(self, "unit", unit)
        object.__setattr__(self, "dropped", max(1, self.held_back) if coarse else self.held_back)
        object.__setattr__(self, "computed", 0 if coarse else 1)

    def __reduce__(self) -> tuple[type[CacheProfile], tuple[object, ...]]:
        return CacheProfile, tuple([getattr(self, given.name) for given in fields(self) if given.init])

    @property
    def floor_tokens(self) -> int:
        """A prompt shorter than this can never hit."""
        return (self.dropped + 1) * self.unit + self.computed


# A frozen one takes longer to make than all the arithmetic: nobody changes these all the same.
@dataclass(slots=True)
class Resumability:
    """What a match is worth.

    `tokens` is the credit. `tokens + wait` is what the engine will report as cached: `wait` is the part of the hit
    that reading it back from CPU or disk eats up.
    """

    tokens: int
    state: Resume
    reason: str | None = None
    wait: int = 0

    # Spelt out, since a generated one is not compiled.
    def __init__(self, tokens: int, state: Resume, reason: str | None = None, wait: int = 0) -> None:
        self.tokens = tokens
        self.state = state
        self.reason = reason
        self.wait = wait


CACHE_DISABLED = "cache_disabled"
BELOW_BLOCK_FLOOR = "below_block_floor"

_RESUMABLE = Resume.RESUMABLE
_DISABLED = Resumability(0, Resume.NEEDS_FULL_RECOMPUTE, CACHE_DISABLED)
_BELOW_FLOOR = Resumability(0, Resume.NEEDS_FULL_RECOMPUTE, BELOW_BLOCK_FLOOR)
_NOTHING = Resumability(0, Resume.NEEDS_FULL_RECOMPUTE)


@dataclass(frozen=True, slots=True)
class GroupHeld:
    """What one group still holds on the GPU: the tokens [start, end), or the states of a recurrent group at `states`.

    Only a sliding window can begin after 0: what precedes its window has been let go.
    """

    end: int = 0
    start: int = 0
    states: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Held:
    """What is known of the shared prefix at one worker, from its cache events or the router's own record.

    `stored_tokens` is the length of the prompt that left the prefix there, if it went on past it; `gpu_tokens` how
    deep the GPU holds it, `tier_tokens` how deep it is held with each tier of the profile added; `groups` has one
    entry for each group of the profile. What is not known is taken as held.
    """

    stored_tokens: int | None = None
    gpu_tokens: int | None = None
    tier_tokens: tuple[int, ...] = ()
    groups: tuple[GroupHeld, ...] = ()


def resumable(profile: CacheProfile, shared_tokens: int, prompt_tokens: int, held: Held | None = None) -> Resumability:
    """Tokens of a match that the engine can restart from.

    Plain attention (vLLM `find_longest_cache_hit`, which starts at prompt - 1 so that one token is left to compute):
    floor(min(shared, prompt - 1) / unit) x unit. Speculative decoding without look-ahead hashes drops `held_back`
    units more. Hybrid with coarse blocks: (floor(shared / block) - 1) x block, where the last whole block stays open
    (see `proven`); zero under two blocks. Hybrid with checkpoints (vLLM 0.33, `HybridKVCacheCoordinator`): as plain
    attention, on the scheduler's block or on `prefix_match_unit`; the state lies at floor((prompt - 1) / unit) x unit.
    """
    if profile.enabled is False:
        return _DISABLED
    unit = profile.unit
    bound = prompt_tokens - profile.computed
    if shared_tokens < bound:
        bound = shared_tokens
    units = bound // unit - profile.dropped
    if units <= 0:
        return _BELOW_FLOOR if shared_tokens > 0 else _NOTHING
    if held is None:
        return Resumability(units * unit, _RESUMABLE)
    return _resumable_of_held(profile, units * unit, held)


def _resumable_of_held(profile: CacheProfile, best: int, held: Held) -> Resumability:
    """The same where it is known what the worker still holds; `best` is what the profile allows at most."""
    on_gpu = best
    if held.gpu_tokens is not None:
        on_gpu = min(on_gpu, _landed(profile, held.gpu_tokens))
    if held.groups:
        on_gpu = intersection(profile, on_gpu, held.groups)
    if held.stored_tokens is not None:
        on_gpu = _with_states(profile, on_gpu, held.stored_tokens)
    credit = hit = on_gpu
    for tier, depth in zip(profile.tiers, held.tier_tokens, strict=False):
        reach = min(best, _landed(profile, depth))
        if reach > hit:
            credit += (reach - hit) * (1000 - tier.wait_permille) // 1000
            hit = reach
    if hit == 0:
        return _NOTHING
    state = _RESUMABLE if hit == best else Resume.NEEDS_PARTIAL_RECOMPUTE
    if hit > on_gpu:
        state = Resume.NEEDS_IO_WAIT
    return Resumability(credit, state, None, hit - credit)


def proven(profile: CacheProfile, prompt_tokens: int, cached_tokens: int) -> CacheProfile:
    """The profile after an answer, whose counts are the engine's own: more than an open block leaves proves it closed.

    Engines before 0.33 give up the last whole block if they decode speculatively (EAGLE, MTP), and keep it if they do
    not; their labels do not say which.
    """
    if profile.rule is not Rule.OPEN_BLOCK or cached_tokens <= resumable(profile, prompt_tokens, prompt_tokens).tokens:
        return profile
    return closed(profile)


def closed(profile: CacheProfile) -> CacheProfile:
    """The same cache, known to keep its last whole block."""
    return replace(profile, rule=Rule.CHECKPOINTS) if profile.rule is Rule.OPEN_BLOCK else profile


def checkpoint(profile: CacheProfile, prompt_tokens: int) -> int:
    """Where the state that a finished prompt leaves behind lies (vLLM 0.33 `reachable_block_mask`)."""
    return _landed(profile, prompt_tokens - 1)


def intersection(profile: CacheProfile, bound: int, held: tuple[GroupHeld, ...]) -> int:
    """The deepest boundary at or below `bound` at which every group can resume; never the longest group.

    As vLLM `HybridKVCacheCoordinator.find_longest_cache_hit`: each group keeps the length or shortens it, until none
    does. Boundaries are common multiples of the groups' blocks.
    """
    if len(held) != len(profile.groups):
        raise ValueError(f"the profile has {len(profile.groups)} cache groups, not {len(held)}")
    length = bound - bound % profile.unit
    while length > 0:
        before = length
        for group, part in zip(profile.groups, held, strict=True):
            length = _reach(profile, group, part, length)
        if length == before:
            break
    return max(0, length)


def landing(block: int, match_unit: int | None, groups: tuple[Group, ...] = ()) -> int:
    """The finest boundary of a hit (vLLM `resolve_kv_cache_block_sizes`).

    The match unit counts where it divides every block and no group is a sliding window, since a window's hits stay
    on whole blocks; else the common multiple of all blocks.
    """
    if match_unit is None or match_unit >= block:
        return block
    for group in groups:
        if group.kind is Kind.SLIDING_WINDOW or group.block_size % match_unit:
            return block
    return match_unit if block % match_unit == 0 else block


def _landed(profile: CacheProfile, depth: int) -> int:
    """Where a hit lands if `depth` tokens are held in one piece; speculative decoding drops the last units."""
    return max(0, depth // profile.unit - profile.held_back) * profile.unit


def _with_states(profile: CacheProfile, bound: int, stored: int) -> int:
    """The deepest kept state at or below `bound` (vLLM 0.33 `reachable_block_mask`).

    A prompt leaves its state at its own end, and further ones every `retention` tokens. A prompt that branches off
    before that end finds only the periodic ones, or none.
    """
    if profile.rule is not Rule.CHECKPOINTS or profile.retention is None:
        return bound
    last = checkpoint(profile, stored)
    if last <= bound:
        return last
    if profile.retention == 0:
        return 0
    kept = bound - bound % profile.retention
    return kept - kept % profile.unit


def _reach(profile: CacheProfile, group: Group, held: GroupHeld, bound: int) -> int:
    """The deepest boundary at or below `bound` from which one group alone can resume."""
    unit = profile.unit
    if group.kind is Kind.RECURRENT:
        return max((at for at in held.states if 0 < at <= bound and at % unit == 0), default=0)
    end = min(bound, _landed(profile, held.end))
    if group.kind is Kind.SLIDING_WINDOW and held.start > 0:
        # vLLM `SlidingWindowManager`: ceil((window - 1) / block) blocks in a row, or a shorter run from the start.
        needed = -(-(group.window - 1) // group.block_size) * group.block_size
        return end if end - needed >= held.start else 0
    return end if held.start == 0 else 0


# -- what a worker declares ------------------------------------------------------------------------------------

_DIGITS = 12  # a longer number is no count of tokens or blocks
_LONGEST_BLOCK = 1 << 20


def profile_from_labels(
    labels: Mapping[str, str],
    *,
    hybrid: bool | None = None,
    held_back: int = 0,
    tiers: tuple[Tier, ...] | None = None,
) -> CacheProfile:
    """Profile of a worker from the labels of its `vllm:cache_config_info`, of any version; odd values are unknown.

    What the labels do not carry can be given: whether the model is a hybrid, what speculative decoding drops, and
    the tiers.
    """
    mode = labels.get("mamba_cache_mode", "").lower()
    state_block = _count(labels, "mamba_block_size")
    if hybrid is None:
        hybrid = mode in ("align", "all") or _has_state(labels)
    enabled = _flag(labels, "enable_prefix_caching")
    if hybrid and mode == "none":
        enabled = False  # a recurrent state is kept in no mode, whatever the other flag says
    attention_block = _block_size(labels)
    block = attention_block
    if hybrid and enabled is not False and state_block is not None:
        common = math.lcm(block, state_block)
        block = common if common <= _LONGEST_BLOCK else block
    window = _count(labels, "sliding_window")
    groups = (Group(Kind.SLIDING_WINDOW, block, window),) if window is not None else ()
    if tiers is None:
        tiers = (CPU_TIER,) if _positive(labels, "kv_offloading_size") else ()
    return CacheProfile(
        enabled=enabled,
        block_size=block,
        match_unit=_match_unit(labels) if hybrid else None,
        held_back=held_back,
        rule=_rule(labels, mode, hybrid=hybrid, window=window),
        retention=_whole(labels, "prefix_cache_retention_interval"),
        groups=groups,
        tiers=tiers,
        capacity_tokens=_capacity(labels, attention_block, hybrid=hybrid),
    )


def _has_state(labels: Mapping[str, str]) -> bool:
    """Whether a worker has recurrent layers: `mamba_cache_mode` alone says "none" for plain models too."""
    sized = _count(labels, "mamba_block_size") or _count(labels, "mamba_page_size_padded")
    return sized is not None or _flag(labels, "is_attention_free") is True


def _rule(labels: Mapping[str, str], mode: str, *, hybrid: bool, window: int | None) -> Rule:
    """0.33 and later declare a retention interval; earlier hybrids are taken to leave their last block open."""
    if hybrid or window is not None:
        if "prefix_cache_retention_interval" in labels or mode == "all":
            return Rule.CHECKPOINTS
        if hybrid:
            return Rule.OPEN_BLOCK
    return Rule.BLOCKS


def _block_size(labels: Mapping[str, str]) -> int:
    """The attention block: the effective one where given, as `block_size` may still be what was asked for."""
    size = _count(labels, "effective_attention_block_size") or _count(labels, "block_size") or 16
    return size if size <= _LONGEST_BLOCK else 16


def _match_unit(labels: Mapping[str, str]) -> int | None:
    return _count(labels, "cache_hit_alignment_tokens") or _count(labels, "prefix_match_unit")


def _capacity(labels: Mapping[str, str], block: int, *, hybrid: bool) -> int | None:
    """Tokens of one engine's cache. A hybrid's blocks are shared by its groups, so their count alone says too much."""
    declared = _count(labels, "kv_cache_size_tokens")
    if declared is not None or hybrid:
        return declared
    blocks = _count(labels, "num_gpu_blocks")
    return None if blocks is None else blocks * block


def _flag(labels: Mapping[str, str], name: str) -> bool | None:
    return {"true": True, "1": True, "false": False, "0": False}.get(labels.get(name, "").strip().lower())


def _whole(labels: Mapping[str, str], name: str) -> int | None:
    """A label as a whole number of 0 or more, else None."""
    text = labels.get(name, "").strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else None


def _count(labels: Mapping[str, str], name: str) -> int | None:
    """A label as a whole number above 0, else None."""
    return _whole(labels, name) or None


def _positive(labels: Mapping[str, str], name: str) -> bool:
    """Whether a label is a finite number above 0."""
    try:
        return 0 < float(labels.get(name, "")) < math.inf
    except ValueError:
        return False
