"""A large fleet in order: who has the least to do, kept up to date, so that a choice need not look at everybody.

Workers stand in buckets of equal rank. A *short list* names those among which the best is found: whoever holds
something of the prompt, and the first in the order of ranks. Of many equals, eight are taken that the prompt's hash
selects from a ring of all workers: the same on every replica, and a worker more or less moves only its neighbours.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from xxhash import xxh3_64_intdigest

from router.hashing import HASH_BITS
from router.work import DECODING_TOKENS
from router.workers.health import State
from router.workers.registry import Worker

# Up to here every candidate is looked at.
SMALL_FLEET = 16
# Of equals, and of those that hold something, so many are looked at; and of all others in the order of their ranks.
EQUALS = 8
HOLDERS = 16
MOST = 24
# Points of each worker on the ring, and of the ring that are passed in search of equals.
POINTS = 8
STEPS = 64
# Work is compared in steps of so many tokens first.
STEP_TOKENS = 1_024
IDLE = -1
# Bounds on what is kept for all models together.
MAX_ROSTERS = 8
MAX_MODELS = 1_000
_READY = State.READY

Rank = Callable[[Worker], int]
Fits = Callable[[Worker], bool]


def by_load(worker: Worker) -> int:
    """Requests in flight."""
    return worker.load


def by_work(worker: Worker) -> int:
    """The work at least to be done before a new request, in coarse steps; one below for those with nothing at all."""
    work = worker.work
    if not work.waiting and not work.answered:
        return IDLE
    return int(work.at_least() + DECODING_TOKENS * work.decoding) // STEP_TOKENS


class Roster:
    """The usable workers of one pool by rank."""

    def __init__(self, pool: Sequence[Worker], rank: Rank) -> None:
        self.pool = pool
        self._rank = rank
        self._ranks: dict[Worker, int | None] = dict.fromkeys(pool)
        self._buckets: dict[int, dict[Worker, None]] = {}
        self._order: list[int] = []
        ring = sorted(
            (xxh3_64_intdigest(worker.id.encode(), point), worker.id, worker)
            for worker in pool
            for point in range(POINTS)
        )
        self._points = [point for point, _, _ in ring]
        self._ring = [worker for _, _, worker in ring]
        for worker in pool:
            self.move(worker)

    def move(self, worker: Worker) -> None:
        """The worker's state, load or work has changed; does nothing for those of other pools."""
        before = self._ranks.get(worker, worker)
        if before is worker:
            return
        usable = (worker.state is _READY and not worker.draining) or worker.usable
        now = self._rank(worker) if usable else None
        if now == before:
            return
        self._ranks[worker] = now
        if isinstance(before, int):
            bucket = self._buckets[before]
            del bucket[worker]
            if not bucket:
                del self._buckets[before]
                del self._order[bisect_left(self._order, before)]
        if now is not None:
            bucket = self._buckets.setdefault(now, {})
            if not bucket:
                insort(self._order, now)
            bucket[worker] = None

    def lowest(self, key: int, fits: Fits) -> list[Worker]:
        """Of the workers with the lowest rank that any has who fits, a few; nobody if the first ones do not fit."""
        room = MOST
        for rank in self._order:
            found = [worker for worker in self._equals(rank, key) if fits(worker)]
            room -= EQUALS
            if found or room <= 0:
                return found
        return []

    def least_work(self, key: int, now: float, fits: Fits) -> list[Worker]:
        """Those that may have the least work to be done before a new request."""
        found: list[Worker] = []
        least = float("inf")
        looked = 0
        for rank in self._order:
            if rank * STEP_TOKENS >= least or looked >= MOST:
                break
            for worker in self._equals(rank, key) if rank == IDLE else self._buckets[rank]:
                looked += 1
                if fits(worker):
                    found.append(worker)
                    work = worker.work
                    least = min(least, work.ahead(now) + DECODING_TOKENS * work.decoding)
                if looked >= MOST:
                    break
        return found

    def _equals(self, rank: int, key: int) -> Iterable[Worker]:
        """Workers of one rank: all if they are few, else those that follow the key on the ring."""
        bucket = self._buckets[rank]
        if len(bucket) <= EQUALS:
            return bucket
        found: dict[Worker, None] = {}
        ring, size = self._ring, len(self._ring)
        # Points have 64 bits; of a key those count that differ from block to block.
        start = bisect_left(self._points, key << 64 - HASH_BITS & (1 << 64) - 1)
        for position in range(start, start + min(STEPS, size)):
            worker = ring[position % size]
            if worker in bucket:
                found[worker] = None
                if len(found) == EQUALS:
                    break
        # Few among many may lie far apart on the ring; then any will do.
        return found or list(islice(bucket, EQUALS))


class Rosters:
    """The rosters of the large pools that are asked for; models that the same workers serve share one."""

    def __init__(self, rank: Rank | None = None) -> None:
        self._rank = rank
        self._by_model: dict[str, Roster] = {}
        self._distinct: list[Roster] = []

    def rank_by(self, rank: Rank | None) -> None:
        """Order the workers by another rank from now on; by none, there are no rosters."""
        self._rank = rank
        self._by_model.clear()
        self._distinct.clear()

    def of(self, model: str, pool: Sequence[Worker]) -> Roster | None:
        """The roster of a model's pool, which is another object after each change; None where none is needed."""
        if self._rank is None or len(pool) <= SMALL_FLEET:
            return None
        roster = self._by_model.get(model)
        if roster is not None and roster.pool is pool:
            return roster
        return self._make(model, pool, self._rank)

    def moved(self, worker: Worker) -> None:
        """The worker's state, load or work has changed."""
        for roster in self._distinct:
            roster.move(worker)

    def _make(self, model: str, pool: Sequence[Worker], rank: Rank) -> Roster | None:
        known = self._by_model.get(model)
        if (known is not None and known.pool != pool) or len(self._by_model) >= MAX_MODELS:
            self._by_model.clear()
            self._distinct.clear()
        roster = next((one for one in self._distinct if one.pool == pool), None)
        if roster is None:
            if len(self._distinct) >= MAX_ROSTERS:
                return None  # each costs something whenever a worker moves
            roster = Roster(pool, rank)
            self._distinct.append(roster)
        roster.pool = pool
        self._by_model[model] = roster
        return roster
