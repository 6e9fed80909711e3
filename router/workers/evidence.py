"""What a decision saw of its candidates, kept for those who ask later and paid for by them.

On the request path only references are taken, to lists that the choice made anyway, and the one thing that will have
changed by the time somebody asks: each candidate's load. Terms, filters and margins are worked out from that on demand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from router.policy import Match
from router.workers.health import State
from router.workers.registry import Worker

# With more workers than this only every second, third, ... decision is kept, so that the mean cost stays the same.
CHEAP_POOL = 32

Removed = tuple[Worker, State, bool]
# The fields of `Evidence` in its order: a plain tuple is made in a third of the time.
Seen = tuple[
    Sequence[Worker],
    Sequence[Worker],
    Sequence[int],
    Mapping[str, Match],
    Sequence[Removed],
    int,
    Sequence[float] | None,
    Sequence[float] | None,
]


class Evidence(NamedTuple):
    """One decision's view: parallel `candidates` and `loads`, those with a free slot, what each worker held.

    `removed` are workers that serve the model and were no candidates, with the state they were in and whether they were
    being drained. `key` is the prompt's, from which the order of equals follows. Under a policy that scores, `scores`
    and `decoding` (requests that decode or soon will) are parallel to `free`.
    """

    candidates: Sequence[Worker]
    free: Sequence[Worker]
    loads: Sequence[int]
    matches: Mapping[str, Match]
    removed: Sequence[Removed]
    key: int
    scores: Sequence[float] | None = None
    decoding: Sequence[float] | None = None


def every(pool: int) -> int:
    """Of how many decisions among so many workers one is taken down."""
    return -(-pool // CHEAP_POOL)


def removed_from(pool: Sequence[Worker], candidates: Sequence[Worker]) -> Sequence[Removed]:
    """Workers of the pool that did not pass the filters, and the state they are in."""
    passed = {worker.id for worker in candidates}
    return [(worker, worker.state, worker.draining) for worker in pool if worker.id not in passed]
