"""What would be chosen for a body, and every worker's terms; nothing is sent, counted or claimed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from router.control.context import ControlContext
from router.control.exchange import answer, read_body
from router.errors import BadRequest, Unavailable
from router.policy import NO_MATCH, Decision, Match, rendezvous
from router.policy_work import Terms
from router.prompt import read_prompt
from router.routes import ROUTES
from router.settings import DEFAULT_TENANT
from router.workers.health import State
from router.workers.registry import Worker
from router.workers.selection import Inquiry

# Bodies of any request fit in, so a few of them at a time are all that memory is spent on.
MAX_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the selector said: `decision` is None if the request would be refused."""

    inquiry: Inquiry
    matches: dict[str, Match]
    candidates: Sequence[Worker] = ()
    decision: Decision[Worker] | None = None
    refusal: Unavailable | None = None
    work: Mapping[str, Terms] = field(default_factory=dict)

    @property
    def free(self) -> list[Worker]:
        """Candidates with a slot; all of them where none has one, since the choice is then among all."""
        return [worker for worker in self.candidates if worker.load < worker.slots] or list(self.candidates)


class Explain:
    """`POST /router/explain`."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        self._busy = 0

    async def explain(
        self,
        request: Request,
        endpoint: Annotated[str, Query(max_length=128)] = "/v1/chat/completions",
        tenant: Annotated[str, Query(max_length=64)] = DEFAULT_TENANT,
    ) -> Response:
        """The body is that of a request to `endpoint`; a body it would refuse is refused alike."""
        route = ROUTES.get(endpoint)
        if route is None:
            raise BadRequest("endpoint: not an inference route.", param="endpoint")
        if self._busy >= MAX_AT_ONCE:
            raise Unavailable("Other requests are being explained; try again in a moment.", retry_after=1)
        limits = self._context.settings.limits
        self._busy += 1
        try:
            body = await read_body(request, limits.media_body_bytes if route.media else limits.body_bytes)
            content_type = request.headers.get("content-type", "").encode("latin-1")
            prompt = read_prompt(route.form, body, content_type)
            # Its salt becomes the tenant's, as a request's would.
            self._context.prepare(tenant, prompt, body)
            inquiry = self._context.selector.inquire(prompt, tenant)
            return answer({"endpoint": endpoint, **self._terms(self._look(inquiry))})
        finally:
            self._busy -= 1

    def _look(self, inquiry: Inquiry) -> Outlook:
        selector, now = self._context.selector, self._context.clock()
        try:
            decision, matches, candidates = selector.preview(inquiry, now)
        except Unavailable as error:
            return Outlook(inquiry, selector.matches(inquiry, now), refusal=error)
        return Outlook(inquiry, matches, candidates, decision, work=selector.terms(inquiry, candidates, matches, now))

    def _terms(self, outlook: Outlook) -> dict[str, Any]:
        inquiry, decision, refusal = outlook.inquiry, outlook.decision, outlook.refusal
        terms: dict[str, Any] = {
            "model": inquiry.model,
            "policy": self._context.settings.policy.name,
            "reuse": inquiry.settings.reuse,
            "prompt": _prompt_terms(inquiry),
            "chosen": None,
        }
        if decision is not None:
            terms["chosen"] = decision.worker.id
            terms["reason"] = decision.reason.value
            terms["matched_blocks"] = decision.match.blocks
            terms["resumable_tokens"] = decision.match.resumable
            terms["load"] = decision.load
            terms["min_load"] = decision.min_load
            terms["slack"] = decision.slack
            terms["runner_up"] = decision.runner_up.id if decision.runner_up else None
            # Every candidate's slots are taken: the request would wait, and the choice be made again then.
            terms["would_wait"] = decision.load >= decision.worker.slots
        if refusal is not None:
            terms["refusal"] = {"status": refusal.status, "code": refusal.code, "message": refusal.message}
        ranks = _rendezvous_ranks(outlook)
        terms["workers"] = [self._worker_terms(worker, outlook, ranks) for worker in self._context.registry]
        return terms

    def _worker_terms(self, worker: Worker, outlook: Outlook, ranks: dict[str, int]) -> dict[str, Any]:
        removed_by = _removed_by(worker, outlook)
        match = outlook.matches.get(worker.id, NO_MATCH)
        decision = outlook.decision
        within_slack = None
        if decision is not None and removed_by is None and self._context.settings.policy.name == "slack":
            within_slack = worker.load <= decision.min_load + decision.slack
        model = worker.facts.models.get(outlook.inquiry.model)
        work = outlook.work.get(worker.id)
        return {
            "worker": worker.id,
            "state": worker.state.value,
            "draining": worker.draining,
            "removed_by": removed_by,
            # Not well, but asked because nobody else is.
            "last_resort": worker in outlook.candidates and not worker.usable,
            "window": model.window if model else None,
            "matched_blocks": match.blocks,
            "resumable_tokens": match.resumable,
            "withheld": match.withheld.value if match.withheld else None,
            "load": worker.load,
            "slots": worker.slots,
            "within_slack": within_slack,
            "expected_tokens": match.expected,
            # In tokens to compute, for candidates under policy `work`; the least score wins.
            "work": None if work is None else {**work._asdict(), "score": work.score},
            "rendezvous_rank": ranks.get(worker.id),
        }


def _prompt_terms(inquiry: Inquiry) -> dict[str, Any]:
    prompt = inquiry.prompt
    return {
        "bytes": prompt.size,
        "blocks": len(inquiry.hashes),
        "tokens": inquiry.tokens,
        "tokens_exact": prompt.tokens is not None,
        "tokens_per_byte": inquiry.tokens_per_byte,
        "max_tokens": prompt.max_tokens,
        "window_needed": inquiry.window,
        "salted": bool(prompt.salt),
        # Such a request goes to the worker that keeps the response it continues, where that is known.
        "continues_response": bool(prompt.previous_response),
    }


def _removed_by(worker: Worker, outlook: Outlook) -> str | None:
    """The first filter that the worker did not pass; None for those among which the policy chose."""
    if worker in outlook.candidates:
        return None if worker in outlook.free else "slots"
    if outlook.inquiry.model not in worker.facts.models:
        return "model"
    if worker.draining:
        return "draining"
    if worker.state is State.EJECTED:
        return "ejected"
    if worker.state is State.PROBATION and worker.probation_busy:
        return "probation"
    return "window" if worker.usable else "not_ready"


def _rendezvous_ranks(outlook: Outlook) -> dict[str, int]:
    """The freest candidates in the order in which all replicas prefer them for this prompt, from 1."""
    if outlook.decision is None:
        return {}
    freest = [worker for worker in outlook.free if worker.load == outlook.decision.min_load]
    freest.sort(key=lambda worker: rendezvous(worker.id, outlook.inquiry.key), reverse=True)
    return {worker.id: rank for rank, worker in enumerate(freest, 1)}
