"""From facts to findings: what helps, what hinders, and which arguments change it. Pure; one rule is one function."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from router.cachemodel import Rule
from router.doctor.facts import Facts, Version
from router.doctor.judge import Confidence, Judgement, Verdict

# From here on hybrids cache by themselves; before, they had to be told how to keep their state.
ALIGN_BY_ITSELF = Version(0, 33)
# A block as coarse as this is not one of plain attention, and wastes a good part of an ordinary prompt.
COARSE_TOKENS = 256
_MATCH_UNIT = 32
_UNREADY = (401, 403)
_NO_SUCH_ROUTE = (404, 405, 501)
_HALF = 0.5
_ASK_WORKERS = "Name the workers behind it, or give its settings with --config."
_FEW_BLOCKS = 512  # a hybrid with less room than this keeps the state of few conversations


class Level(enum.StrEnum):
    """How much a finding matters: `problem` makes the exit code 1, `unreachable` makes it 2."""

    NOTE = "note"
    ADVICE = "advice"
    PROBLEM = "problem"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: a code for machines, words for people, and what to change, if anything."""

    code: str
    level: Level
    text: str
    change: str | None = None


def diagnose(facts: Facts, judgement: Judgement | None) -> tuple[Finding, ...]:
    """Everything to be said of one worker, in the order of a person's questions."""
    if facts.trouble is not None:
        return (Finding("unreachable", Level.UNREACHABLE, f"It does not answer: {facts.trouble}."),)
    if facts.is_router:
        return (Finding("router", Level.UNREACHABLE, "It is a prefix-router, not an engine.", _ASK_WORKERS),)
    return tuple(finding for rule in _RULES for finding in rule(facts, judgement))


def compare(fleet: Sequence[Facts]) -> tuple[Finding, ...]:
    """What does not fit together among workers of one model."""
    kinds: dict[str, dict[tuple[bool, int, int], list[str]]] = defaultdict(lambda: defaultdict(list))
    for facts in fleet:
        if facts.labels is not None:
            profile = facts.profile
            for model in facts.models:
                kinds[model][(profile.enabled is not False, profile.block_size, profile.unit)].append(facts.url)
    return tuple(
        Finding(
            "mixed_fleet",
            Level.PROBLEM,
            f"Workers of {model} cache differently: "
            + "; ".join(f"{_cut(*kind)} on {', '.join(urls)}" for kind, urls in found.items())
            + ".",
            "Start all workers of a model with the same cache arguments.",
        )
        for model, found in kinds.items()
        if len(found) > 1
    )


def exit_code(findings: Iterable[Finding]) -> int:
    """0: nothing to change; 1: problems; 2: a worker could not be reached."""
    levels = {finding.level for finding in findings}
    return 2 if Level.UNREACHABLE in levels else int(Level.PROBLEM in levels)


def _cut(enabled: bool, block: int, unit: int) -> str:
    return f"blocks of {block:,} tokens, hits on every {unit:,}" if enabled else "caching off"


# -- the worker ------------------------------------------------------------------------------------------------


def _key(facts: Facts, judgement: Judgement | None) -> Iterator[Finding]:
    if facts.models_status not in _UNREADY:
        return
    if facts.with_key:
        text, change = "It refuses the key.", "Correct api_key of this worker, or auth.worker_api_key."
    else:
        text = "It asks for a key and got none."
        change = "Set api_key of this worker, or auth.worker_api_key (ROUTER_AUTH__WORKER_API_KEY)."
    yield Finding("key_refused" if facts.with_key else "key_missing", Level.PROBLEM, text, change)


def _health(facts: Facts, judgement: Judgement | None) -> Iterator[Finding]:
    status = facts.health_status
    if status in _NO_SUCH_ROUTE:
        text = "It has no /health, so it is no vLLM; its list of models stands in for its health."
        yield Finding("no_health_route", Level.NOTE, text)
    elif status is None or not 200 <= status < 300:
        said = "gave no answer in time" if status is None else f"says {status}"
        yield Finding("unhealthy", Level.PROBLEM, f"Its /health {said}: the router sends it nothing.")
    if facts.metrics.asleep:
        text = "Its engine sleeps: the router sends it nothing, and its cache is empty when it wakes."
        yield Finding("asleep", Level.PROBLEM, text, "POST /wake_up")


