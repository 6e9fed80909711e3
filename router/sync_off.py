"""Stands in for news between replicas where there is none, and says what there is to know of them."""

from __future__ import annotations

from typing import Literal

from router.affinity import Delta
from router.sync_resync import Tally
from router.workers.registry import Lease, Step, Worker

Direction = Literal["in", "out"]
# Why a message, or a part of one, was not sent or not taken. "queue": a delta of this replica that waited too long.
DROP_CAUSES = (
    "queue",
    "version",
    "fingerprint",
    "oversized",
    "malformed",
    "kind",
    "peers",
    "unknown_worker",
    "old_epoch",
    "absurd_epoch",
)


class NoSync:
    """Stands in where no Redis is configured: takes all news and keeps it; `up` is None."""

    def __init__(self) -> None:
        self.messages: dict[tuple[Direction, str], int] = {}
        self.bytes: dict[Direction, int] = {"in": 0, "out": 0}
        self.dropped: dict[str, int] = dict.fromkeys(DROP_CAUSES, 0)
        # Holes in the sequences of others, and renewals of the subscription, before which anything may be lost.
        self.gaps = 0
        self.resubscribed = 0
        self.repairs = Tally()

    @property
    def up(self) -> bool | None:
        """Whether news goes out and comes in; None where there is no link."""
        return None

    def cut_off(self) -> bool:
        """Whether the other replicas, which may know what this one does not, can't be heard."""
        return False

    @property
    def lag_seconds(self) -> float | None:
        """How long the last heartbeat took, or takes by now, to come back; None if there is none."""
        return None

    @property
    def warming(self) -> bool:
        """Whether this replica has just started and will soon know what the others know."""
        return False

    @property
    def peers(self) -> int:
        """How many other replicas are alive."""
        return 0

    @property
    def queued(self) -> int:
        """How many deltas wait to be sent."""
        return 0

    def owned(self, delta: Delta) -> None:
        """This replica saw a worker serve a prompt."""

    def step(self, lease: Lease, what: Step) -> None:
        """One of this replica's requests has started, was answered, or has ended."""

    def epoch(self, worker: Worker) -> None:
        """The worker's epoch has changed."""

    def start(self) -> None:
        """Begin, in the background."""

    async def aclose(self) -> None:
        """Say goodbye and stop."""
