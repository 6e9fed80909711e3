"""What the control plane is given: the parts of one replica that it shows and, with the admin's key, changes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from router.affinity import AffinityMap
from router.calibration import Ledger
from router.decisions import DecisionRing
from router.metrics import Metrics
from router.prompt import Prompt
from router.settings import Settings
from router.workers.registry import Registry, Worker
from router.workers.selection import Selector


class SyncView(Protocol):
    """What there is to see of the news between replicas."""

    @property
    def up(self) -> bool | None:
        """Whether news passes both ways; None where there is no link."""
        ...

    @property
    def warming(self) -> bool:
        """Whether this replica has just started and will soon know what the others know."""
        ...

    @property
    def peers(self) -> int:
        """Other replicas heard from."""
        ...

    @property
    def lag_seconds(self) -> float | None: ...

    @property
    def gaps(self) -> int:
        """Holes in the others' news."""
        ...

    @property
    def dropped(self) -> Mapping[str, int]:
        """News dropped or refused, by cause."""
        ...


@dataclass(slots=True)
class ControlContext:
    """The parts of one replica.

    `settings` are those in force now; `clock` is the one that decisions are stamped with, in seconds.
    """

    settings: Settings
    registry: Registry
    selector: Selector
    index: AffinityMap
    ring: DecisionRing
    metrics: Metrics
    sync: SyncView
    is_draining: Callable[[], bool]
    clock: Callable[[], float]
    # Behind a balancer, one page may be answered by several replicas in turn: each says which it is.
    replica: str = field(default_factory=lambda: secrets.token_hex(4))
    # Each worker's account of predicted hits.
    ledger_of: Callable[[Worker], Ledger] = field(default=lambda worker: Ledger())
    # What becomes of a tenant's prompt and body before a worker is chosen; raises BadRequest.
    prepare: Callable[[str, Prompt, bytes], bytes] = field(default=lambda tenant, prompt, body: body)
    # The last epoch of each that began because its cache was found to be empty.
    emptied_at: Callable[[Worker], float | None] = field(default=lambda worker: None)
