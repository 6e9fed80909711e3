"""Every answer's word on the cache, joined with what was predicted, and what follows from it for the map.

`Verdicts` is told of answers by the relay and of probes by the registry. It keeps one ledger for each worker, fills in
the decision's record and the metrics, and corrects the map: what an engine turned out not to hold is forgotten, a cache
that was emptied begins a new epoch, and how much a worker is taken to hold follows from what came true.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from router.affinity import AffinityMap, LastUse
from router.cachemodel import CacheProfile, Rule, closed, proven
from router.calibration import (
    Belief,
    Cause,
    Circumstances,
    CounterCheck,
    CounterFinding,
    Ledger,
    Silent,
    TokenRatios,
    Usage,
    Verdict,
    cause_of,
    verdict_of,
)
from router.decisions import DecisionRecord
from router.metrics import Metrics, Sample
from router.workers.registry import Registry, Worker
from router.workers.selection import Placement, profile_of

log = logging.getLogger("router")

# Uses since the first sign of an emptied cache that are carried over into its new epoch, in blocks.
CARRIED_BLOCKS = 20_000
# Of what was used since an entry, no more uses are looked at.
USES_SINCE = 2_000
# An attribute of an enum is looked up slowly.
_CONFIRMED, _FELL_SHORT, _UNKNOWN = Verdict.CONFIRMED, Verdict.FELL_SHORT, Verdict.UNKNOWN


@dataclass(slots=True)
class Answered:
    """What is kept of an answer that said nothing of the cache, until the worker's counters do."""

    belief: Belief
    model: str
    epoch: float
    prompt_tokens: int
    profile: CacheProfile
    prior: LastUse | None

    # Spelt out, since a generated one is not compiled.
    def __init__(
        self,
        belief: Belief,
        model: str,
        epoch: float,
        prompt_tokens: int,
        profile: CacheProfile,
        prior: LastUse | None,
    ) -> None:
        self.belief = belief
        self.model = model
        self.epoch = epoch
        self.prompt_tokens = prompt_tokens
        self.profile = profile
        self.prior = prior


class Account:
    """One worker: its ledger, and the comparison with its counters."""

    __slots__ = ("closed", "counters", "emptied_at", "ledger")

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.counters: CounterCheck[Answered] = CounterCheck()
        # An answer has shown that the engine keeps the last whole block, which its labels do not tell.
        self.closed = False
        # The epoch that began because the cache was found to be empty, if that is the last one.
        self.emptied_at: float | None = None


