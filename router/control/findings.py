"""What the router has seen, in words: whether affinity works, what hinders it, and what to change.

These are the doctor's findings from the other side: it looks at engines, this at the traffic that came. Pure; one rule
is one function, and each speaks of the last decisions, so that what has been repaired goes away by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from router.cachemodel import CacheProfile
from router.control.recent import Recent, Traffic
from router.doctor.facts import Facts
from router.doctor.findings import COARSE_TOKENS, Finding, Level, compare, finer, turn_on
from router.workers.discovery import MetricsFacts

# With fewer prompts than this a share says nothing.
ENOUGH: Final = 30
NAMED: Final = 5
VERDICTS: Final = ("working", "idle")
ORDER: Final = (Level.UNREACHABLE, Level.PROBLEM, Level.ADVICE, Level.NOTE)


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker as far as findings go; `state` is "draining" while it is being drained."""

    id: str
    state: str
    models: Sequence[str]
    profile: CacheProfile


@dataclass(frozen=True, slots=True)
class View:
    """Everything that findings are made from. Times in seconds; `saved` is what caches spared, None while unknown."""

    workers: Sequence[WorkerView]
    recent: Recent
    sync_up: bool | None = None
    peers: int = 0
    shed: int = 0
    unserved: int = 0  # of those in shed: no worker could serve them
    saved: float | None = None
    ttft_hit: float | None = None
    ttft_without: float | None = None
    reuse: Mapping[str, str] = field(default_factory=dict)

    def profile_of(self, model: str) -> CacheProfile | None:
        """The profile with the lowest floor among the model's workers."""
        found = [worker.profile for worker in self.workers if model in worker.models]
        return min(found, key=lambda profile: profile.floor_tokens, default=None)


def floors(workers: Sequence[WorkerView]) -> dict[str, int]:
    """For each model the shortest prompt that some of its workers could reuse, in tokens."""
    found: dict[str, int] = {}
    for worker in workers:
        for model in worker.models:
            floor = worker.profile.floor_tokens
            found[model] = min(found.get(model, floor), floor)
    return found


def findings(view: View) -> list[Finding]:
    """Whether it works at all, then the gravest first."""
    found = [finding for rule in _RULES for finding in rule(view)]
    return sorted(found, key=lambda finding: (_rank(finding), ORDER.index(finding.level)))


def _rank(finding: Finding) -> int:
    if finding.level is Level.UNREACHABLE:
        return 0
    return 1 if finding.code in VERDICTS else 2


def _share(part: int, whole: int) -> str:
    share = 100 * part / whole
    return f"{share:.0f} %" if share >= 1 or not part else "under 1 %"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


# -- the fleet -------------------------------------------------------------------------------------------------


def _fleet(view: View) -> Iterator[Finding]:
    away: dict[str, list[str]] = {}
    for worker in view.workers:
        if worker.state not in ("ready", "probation"):
            away.setdefault(worker.state, []).append(worker.id)
    if sum(map(len, away.values())) == len(view.workers):
        how = "; ".join(f"{_names(ids)} {state}" for state, ids in away.items()) or "none is configured"
        ask = "The log says why; prefix-router doctor asks the workers themselves."
        yield Finding("no_worker", Level.UNREACHABLE, f"No worker can serve: {how}.", ask)
        return
    for state, ids in away.items():
        level = Level.NOTE if state in ("draining", "starting") else Level.PROBLEM
        verb = "is" if len(ids) == 1 else "are"
        text = f"{len(ids)} of {len(view.workers)} workers {verb} {state}: {_names(ids)}."
        change = {
            "unready": "Their probes fail; the log says how.",
            "ejected": "They broke several requests in a row; look at router_upstream_errors_total and at their logs.",
            "draining": "POST /router/workers/{worker}/resume ends that.",
        }.get(state)
        yield Finding(f"workers_{state}", level, text, change)


def _mixed(view: View) -> Iterator[Finding]:
    # The router has no labels of what engines declare, only what it made of them, which is what is compared. Of those
    # that declare nothing it knows nothing.
    facts = [
        Facts(worker.id, models=tuple(worker.models), profile=worker.profile, metrics=MetricsFacts(cache_labels={}))
        for worker in view.workers
        if worker.profile.enabled is not None
    ]
    yield from compare(facts)


def _replicas(view: View) -> Iterator[Finding]:
    if view.sync_up is False:
        text = "This replica is cut off from the others: it decides from its own memory, and misses what they learn."
        yield Finding("cut_off", Level.PROBLEM, text, "Is Redis up? The log has the reason.")
    elif view.sync_up and not view.peers:
        text = "This replica hears no other one."
        yield Finding("alone", Level.NOTE, text, "If others run: do they have the same Redis and sync.channel?")


def _room(view: View) -> Iterator[Finding]:
    crowded = view.shed - view.unserved
    if crowded > 0:
        text = f"{_requests(crowded)} refused for want of room since the start."
        change = "More workers, or more slots where engines are not full; router_shed_total has the causes."
        yield Finding("shed", Level.ADVICE, text, change)
    if view.unserved:
        text = f"{_requests(view.unserved)} refused since the start because no worker could serve."
        yield Finding("unserved", Level.ADVICE, text, "The log says when workers became unready, and why.")


def _requests(count: int) -> str:
    return f"{count:,} request was" if count == 1 else f"{count:,} requests were"


# -- the traffic of each model ---------------------------------------------------------------------------------