def _engines(facts: Facts, judgement: Judgement | None) -> Iterator[Finding]:
    """vLLM's own balancing among ranks knows loads only (0.33, `get_core_engine_for_request`)."""
    if facts.engines > 1:
        text = f"{facts.engines} engines share its address, each with its own cache, and it picks one by load alone."
        change = "Give each rank an address (--data-parallel-external-lb) and list them all, so that the router picks."
        yield Finding("several_engines", Level.ADVICE, text, change)


def _models(facts: Facts, judgement: Judgement | None) -> Iterator[Finding]:
    if facts.models or facts.models_status in _UNREADY:
        return
    said = "gave no answer in time" if facts.models_status is None else f"says {facts.models_status}"
    yield Finding("no_models", Level.PROBLEM, f"Its /v1/models {said} and names no model that could be routed to.")


def _metrics(facts: Facts, judgement: Judgement | None) -> Iterator[Finding]:
    if facts.labels is not None:
        return
    if facts.metrics_status == 200:
        text = "Its /metrics say nothing of its cache"
    else:
        text = "It has no /metrics" if facts.metrics_status is not None else "Its /metrics gave no answer"
    yield Finding(
        "cache_unknown",
        Level.ADVICE,
        f"{text}: how its cache works is unknown, and plain attention in blocks of 16 tokens is assumed.",
        "On vLLM leave out --disable-log-stats; for other engines set models.NAME.cache to what you know.",
    )


# -- its cache -------------------------------------------------------------------------------------------------


def _caching(facts: Facts, judgement: Judgement | None) -> Iterator[Finding]:
    if facts.labels is None or facts.profile.enabled is not False:
        return
    if facts.labels.get("enable_prefix_caching", "").lower() in ("true", "1"):
        text = "Prefix caching is asked for, but the model's recurrent state is kept in no mode: no prompt is reused."
    else:
        text = "Prefix caching is off: every prompt is computed from its first token."
    yield Finding("cache_disabled", Level.PROBLEM, text, turn_on(facts))


def turn_on(facts: Facts) -> str:
    """The arguments that turn caching on for this kind of model and release."""
    plain, state = "--enable-prefix-caching", "--mamba-cache-mode align"
    release = facts.release
    if release is not None and release >= ALIGN_BY_ITSELF:
        kept = " (the state of recurrent layers is then kept by itself)" if facts.hybrid is not False else ""
        return f"{plain}, and leave out --no-enable-prefix-caching{kept}"
    if facts.hybrid:
        return f"{plain} {state}"
    if facts.hybrid is None or release is None or facts.labels is None:
        return f"{plain}; for a model with recurrent layers, in releases before 0.33, also {state}"
    # An older release that declares the mode "none" may do so for a hybrid whose caching is off.
    return f"{plain}; if the model has recurrent layers, also {state}"


def _blocks(facts: Facts, judgement: Judgement | None) -> Iterator[Finding]:
    profile = facts.profile
    if facts.labels is None or profile.enabled is False:
        return
    coarse = profile.block_size >= COARSE_TOKENS
    asked = profile.match_unit
    if asked is not None and profile.unit != asked:
        yield Finding(
            "match_unit_idle",
            Level.PROBLEM,
            f"The match unit of {asked:,} has no effect: hits land on every {profile.unit:,} tokens.",
            f"Choose one below {profile.block_size:,} that divides it; sliding windows allow none.",
        )
    elif coarse and profile.unit == profile.block_size:
        yield Finding(
            "coarse_block",
            Level.PROBLEM,
            f"Hits land only on every {profile.unit:,} tokens: prompts under {profile.floor_tokens:,} tokens are never "
            f"reused, and of longer ones up to {(profile.dropped + 1) * profile.unit:,} tokens are computed again.",
            finer(facts),
        )


def finer(facts: Facts) -> str:
    """The argument that lets hits land between coarse blocks, where there is one."""
    profile = facts.profile
    if any(group.window for group in profile.groups):
        return "Layers with a sliding window allow no finer landing; send this model long prompts."
    unit = _MATCH_UNIT
    while profile.block_size % unit:
        unit //= 2
    if unit < 2:
        return "No match unit divides this block; send this model long prompts."
    known = facts.labels is not None and "prefix_match_unit" in facts.labels
    return f"--prefix-match-unit {unit}" + ("" if known else ", in a release that has it")


