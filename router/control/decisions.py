"""The last decisions, newest first, with a sentence on why each fell as it did."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from router.control.account import account
from router.control.context import ControlContext
from router.control.exchange import answer
from router.decisions import DecisionRecord
from router.policy import Reason
from router.workers.evidence import Evidence

WHY: dict[str, str] = {
    Reason.HIT: (
        "The worker holds {matched_blocks} of the prompt's {blocks} blocks, about {resumable_tokens:,} tokens to "
        "resume. It had {load} in flight and the freest {min_load}; the prompt's size allows {slack} more."
    ),
    Reason.MISS: "No candidate gains from what it holds of this prompt, or the policy does not ask; load decided.",
    Reason.SPILL: (
        "Worker {runner_up} holds more of the prompt, but it has no slot, or has more in flight than the freest "
        "candidate ({min_load}) and what the prompt's size allows beyond that ({slack})."
    ),
    Reason.SHORT: "The prompt is shorter than one block, so there is nothing to look for; load decided.",
    Reason.CACHE_DISABLED: "The worker's engine runs without prefix caching, so affinity stands aside; load decided.",
    Reason.BELOW_BLOCK_FLOOR: "What is shared is less than the engine's smallest resumable piece; load decided.",
    Reason.ONLY: "It was the only candidate.",
    Reason.BYPASS: "Requests of this kind have no prefix to resume, or reuse is off for the model; load decided.",
}
# Where it is said otherwise under a policy that weighs work in tokens.
WHY_WORK: dict[str, str] = {
    Reason.HIT: (
        "The worker holds {matched_blocks} of the prompt's {blocks} blocks, about {resumable_tokens:,} tokens to "
        "resume, and with all that waits there it has the least left to compute."
    ),
    Reason.SPILL: (
        "Worker {runner_up} holds more of the prompt, but it has no slot, or more work waits there than that would "
        "save."
    ),
}


class Decisions:
    """Looks into the ring."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context

    async def list(
        self,
        request_id: Annotated[str | None, Query(max_length=128)] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Response:
        """All attempts of one request with every candidate's terms, or the last of all."""
        ring, now = self._context.ring, self._context.clock()
        found = ring.find(request_id or None, limit)
        if not request_id:
            return answer({"decisions": [self._shown(record, now) for record in found]})
        return answer(
            {"replica": self._context.replica, "decisions": [self._accounted(record, now) for record in found]}
        )

    def _accounted(self, record: DecisionRecord, now: float) -> dict[str, Any]:
        """One decision with the account of its candidates."""
        settings = self._context.settings
        model = settings.models.get(record.model)
        seen = self._context.ring.evidence_of(record)
        kept = Evidence(*seen) if isinstance(seen, tuple) else None
        steered = model is None or model.reuse == "on"
        return {
            **self._shown(record, now),
            "account": account(record, kept, settings.policy.name, steered=steered),
        }

    def _shown(self, record: DecisionRecord, now: float) -> dict[str, Any]:
        return shown(record, now, self._context.settings.policy.name)


def shown(record: DecisionRecord, now: float, policy: str = "") -> dict[str, Any]:
    """One decision for people: `at` in Unix seconds, and a sentence on why."""
    fields = record.as_dict()
    age = max(0.0, now - record.at)
    fields["at"] = round(time.time() - age, 3)
    fields["age_seconds"] = round(age, 3)
    fields["why"] = why(record, policy)
    return fields


def why(record: DecisionRecord, policy: str = "") -> str:
    """The decision's reason in words."""
    template = WHY.get(record.reason, "")
    if policy == "work":
        template = WHY_WORK.get(record.reason, template)
    return template.format(
        matched_blocks=record.matched_blocks,
        blocks=record.blocks,
        resumable_tokens=record.resumable_tokens,
        load=record.load,
        min_load=record.min_load,
        slack=record.slack,
        runner_up=record.runner_up or "another",
    )
