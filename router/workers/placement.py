"""A request on its worker: the lease, and the claim on the map until the worker has answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.affinity import LastUse, Touch
from router.cachemodel import resumable
from router.hashing import BLOCK_BYTES, MOST_BLOCKS, end_of
from router.policy import Decision
from router.work import lighter
from router.workers.evidence import Seen
from router.workers.inquiry import Inquiry, profile_of
from router.workers.registry import Lease, Worker

if TYPE_CHECKING:
    from router.workers.selection import Selector


class Placement:
    """A request on its worker: the decision, its lease, and its claim on the map until the worker has answered."""

    __slots__ = (
        "_claim",
        "_hashes",
        "_selector",
        "decision",
        "epoch",
        "evidence",
        "inquiry",
        "lease",
        "prior",
        "worker",
    )

    def __init__(
        self, selector: Selector, inquiry: Inquiry, decision: Decision[Worker], now: float, evidence: Seen | None
    ) -> None:
        self._selector = selector
        self.inquiry = inquiry
        self.decision = decision
        self.worker = decision.worker
        self.epoch = decision.worker.epoch
        # What the decision saw, unless taking it down would have cost too much.
        self.evidence = evidence
        # What is only observed is not counted on.
        uncached = inquiry.tokens - (decision.match.expected if inquiry.settings.reuse == "on" else 0)
        self.lease = Lease(
            selector.registry,
            decision.worker,
            uncached,
            silent=not inquiry.prompt.stream,
            whole=inquiry.whole,
            lighter=lighter(max(0, uncached), inquiry.tokens),
        )
        # A tenant whose share of the map is full is served, and only what is known already is remembered of it.
        admitted = selector.quota.admits(inquiry.tenant, len(selector.index), now)
        self._hashes = inquiry.hashes if admitted else inquiry.hashes[: decision.match.blocks]
        # The use of the matched prefix before this one, which the claim counts as another already.
        self.prior: LastUse | None = None
        match = decision.match
        if match.resumable > 0:
            self.prior = selector.index.use_of(self.worker.id, inquiry.hashes[match.blocks - 1])
        self._claim: Touch | None = selector.index.claim(self.worker.id, self._hashes, now)
        self.lease.claim = self._claim

    def own(self, now: float) -> None:
        """The worker has answered with success: it owns the prompt's blocks."""
        self._claim = None
        delta = self._selector.index.record(self.worker.id, self.epoch, self._hashes, now)
        if delta is not None:
            self._selector.quota.count(self.inquiry.tenant, len(delta.new), now)
            for hook in self._selector.owned_hooks:
                hook(delta)

    def release(self) -> None:
        """End the lease, and the claim if the worker did not answer; idempotent."""
        if self._claim is not None:
            self._selector.index.withdraw(self._claim)
            self._claim = None
        self.lease.end()

    def predicted(self, prompt_tokens: int) -> int:
        """Cached tokens that the engine should report, given the prompt's exact length."""
        match = self.decision.match
        if match.resumable <= 0:
            return 0
        share = min(1.0, end_of(match.blocks) / max(1, self.inquiry.prompt.size))
        hit = resumable(profile_of(self.worker, self.inquiry), int(share * prompt_tokens), prompt_tokens)
        return hit.tokens + hit.wait

    def step(self, prompt_tokens: int) -> int:
        """What the engine's and the map's steps together may make of a difference, in tokens."""
        size = self.inquiry.prompt.size
        matched = self.decision.match.blocks
        # What is shared ends somewhere before the next block's end, where one follows.
        following = end_of(matched + 1 if matched < MOST_BLOCKS else MOST_BLOCKS)
        gap = (following if following < size else size) - end_of(matched)
        block = (gap if gap > BLOCK_BYTES else BLOCK_BYTES) * prompt_tokens // (size or 1) + 1
        unit = profile_of(self.worker, self.inquiry).unit
        # A block that is not seen may carry a hit over one boundary more.
        return block + unit if unit < block else unit

    @property
    def at_horizon(self) -> bool:
        """The match may go on where the map does not look."""
        return self.decision.match.blocks == MOST_BLOCKS
