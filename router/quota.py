"""How much of the ownership map each tenant may fill, so that none lives at the expense of the others' memory.

A block is forgotten when so many others have come since its last use that the map is full. What one tenant may add
within the time that blocks are believed in is therefore limited to its share of the map, as soon as the map is full.
Pure; memory grows with the number of tenants alone, which the settings name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

# The window slides in so many steps.
SLICES = 6
# A map is as good as full a little before it evicts.
FULL = 0.95

ShareOf = Callable[[str], float]


class _Use:
    """New blocks of one tenant by slice of the window."""

    __slots__ = ("slices", "step", "total")

    def __init__(self) -> None:
        self.slices = [0] * SLICES
        self.step = 0
        self.total = 0

    def turn(self, step: int) -> None:
        """Forget the slices that have left the window."""
        for passed in range(self.step + 1, min(step, self.step + SLICES) + 1):
            self.total -= self.slices[passed % SLICES]
            self.slices[passed % SLICES] = 0
        self.step = max(step, self.step)

    def add(self, blocks: int) -> None:
        self.slices[self.step % SLICES] += blocks
        self.total += blocks


class Quota:
    """Counts the new blocks of each tenant; `share_of` gives a tenant's part of `max_blocks`, 1 for no limit."""

    def __init__(self, max_blocks: int, window_seconds: float, share_of: ShareOf) -> None:
        self._uses: dict[str, _Use] = {}
        self.reconfigure(max_blocks, window_seconds, share_of)

    def reconfigure(self, max_blocks: int, window_seconds: float, share_of: ShareOf) -> None:
        """Go on with other limits."""
        self._max_blocks = max_blocks
        self._full = FULL * max_blocks
        self._slice_seconds = window_seconds / SLICES
        self._share_of = share_of

    def admits(self, tenant: str, held: int, now: float) -> bool:
        """Whether the tenant may add blocks to a map that holds so many."""
        if held < self._full:
            return True
        share = self._share_of(tenant)
        return share >= 1 or self.used(tenant, now) < share * self._max_blocks

    def count(self, tenant: str, blocks: int, now: float) -> None:
        """The tenant has added blocks."""
        use = self._uses.get(tenant)
        if use is None:
            use = self._uses[tenant] = _Use()
            use.step = int(now // self._slice_seconds)
        use.turn(int(now // self._slice_seconds))
        use.add(blocks)

    def used(self, tenant: str, now: float) -> int:
        """New blocks of the tenant within the window."""
        use = self._uses.get(tenant)
        if use is None:
            return 0
        use.turn(int(now // self._slice_seconds))
        return use.total

    def keep(self, tenants: Iterable[str]) -> None:
        """Forget all other tenants."""
        kept = set(tenants)
        self._uses = {tenant: use for tenant, use in self._uses.items() if tenant in kept}