class Verdicts:
    """One for all of a process. `clock` is the map's, `wall` Unix time; without `correct` it only counts."""

    def __init__(
        self,
        registry: Registry,
        index: AffinityMap,
        ratios: TokenRatios,
        metrics: Metrics,
        clock: Callable[[], float],
        wall: Callable[[], float],
        *,
        correct: bool = True,
    ) -> None:
        self._registry = registry
        self._index = index
        self._ratios = ratios
        self._metrics = metrics
        self._clock = clock
        self._wall = wall
        self._correct = correct
        self._accounts: dict[str, Account] = {}
        registry.hooks.removed.append(self._removed)
        registry.hooks.learned.append(self._probed)
        metrics.gauge("router_hit_precision", "Share of predicted tokens that were there, of late.", ("worker",),
                      lambda: self._shares(lambda ledger: ledger.precision))  # fmt: skip
        metrics.gauge("router_hit_recall", "Share of cached tokens that were predicted, of late.", ("worker",),
                      lambda: self._shares(lambda ledger: ledger.recall))  # fmt: skip
        metrics.gauge("router_cache_capacity_tokens", "Tokens that a worker is taken to hold.", ("worker",),
                      lambda: self._shares(lambda ledger: ledger.capacity.tokens))  # fmt: skip

    def ledger_of(self, worker: Worker) -> Ledger:
        """The worker's account of predictions."""
        return self._account(worker).ledger

    def emptied_at(self, worker: Worker) -> float | None:
        """The worker's last epoch that began because its cache was found to be empty."""
        return self._account(worker).emptied_at

    # -- answers -------------------------------------------------------------------------------------------

    def join(self, record: DecisionRecord, placement: Placement, usage: Usage | None) -> None:
        """A whole answer has come; `usage` is None if it said nothing of its tokens."""
        inquiry, worker = placement.inquiry, placement.worker
        tokens = inquiry.tokens
        if usage is not None and usage.prompt_tokens > 0:
            tokens = usage.prompt_tokens
            if inquiry.prompt.tokens is None:
                self._ratios.learn(inquiry.model, inquiry.prompt.size, tokens)
        else:
            usage = None
        belief = _belief(placement, tokens)
        comparable = not inquiry.prompt.incomparable
        verdict = verdict_of(belief, usage if comparable else None)
        if usage is not None:
            record.predicted_cached_tokens = belief.predicted
            record.reported_prompt_tokens = usage.prompt_tokens
            record.reported_cached_tokens = usage.cached_tokens
            record.output_tokens = usage.completion_tokens
            record.verdict = verdict._value_
        row = self._metrics.row(record.endpoint, record.model, record.worker, record.reason)
        row.judged(verdict._value_)
        account = self._account(worker)
        if verdict is _UNKNOWN or usage is None or usage.cached_tokens is None:
            account.ledger.count(_UNKNOWN)
            if belief.predicted > 0 and comparable:
                # Begun a little later than it was, if the request had to wait for a slot.
                begun = record.at + (record.first_byte_seconds or 0.0)
                answered = _answered(belief, placement, tokens)
                account.counters.answered(Silent(record.at, begun, belief.predicted, answered))
            return
        if worker.facts.profile.rule is Rule.OPEN_BLOCK and self._correct and placement.epoch == worker.epoch:
            profile = profile_of(worker, inquiry)
            account.closed = proven(profile, usage.prompt_tokens, usage.cached_tokens) is not profile
            self._close_blocks(worker, account)
        account.ledger.count(verdict, belief.predicted, usage.cached_tokens)
        row.cached(belief.predicted, usage.cached_tokens)
        if verdict is _CONFIRMED and belief.predicted == 0:
            return  # nothing was expected, and nothing came: that says nothing of the cache
        answered = _answered(belief, placement, tokens)
        if verdict is _FELL_SHORT:
            self._fell_short(worker, account, answered, usage.cached_tokens, record.at)
        else:
            self._came_true(worker, account, answered, verdict, usage.cached_tokens, record.at)

    def _came_true(
        self, worker: Worker, account: Account, answered: Answered, verdict: Verdict, reported: int, sent: float
    ) -> None:
        belief, ledger = answered.belief, account.ledger
        if (belief.predicted == 0 and verdict is not Verdict.BETTER) or answered.epoch != worker.epoch:
            return
        if belief.predicted and ledger.was_there(belief.used, sent):
            ledger.stayed(self._since(worker, answered))
        capacity = ledger.capacity
        before = capacity.tokens
        if before is None:
            return
        shadow = self._tokens(self._index.bytes_of(worker.id), answered.model)
        if verdict is Verdict.BETTER:
            capacity.exceeded(shadow, reported - belief.predicted, answered.prompt_tokens)
        else:
            capacity.confirmed(shadow, oldest_half=self._in_oldest_half(worker, belief.used, sent))
        if capacity.tokens != before:
            self._apply_capacity(worker, account)

    def _fell_short(self, worker: Worker, account: Account, answered: Answered, reported: int, sent: float) -> None:
        since = self._since(worker, answered)
        cause = self._cause(worker, account, answered, sent, since)
        self._metrics.fallbacks.inc((answered.model, worker.id, cause.value))
        if answered.epoch != worker.epoch:
            return
        belief, ledger = answered.belief, account.ledger
        if cause is Cause.EVICTED:
            shadow = self._tokens(self._index.bytes_of(worker.id), answered.model)
            ledger.capacity.fell_short(shadow, belief.predicted - reported, answered.prompt_tokens)
            self._apply_capacity(worker, account)
        emptied = ledger.was_missing(cause, belief.predicted, reported, sent, since)
        if not self._correct:
            return
        if answered.prior is not None and _is_gone(cause, answered.profile):
            # The answer has brought the prompt itself back; what lay behind it in other branches is gone.
            self._index.disprove(answered.prior)
        if emptied is not None and ledger.emptied(sent):
            self._forget(worker, account, emptied)
        elif emptied is not None:
            shadow = self._tokens(self._index.bytes_of(worker.id), answered.model)
            ledger.capacity.fell_short(shadow, belief.predicted, answered.prompt_tokens)
            self._apply_capacity(worker, account)

    def _cause(self, worker: Worker, account: Account, answered: Answered, sent: float, since: int) -> Cause:
        used = answered.belief.used
        profile = answered.profile
        circumstances = Circumstances(
            same_life=answered.epoch == worker.epoch or account.emptied_at == worker.epoch,
            enabled=profile.enabled,
            stateful=profile.rule is not Rule.BLOCKS,
            emptied=answered.epoch != worker.epoch and account.emptied_at == worker.epoch,
            age=None if used is None else sent - used,
            since=since,
            proven_age=account.ledger.proven_age,
            proven_since=account.ledger.proven_since,
            capacity=account.ledger.capacity.tokens,
        )
        return cause_of(answered.belief, circumstances, answered.prompt_tokens)

    # -- what follows --------------------------------------------------------------------------------------

    def _forget(self, worker: Worker, account: Account, since: float) -> None:
        """The worker's cache was emptied without a restart: what was used before `since` is there no more.

        It begins a new epoch, as after a restart. The other replicas hear of that as of any other epoch, refuse news
        of the old one, and can't tell this one what it has just forgotten.
        """
        now = self._clock()
        export = self._index.export(worker.id, since)
        uses = export.take(CARRIED_BLOCKS, now) if export is not None else []
        epoch = max(self._wall(), math.nextafter(worker.epoch, math.inf))
        if not self._registry.set_epoch(worker, epoch):
            return
        self._index.restore(worker.id, epoch, uses, now)
        account.emptied_at = epoch
        account.ledger.begin(epoch)
        self._metrics.emptied.inc((worker.id,))
        log.warning("worker %s: its cache seems to have been emptied; what it was believed to hold is forgotten",
                    worker.id)  # fmt: skip

    def _close_blocks(self, worker: Worker, account: Account) -> None:
        if account.closed:
            self._registry.correct(worker, closed(worker.facts.profile))

    def _apply_capacity(self, worker: Worker, account: Account) -> None:
        """Tell the map how much of the worker's cache to remember."""
        capacity = account.ledger.capacity
        tokens = capacity.tokens if self._correct else capacity.declared
        # The base model's prompts: adapters share its cache, and its tokenizer.
        base = next((model.name for model in worker.facts.models.values() if model.parent is None), "")
        self._index.set_capacity(worker.id, None if tokens is None else int(tokens / self._ratios.ratio(base)))

    # -- probes --------------------------------------------------------------------------------------------

    def _probed(self, worker: Worker) -> None:
        """A probe has read the worker's counters: compare them with what was predicted meanwhile."""
        account = self._account(worker)
        self._close_blocks(worker, account)
        account.ledger.capacity.declare(worker.facts.profile.capacity_tokens)
        self._apply_capacity(worker, account)
        for finding, silents in account.counters.sampled(self._clock(), worker.facts.cache_hits):
            self._metrics.counter_checks.inc((worker.id, finding.value))
            if finding is CounterFinding.CONSISTENT:
                account.ledger.seems_to_work()
            elif finding is CounterFinding.CONTRADICTED:
                for silent in silents:
                    account.ledger.refuted(silent.predicted)
                    self._fell_short(worker, account, silent.subject, 0, silent.sent)

    def _removed(self, worker: Worker) -> None:
        self._accounts.pop(worker.id, None)

    def _since(self, worker: Worker, answered: Answered) -> int:
        """Tokens that the worker has used after the entry, this prompt's own left out."""
        used = answered.belief.used
        if used is None:
            return 0
        since = self._tokens(self._index.bytes_since(worker.id, used, USES_SINCE), answered.model)
        return max(0, since - answered.prompt_tokens)

    # -- helpers -------------------------------------------------------------------------------------------

    def _account(self, worker: Worker) -> Account:
        account = self._accounts.get(worker.id)
        if account is None:
            account = self._accounts[worker.id] = Account()
            account.ledger.begin(worker.epoch)
        if account.ledger.epoch != worker.epoch:
            account.ledger.begin(worker.epoch)
            account.counters.forget()
            account.closed = False
        return account

    def _tokens(self, size: int, model: str) -> int:
        return int(size * self._ratios.ratio(model))

    def _in_oldest_half(self, worker: Worker, used: float | None, now: float) -> bool:
        return used is not None and now - used > 0.5 * self._index.oldest_age(worker.id, now)

    def _shares(self, of: Callable[[Ledger], float | None]) -> Iterable[Sample]:
        found = ((name, of(account.ledger)) for name, account in self._accounts.items())
        return [((name,), value) for name, value in found if value is not None]


def _is_gone(cause: Cause, profile: CacheProfile) -> bool:
    """Whether what lay behind a missing part must be missing too; not so where a cache of states kept none there."""
    if cause in (Cause.EVICTED, Cause.EXPIRED):
        return True
    return cause is Cause.NOT_RESIDENT and profile.rule is Rule.BLOCKS


def _answered(belief: Belief, placement: Placement, tokens: int) -> Answered:
    inquiry = placement.inquiry
    profile = profile_of(placement.worker, inquiry)
    return Answered(belief, inquiry.model, placement.epoch, tokens, profile, placement.prior)


def _belief(placement: Placement, tokens: int) -> Belief:
    """What was believed of the chosen worker, for a prompt of so many tokens."""
    prior = placement.prior
    return Belief(
        credited=placement.decision.match.resumable,
        predicted=placement.predicted(tokens),
        step=placement.step(tokens),
        at_least=placement.at_horizon,
        used=None if prior is None else prior.used,
        tentative=prior is not None and prior.tentative,
    )
