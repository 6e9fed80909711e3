"""The account of one decision, made afterwards: every candidate with its terms, and why the winner won by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from router.decisions import DecisionRecord
from router.policy import NO_MATCH, Match, Reason, rendezvous
from router.policy_work import WEIGHTS
from router.workers.evidence import Evidence, Removed
from router.workers.health import State
from router.workers.registry import Worker

SHOWN: Final = 256
BY_LOAD: Final = frozenset({Reason.SHORT, Reason.BYPASS, Reason.CACHE_DISABLED, Reason.BELOW_BLOCK_FLOOR, Reason.MISS})


@dataclass(frozen=True, slots=True)
class Stand:
    """One candidate as the decision saw it; `score` where the policy has one (less is better)."""

    worker: str
    slots: int
    free: bool
    load: int
    matched: int
    resumable: int
    withheld: str | None
    within_slack: bool | None
    terms: Mapping[str, float] | None

    @property
    def score(self) -> float | None:
        return None if self.terms is None else self.terms.get("score")


def account(record: DecisionRecord, evidence: Evidence | None, policy: str, *, steered: bool = True) -> dict[str, Any]:
    """Plain values for JSON. Without evidence (`complete` is false) the winner and the runner-up are all there is.

    `steered`: the model's matches may steer.
    """
    if evidence is None:
        rows = [_own_row(record), *_runner_up_row(record)]
        return {
            "complete": False,
            "policy": policy,
            "because": [*_outcome(record)],
            "margin": None,
            "candidates": rows,
        }
    stands = _stands(record, evidence, policy, steered=steered and record.blocks > 0)
    return {
        "complete": True,
        "policy": policy,
        "because": [*_because(record, stands, evidence.key), *_outcome(record)],
        "margin": _margin(record, stands),
        "candidates": [_row(stand, stand.worker == record.worker) for stand in stands][:SHOWN]
        + [_removed_row(removed) for removed in evidence.removed][:SHOWN],
    }


def _stands(record: DecisionRecord, evidence: Evidence, policy: str, *, steered: bool) -> list[Stand]:
    """All candidates, the winner first, then those that came closest."""
    free = {worker.id for worker in evidence.free}
    limit = record.min_load + record.slack if policy == "slack" else None
    terms = _terms(record, evidence, evidence.matches if steered else {})
    stands = [
        _stand(worker, load, worker.id in free, evidence, limit, terms.get(worker.id))
        for worker, load in zip(evidence.candidates, evidence.loads, strict=True)
    ]
    return sorted(stands, key=lambda stand: (stand.worker != record.worker, not stand.free, *_order(stand)))


def _order(stand: Stand) -> tuple[float, float, float]:
    if stand.score is not None:
        return (stand.score, stand.load, 0)
    return (stand.within_slack is False, -stand.resumable, stand.load)


def _terms(record: DecisionRecord, evidence: Evidence, matches: Mapping[str, Match]) -> dict[str, Mapping[str, float]]:
    """The parts of each score in tokens, by worker. What is known of none but the score waits in the queue."""
    found: dict[str, Mapping[str, float]] = {}
    if evidence.scores is None or evidence.decoding is None:
        return found
    for worker, score, decoding in zip(evidence.free, evidence.scores, evidence.decoding, strict=True):
        uncached = WEIGHTS.uncached * max(0, record.prompt_tokens - matches.get(worker.id, NO_MATCH).expected)
        busy = WEIGHTS.decoding * decoding
        found[worker.id] = {
            "queued": max(0.0, score - uncached - busy),
            "uncached": uncached,
            "decoding": busy,
            "score": score,
        }
    return found


def _stand(
    worker: Worker, load: int, free: bool, evidence: Evidence, limit: int | None, terms: Mapping[str, float] | None
) -> Stand:
    match = evidence.matches.get(worker.id, NO_MATCH)
    return Stand(
        worker=worker.id,
        slots=worker.slots,
        free=free,
        load=load,
        matched=match.blocks,
        resumable=match.resumable,
        withheld=match.withheld.value if match.withheld else None,
        within_slack=None if limit is None or not free else load <= limit,
        terms=terms,
    )


# -- why, in words ---------------------------------------------------------------------------------------------


def _because(record: DecisionRecord, stands: Sequence[Stand], key: int) -> list[str]:
    """Sentences, the most important first."""
    own = next((stand for stand in stands if stand.worker == record.worker), None)
    others = [stand for stand in stands if stand.worker != record.worker and stand.free]
    if own is None:
        return []
    full = [stand for stand in stands if not stand.free]
    said = [
        f"{len(full)} more had no free slot." if len(full) > 1 else f"{one.worker} had no free slot." for one in full
    ]
    if not others:
        return [f"{own.worker} was the only candidate with a free slot." if full else "It was the only candidate."]
    if own.score is not None:
        return [_least_work(own, others), *said]
    if own.resumable > 0 and record.reason in (Reason.HIT, Reason.SPILL):
        return [_most_to_resume(own, others, record), *_too_busy(own, others, record), *said]
    return [*_too_busy(own, others, record), _freest(own, others, key), *said]


def _least_work(own: Stand, others: Sequence[Stand]) -> str:
    best = min(others, key=lambda stand: stand.score if stand.score is not None else float("inf"))
    if own.score is None or best.score is None:
        return "It had the least work."
    if best.score - own.score < 0.5:
        return f"It and {best.worker} had equally little to compute ({own.score:,.0f} tokens of work)."
    return (
        f"It had the least to compute: {own.score:,.0f} tokens of work against {best.score:,.0f} on {best.worker}, "
        f"{best.score - own.score:,.0f} fewer."
    )


def _most_to_resume(own: Stand, others: Sequence[Stand], record: DecisionRecord) -> str:
    near = [stand for stand in others if stand.within_slack is not False]
    best = max(near, key=lambda stand: (stand.resumable, stand.matched), default=None)
    if best is None or best.resumable == 0:
        return (
            f"It could resume {own.resumable:,} of about {record.prompt_tokens:,} tokens, and nobody else within reach "
            f"any of them."
        )
    if best.resumable < own.resumable:
        ahead = own.resumable - best.resumable
        return f"It could resume {own.resumable:,} tokens, {ahead:,} more than {best.worker}, the next within reach."
    how = "carried less" if own.load < best.load else "comes first in the order that all replicas share"
    return f"It and {best.worker} could both resume {own.resumable:,} tokens; it {how}."


def _too_busy(own: Stand, others: Sequence[Stand], record: DecisionRecord) -> list[str]:
    """Who held more and was passed over for its load."""
    limit = record.min_load + record.slack
    return [
        f"{stand.worker} could have resumed {stand.resumable:,} tokens, but with {stand.load} in flight it was beyond "
        f"the limit of {limit}: the freest had {record.min_load}, and this prompt may cost {record.slack} more."
        for stand in others
        if stand.within_slack is False and stand.resumable > own.resumable
    ][:3]


def _freest(own: Stand, others: Sequence[Stand], key: int) -> str:
    least = min(stand.load for stand in others)
    if own.load < least:
        return f"It had {own.load} in flight, the next {least}."
    if own.load > least:
        return f"It had {own.load} in flight and the freest {least}; the policy does not look for the freest alone."
    equal = [stand.worker for stand in others if stand.load == own.load]
    first = max([own.worker, *equal], key=lambda worker: rendezvous(worker, key))
    how = " and comes first in the order that all replicas share for this beginning" if first == own.worker else ""
    return f"It had {own.load} in flight, as few as {len(equal)} other{'s' * (len(equal) > 1)}{how}."


def _outcome(record: DecisionRecord) -> list[str]:
    """What the engine said afterwards."""
    if record.reported_cached_tokens is None:
        if record.outcome == "ok" and record.reported_prompt_tokens is not None:
            return ["The engine did not report what came from its cache."]
        return []
    whole = f" of {record.reported_prompt_tokens:,}" if record.reported_prompt_tokens else ""
    predicted = record.predicted_cached_tokens or 0
    verdict = {"confirmed": "as predicted", "fell_short": "less than predicted", "better": "more than predicted"}
    judged = verdict.get(record.verdict or "", "no verdict")
    return [
        f"The engine reported {record.reported_cached_tokens:,}{whole} prompt tokens from its cache, "
        f"where {predicted:,} were predicted: {judged}."
    ]


def _margin(record: DecisionRecord, stands: Sequence[Stand]) -> dict[str, Any] | None:
    """By how much the winner was ahead of the next candidate, and in what."""
    own = next((stand for stand in stands if stand.worker == record.worker), None)
    others = [stand for stand in stands if stand.worker != record.worker and stand.free]
    if own is None or not others:
        return None
    if own.score is not None:
        best = min(others, key=lambda stand: stand.score if stand.score is not None else float("inf"))
        return {"over": best.worker, "in": "score", "by": round((best.score or 0.0) - own.score, 1)}
    if own.resumable > 0 and record.reason == Reason.HIT:
        near = [stand for stand in others if stand.within_slack is not False] or others
        best = max(near, key=lambda stand: stand.resumable)
        return {"over": best.worker, "in": "resumable_tokens", "by": own.resumable - best.resumable}
    best = min(others, key=lambda stand: stand.load)
    return {"over": best.worker, "in": "load", "by": best.load - own.load}


# -- rows ------------------------------------------------------------------------------------------------------


def _row(stand: Stand, chosen: bool) -> dict[str, Any]:
    return {
        "worker": stand.worker,
        "chosen": chosen,
        "removed_by": None if stand.free else "slots",
        "matched_blocks": stand.matched,
        "resumable_tokens": stand.resumable,
        "withheld": stand.withheld,
        "load": stand.load,
        "slots": stand.slots,
        "within_slack": stand.within_slack,
        "terms": None if stand.terms is None else {name: round(value, 1) for name, value in stand.terms.items()},
    }


def _removed_row(removed: Removed) -> dict[str, Any]:
    worker, state, draining = removed
    return {"worker": worker.id, "chosen": False, "removed_by": _filter_of(state, draining)}


def _filter_of(state: State, draining: bool) -> str:
    """The first filter that a worker in this state does not pass.

    A ready one is set aside: its window is too small, it refused somebody a moment ago, or it was tried already.
    """
    if draining:
        return "draining"
    if state is State.READY:
        return "set_aside"
    return {State.EJECTED: "ejected", State.PROBATION: "probation"}.get(state, "not_ready")


def _own_row(record: DecisionRecord) -> dict[str, Any]:
    return {
        "worker": record.worker,
        "chosen": True,
        "removed_by": None,
        "matched_blocks": record.matched_blocks,
        "resumable_tokens": record.resumable_tokens,
        "load": record.load,
    }


def _runner_up_row(record: DecisionRecord) -> list[dict[str, Any]]:
    if record.runner_up is None:
        return []
    return [{"worker": record.runner_up, "chosen": False, "removed_by": None}]
