"""What the control plane is given: the parts of one replica that it shows and, with the admin's key, changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from router.affinity import AffinityMap
from router.decisions import DecisionRing
from router.metrics import Metrics
from router.settings import Settings
from router.workers.registry import Registry
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


@dataclass(frozen=True, slots=True)
class ControlContext:
    """The parts of one replica; `clock` is the one that decisions are stamped with, in seconds."""

    settings: Settings
    registry: Registry
    selector: Selector
    index: AffinityMap
    ring: DecisionRing
    metrics: Metrics
    sync: SyncView
    is_draining: Callable[[], bool]
    clock: Callable[[], float]