def _traffic(facts: Facts, judgement: Judgement | None) -> Iterator[Finding]:
    profile, lengths = facts.profile, facts.lengths
    if facts.labels is None or profile.enabled is False:
        return
    if lengths is None or not lengths.total:
        yield Finding("traffic_unknown", Level.NOTE, "How long its prompts are is not known.")
        return
    least, most = lengths.below(profile.floor_tokens)
    low, high = least / lengths.total, most / lengths.total
    share = f"{low:.0%}" if round(low, 2) == round(high, 2) else f"{low:.0%} to {high:.0%}"
    text = f"{share} of its {lengths.total:,} prompts were under the floor of {profile.floor_tokens:,} tokens."
    if low < _HALF or profile.floor_tokens < COARSE_TOKENS:
        yield Finding("traffic", Level.NOTE, text)
    else:
        change = "Let hits land finer, or send short prompts to another model."
        yield Finding("below_block_floor", Level.PROBLEM, text, change)


def _states(facts: Facts, judgement: Judgement | None) -> Iterator[Finding]:
    profile, labels = facts.profile, facts.labels
    if labels is None or profile.enabled is False or profile.rule is Rule.BLOCKS:
        return
    if profile.rule is Rule.CHECKPOINTS and profile.retention == 0:
        text = "State is kept at the end of each prompt only: a prompt that branches off earlier finds none at first."
        change = f"--prefix-cache-retention-interval, a multiple of {profile.block_size:,}, keeps more."
        yield Finding("last_state_only", Level.NOTE, text, change)
    blocks = labels.get("num_gpu_blocks", "")
    if facts.hybrid and blocks.isascii() and blocks.isdecimal() and 0 < int(blocks[:12]) < _FEW_BLOCKS:
        text = (
            f"Its cache has {int(blocks[:12]):,} blocks, states included: conversations that take turns evict others."
        )
        yield Finding("few_states", Level.NOTE, text, "Fewer --max-num-seqs, or more GPU memory, leave more of them.")


def _tiers(facts: Facts, judgement: Judgement | None) -> Iterator[Finding]:
    if facts.labels is None or facts.profile.enabled is False:
        return
    media = [tier.medium for tier in facts.profile.tiers]
    if facts.external_cache:
        media.append("an outside cache")
    if media:
        text = f"Below its GPU it keeps blocks in: {', '.join(media)}. Reading them back takes a wait."
    else:
        text = "It declares no cache below its GPU: what is evicted there is computed again."
    yield Finding("tiers", Level.NOTE, text)


# -- the probe -------------------------------------------------------------------------------------------------


def _usage(facts: Facts, judgement: Judgement | None) -> Iterator[Finding]:
    sent = facts.probe.sent if facts.probe is not None else ()
    if not sent:
        return
    if any(one.cached_tokens is not None for one in sent):
        yield Finding("usage_details", Level.NOTE, "Its answers report what came from the cache.")
    else:
        text = "Its answers do not report what came from the cache, so predicted hits cannot be checked against them."
        yield Finding("no_usage_details", Level.ADVICE, text, "--enable-prompt-tokens-details")


def _probe(facts: Facts, judgement: Judgement | None) -> Iterator[Finding]:
    if facts.probe is not None and facts.probe.skipped is not None:
        yield Finding("no_probe", Level.NOTE, f"The probe was not completed: {facts.probe.skipped}.")
    if judgement is None:
        return
    how = f"{judgement.confidence}: {'; '.join(judgement.evidence)}"
    off = facts.profile.enabled is False
    if judgement.verdict is Verdict.HIT:
        yield Finding("probe_hit", Level.NOTE, f"Repeated prompts hit the cache ({how}).")
    elif judgement.verdict is Verdict.UNCLEAR:
        text = f"Whether repeated prompts hit the cache is unclear ({how})."
        yield Finding("probe_unclear", Level.NOTE, text, "Run it again while the worker is idle.")
    else:
        # Weak evidence is no reason to stop a deployment.
        level = Level.NOTE if judgement.confidence is Confidence.WEAK else Level.PROBLEM
        why = "as its settings say" if off else "though the cache should have helped"
        if facts.engines > 1 and not off:
            why = "though another of its engines may have had it in its cache"
        change = None if off or facts.labels is not None else "Turn on its prefix cache."
        yield Finding("probe_flat", level, f"A repeated prompt cost what a new one cost, {why} ({how}).", change)


_RULES: tuple[Callable[[Facts, Judgement | None], Iterator[Finding]], ...] = (
    _key,
    _health,
    _models,
    _engines,
    _metrics,
    _caching,
    _blocks,
    _traffic,
    _states,
    _tiers,
    _usage,
    _probe,
)
