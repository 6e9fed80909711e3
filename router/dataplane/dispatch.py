"""The life of one request, from its body to the end of its answer.

Choose a worker, send the exact bytes, hold the answer back until its first body byte, ask one other worker if that
fails, then pass the bytes through as they come. Whatever happens, the lease ends once and the outcome is counted once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from router import errors
from router.dataplane.admission import Admission
from router.dataplane.attempts import RULES, SPARE_SECONDS, Outcome, RetryBudget, outcome_of_error, outcome_of_status
from router.dataplane.client import Client
from router.dataplane.decision_log import DecisionLog
from router.dataplane.headers import Headers, upstream_head
from router.dataplane.job import Job
from router.dataplane.pools import Pools, Target
from router.dataplane.relay import Relay, without_redirect
from router.dataplane.spans import Tracer
from router.dataplane.stored import StoredResponses
from router.dataplane.tenancy import Tenancy
from router.dataplane.upstream import UpstreamResponse
from router.decisions import DecisionRecord, DecisionRing
from router.metrics import Metrics
from router.prompt import read_prompt, with_usage
from router.routes import Route
from router.settings import Settings
from router.workers import passive
from router.workers.health import State
from router.workers.registry import Registry, Worker
from router.workers.selection import Placement, Selector


class Dispatcher:
    """Serves requests; one for all of a process."""

    def __init__(
        self,
        settings: Settings,
        selector: Selector,
        admission: Admission,
        pools: Pools,
        relay: Relay,
        metrics: Metrics,
        ring: DecisionRing,
        log: DecisionLog,
        stored: StoredResponses,
        tenancy: Tenancy,
        *,
        clock: Callable[[], float],
        draw: Callable[[], float],
        poke: Callable[[Worker], None],
    ) -> None:
        self._settings = settings
        self._selector = selector
        self._admission = admission
        self._pools = pools
        self._relay = relay
        self._metrics = metrics
        self._ring = ring
        self._log = log
        self._stored = stored
        self._tenancy = tenancy
        self._clock = clock
        self._draw = draw
        self._poke = poke
        self._budget = RetryBudget(settings.retry.budget_share, settings.retry.budget_min)
        self._waiting: dict[str, dict[Job, asyncio.Task[None]]] = {}
        # Told when a request is on its way and its decision is taken down, and when one has ended; they must not raise.
        self.sent_hooks: list[Callable[[], None]] = []
        self.ended_hooks: list[Callable[[Job], None]] = []
        self.tracer: Tracer | None = None
        selector.registry.hooks.state.append(self._state_changed)

    @property
    def registry(self) -> Registry:
        return self._selector.registry

    def reconfigure(self, settings: Settings) -> None:
        """Other rules for what comes next; the budget for retries goes on with what it has counted."""
        self._settings = settings
        self._budget.reconfigure(settings.retry.budget_share, settings.retry.budget_min)

    async def serve(self, client: Client, route: Route) -> None:
        """Serve one request of an inference route; raises RouterError while nothing was sent."""
        body = client.take_body()
        began = self._clock()
        prompt = read_prompt(route.form, body, client.fields.get(b"content-type", b""))
        body = self._tenancy.prepare(client.tenant, prompt, body)
        inquiry = self._selector.inquire(prompt, client.tenant)
        prompt.prefix = b""  # hashed; as large as the body, and of no more use while the answer streams
        if prompt.previous_response:
            # Only the worker that keeps the response can continue it.
            inquiry.pinned = await self._stored.find(prompt.previous_response)
        asking = with_usage(prompt, body) if self._settings.calibration.ask_usage else None
        job = Job(client, route, asking or body, inquiry, began, asked=asking is not None)
        if self.tracer is not None:
            job.span = self.tracer.begin(client, route)
        self._budget.request(began)
        try:
            await self._attempts(job)
        except errors.RouterError as error:
            job.failure = error
            _close(job.record, "shed" if isinstance(error, errors.Unavailable) else "upstream_error", error.code)
            raise
        except asyncio.CancelledError:
            _close(job.record, "client_abort" if client.gone else "shed", None)
            raise
        finally:
            self._finish(job)

    async def _attempts(self, job: Job) -> None:
        """Ask one worker, and where the rules allow it another, until there is an answer to pass on."""
        while True:
            try:
                placement = self._place(job) or await self._wait_for_place(job)
            except errors.Unavailable as error:
                self._give_up(job, job.failure or error)
                return
            try:
                answer = await self._open(job, placement)
                if isinstance(answer, UpstreamResponse):
                    outcome = self._may_be_kept(job, placement.worker, answer)
                    if outcome is None:
                        passage = self._relay.begin(job, placement, answer)
                        if not passage.done:
                            await self._relay.rest(passage)
                        return
                    job.kept = await self._relay.keep(answer)
                else:
                    outcome = self._failed(job, placement.worker, answer)
                    if outcome is None:
                        return
            finally:
                placement.release()
            _close(job.record, "retried", outcome.value)
            job.tried.append(placement.worker.id)
            job.cause = outcome

    def _failed(self, job: Job, worker: Worker, error: errors.RouterError) -> Outcome | None:
        """There is no answer: why another worker is to be asked, or None when the request is done with."""
        outcome = outcome_of_error(error)
        self._note(worker, outcome)
        if self._may_retry(job, outcome):
            job.failure = error
            return outcome
        self._give_up(job, error)
        return None

    def _may_be_kept(self, job: Job, worker: Worker, response: UpstreamResponse) -> Outcome | None:
        """Why another worker is to be asked before this answer is passed on; None: it is to be passed on."""
        outcome = outcome_of_status(response.status)
        if outcome is Outcome.ANSWERED:
            for other in job.refused_by:
                self._strike(other, Outcome.OVERLOADED)
            return None
        self._note(worker, outcome)
        if outcome is Outcome.OVERLOADED:
            job.refused_by.append(worker)
        return outcome if self._may_retry(job, outcome) else None

    def _give_up(self, job: Job, error: errors.RouterError) -> None:
        """Pass on what a worker has said, if any has said something; else raise the error."""
        if job.kept is not None:
            self._relay.send_kept(job, job.kept)
            return
        if isinstance(error, errors.ConnectFailed) and not any(
            worker.usable for worker in self.registry.serving(job.inquiry.model)
        ):
            # The attempt was a last resort, and nobody was there.
            raise errors.Unavailable("No worker is there to serve the request.", retry_after=2) from error
        raise error

    def _place(self, job: Job) -> Placement | None:
        """Find the request a worker with room, and send it there at once where a connection rests."""
        job.client.stage = "queue"
        inquiry = job.inquiry
        if not self._admission.idle(inquiry.model):
            return None
        choice = self._selector.choose(inquiry, self._clock(), job.tried)
        if choice is None:
            return None
        decided = self._clock()
        target = self._pools.of(choice.worker)
        job.head = _head_of(job, target)
        job.begun = target.pool.begin(job.head, job.body)
        placement = self._selector.settle(inquiry, choice)
        self._describe(job, placement, decided)
        if job.begun is not None:
            for hook in self.sent_hooks:
                hook()
        return placement

    async def _wait_for_place(self, job: Job) -> Placement:
        """The same where others wait, or no worker has room."""
        inquiry = job.inquiry
        placement = await self._admission.place(
            inquiry.model, lambda: self._selector.place(inquiry, self._clock(), job.tried)
        )
        job.head = _head_of(job, self._pools.of(placement.worker))
        self._describe(job, placement, self._clock())
        return placement

    async def _open(self, job: Job, placement: Placement) -> UpstreamResponse | errors.RouterError:
        """The worker's answer, once it begins, or why there is none."""
        job.client.stage = "waiting"
        worker = placement.worker
        target = self._pools.of(worker)
        task = job.client.task
        assert task is not None
        waiting = self._waiting.setdefault(worker.id, {})
        waiting[job] = task
        begun, job.begun = job.begun, None
        try:
            # The common case; what may have to be sent once more is the pool's business.
            if begun is not None and not begun.shown:
                await begun.wait()
            if begun is not None and begun.error is None:
                return without_redirect(begun)
            return without_redirect(await target.pool.request(job.head, job.body, begun=begun))
        except asyncio.CancelledError:
            if job.failed_over and not job.client.gone:
                job.failed_over = False
                task.uncancel()
                return errors.UpstreamReset("The worker stopped answering its health checks.")
            raise
        except errors.RouterError as error:
            return error
        finally:
            del waiting[job]

    def _may_retry(self, job: Job, outcome: Outcome) -> bool:
        rule = RULES[outcome]
        if not rule.retry or len(job.tried) >= self._settings.retry.attempts:
            return False
        prepaid, job.prepaid = job.prepaid, False
        return prepaid or rule.free or self._budget.take(self._clock())

    def _note(self, worker: Worker, outcome: Outcome) -> None:
        """Tell the worker's health what its attempt came to."""
        if outcome is Outcome.ANSWERED:
            return
        self._metrics.upstream_errors.inc((worker.id, outcome.value))
        rule = RULES[outcome]
        if rule.strike:
            self._strike(worker, outcome)
        if rule.spare:
            self._selector.spare(worker, self._clock() + SPARE_SECONDS)
        if rule.probe:
            self._poke(worker)

    def _strike(self, worker: Worker, outcome: Outcome) -> None:
        """One failure by the worker's fault; enough of them in a row eject it."""
        if passive.failed(self.registry, worker, self._clock(), self._settings.health, self._draw()):
            self._metrics.ejections.inc((worker.id, outcome.value))

    def _describe(self, job: Job, placement: Placement, decided: float) -> None:
        decision = placement.decision
        route, inquiry, match = job.route, job.inquiry, decision.match
        # By place: the names would take half as long again.
        record = DecisionRecord(
            job.client.request_id.decode("ascii"),
            decided,
            route.path,
            inquiry.model,
            decision.worker.id,
            decision.reason._value_,
            match.blocks,
            decision.blocks,
            match.resumable,
            inquiry.tokens,
            decision.load,
            decision.min_load,
            decision.slack,
            decision.runner_up.id if decision.runner_up else None,
            len(job.tried) + 1,
        )
        if job.cause is not None:
            self._metrics.retries.inc((job.cause.value,))
        if job.record is not None:
            job.earlier += (job.record,)
        job.record = record
        self._ring.add(record, placement.evidence)
        job.row = self._metrics.row(record.endpoint, record.model, record.worker, record.reason)
        job.row.decided(record.blocks, record.matched_blocks)
        if not job.tried:
            self._metrics.decision_seconds.observe(decided - job.began)
        self._log.add(record)

    def _finish(self, job: Job) -> None:
        total = self._clock() - job.began
        if job.row is not None:
            job.row.took(total)
        else:
            self._metrics.request_seconds.observe(total, (job.route.path,))
        if job.record is not None:
            job.record.total_seconds = total
            job.record.status = job.client.status or None
        if job.begun is not None:  # something has gone wrong before anybody waited for it
            job.begun.close()
        for hook in self.ended_hooks:
            hook(job)

    def _state_changed(self, worker: Worker, before: State, after: State) -> None:
        """A worker that fell silent loses the requests that wait for its first byte, if others can serve them."""
        if after is not State.UNREADY:
            return
        now = self._clock()
        for job, task in list(self._waiting.get(worker.id, {}).items()):
            if len(job.tried) >= self._settings.retry.attempts:
                continue
            others = passive.candidates(self.registry, job.inquiry.model, now)
            if any(other is not worker for other in others) and self._budget.take(now):
                job.failed_over = job.prepaid = True
                task.cancel()


def _head_of(job: Job, target: Target) -> bytes:
    client = job.client
    return upstream_head(
        client.method,
        target.base_path + job.route.target + (b"?" + client.query if client.query else b""),
        target.authority,
        _headers_of(job),
        len(job.body),
        client.request_id,
        target.authorization,
    )


def _headers_of(job: Job) -> Headers:
    """The client's headers, as the worker is to get them."""
    headers = job.client.headers if job.span is None else job.span.carry(job.client.headers)
    # What is to be taken out of an answer again must not come compressed.
    return [pair for pair in headers if pair[0] != b"accept-encoding"] if job.asked else headers


def _close(record: DecisionRecord | None, outcome: str, error: str | None) -> None:
    """What became of a decision that led to no answer."""
    # An attempt that was to be followed by another stays the last one if nobody is left to ask.
    if record is not None and record.outcome in (None, "retried"):
        record.outcome = outcome
        record.error = error