def _disabled(view: View) -> Iterator[Finding]:
    for model, traffic in view.recent.models.items():
        count = traffic.reasons["cache_disabled"]
        if count:
            where = [worker.id for worker in view.workers if model in worker.models and worker.profile.enabled is False]
            on = f" on {_names(where)}" if where else ""
            text = f"Prefix caching is off{on}: every prompt to {model} is computed from its first token."
            profile = view.profile_of(model) or CacheProfile()
            yield Finding("cache_disabled", Level.PROBLEM, text, turn_on(Facts("", profile=profile)))


def _floor(view: View) -> Iterator[Finding]:
    for model, traffic in view.recent.models.items():
        profile = view.profile_of(model)
        if profile is None or profile.enabled is False or profile.floor_tokens < COARSE_TOKENS:
            continue
        share = traffic.below_floor / max(1, traffic.prompts)
        if traffic.prompts < ENOUGH or share < 0.1 or traffic.finer:
            continue
        text = (
            f"{_share(traffic.below_floor, traffic.prompts)} of prompts to {model} are shorter than "
            f"{profile.floor_tokens:,} tokens, the least that its cache of {profile.block_size:,}-token blocks can "
            f"reuse: nothing of them is ever resumed."
        )
        level = Level.PROBLEM if share >= 0.5 else Level.ADVICE
        change = finer(Facts("", profile=profile)) if profile.unit == profile.block_size else None
        yield Finding("below_block_floor", level, text, change)


def _finer_than_told(view: View) -> Iterator[Finding]:
    for model, traffic in view.recent.models.items():
        profile = view.profile_of(model)
        if profile is not None and traffic.finer:
            text = (
                f"{traffic.finer:,} of the last {traffic.prompts:,} prompts to {model} were shorter than "
                f"{profile.floor_tokens:,} tokens and resumed something all the same: its cache is finer than it says."
            )
            change = f"prefix-router doctor shows what it does; models.{model}.cache corrects what the router believes."
            yield Finding("finer_than_told", Level.ADVICE, text, change)


def _able(traffic: Traffic) -> int:
    """Prompts that had something to look for, and a choice."""
    return sum(traffic.reasons[reason] for reason in ("hit", "miss", "spill"))


def _repeats(view: View) -> Iterator[Finding]:
    for model, traffic in view.recent.models.items():
        able = _able(traffic)
        if able < ENOUGH or traffic.reasons["hit"] + traffic.reasons["spill"] > 0.05 * able:
            continue
        if view.reuse.get(model) not in (None, "on"):
            text = f"Reuse of {model} is set to {view.reuse[model]}: matches are not acted upon."
            yield Finding("reuse_not_on", Level.NOTE, text, f"models.{model}.reuse: on")
            continue
        text = (
            f"{_share(traffic.reasons['hit'], able)} of the last {able:,} prompts to {model} began like an earlier one."
        )
        change = (
            "If they should repeat: a date, a request id or shuffled tools at the head of the prompt make each one new."
        )
        yield Finding("no_repeats", Level.ADVICE, text, change)


def _spills(view: View) -> Iterator[Finding]:
    for model, traffic in view.recent.models.items():
        able, spilled = _able(traffic), traffic.reasons["spill"]
        if able >= ENOUGH and spilled > 0.15 * able:
            text = (
                f"{_share(spilled, able)} of prompts to {model} went to another worker than the one that holds their "
                f"beginning, because that was too busy."
            )
            yield Finding("spills", Level.ADVICE, text, "More workers, or a higher policy.slack.")


def _short_falls(view: View) -> Iterator[Finding]:
    for worker, answers in view.recent.workers.items():
        judged, fallen = answers.judged, answers.verdicts["fell_short"]
        if judged >= ENOUGH and fallen > 0.15 * judged:
            text = (
                f"{_share(fallen, judged)} of the hits predicted on {worker} had less in cache than that: its cache is "
                f"smaller than the router believes, or was emptied."
            )
            yield Finding("fell_short", Level.PROBLEM, text, "See PrefixRouterFallbacks in the operating manual.")


def _reports(view: View) -> Iterator[Finding]:
    for model, traffic in view.recent.models.items():
        unreported, told = traffic.answers.unreported, traffic.answers.count
        if unreported >= ENOUGH and told < 0.05 * (told + unreported):
            text = f"Answers of {model} do not say what came from the cache, so that hits can't be confirmed."
            change = "--enable-prompt-tokens-details; in streams, clients ask with stream_options.include_usage"
            yield Finding("no_usage_details", Level.ADVICE, text, change)


# -- the good news ---------------------------------------------------------------------------------------------


def _verdict(view: View) -> Iterator[Finding]:
    reasons: Counter[str] = Counter()
    for traffic in view.recent.models.values():
        reasons.update(traffic.reasons)
    able = reasons.total() - reasons["short"] - reasons["bypass"]
    if not reasons:
        yield Finding("idle", Level.NOTE, "No request has come yet.", None)
    elif reasons["hit"] and able:
        parts = [f"{_share(reasons['hit'], able)} of the last {able:,} prompts found their beginning in a cache"]
        if view.ttft_hit and view.ttft_without and view.ttft_without > 1.2 * view.ttft_hit:
            times = view.ttft_without / view.ttft_hit
            parts.append(f"their first byte came {times:.1f} times sooner than without, on average")
        if view.saved:
            parts.append(f"{_duration(view.saved)} of prefill were spared since the start")
        yield Finding("working", Level.NOTE, "Affinity works: " + "; ".join(parts) + ".", None)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


_RULES: tuple[Callable[[View], Iterator[Finding]], ...] = (
    _fleet,
    _disabled,
    _floor,
    _finer_than_told,
    _mixed,
    _short_falls,
    _replicas,
    _repeats,
    _spills,
    _reports,
    _room,
    _verdict,
)
