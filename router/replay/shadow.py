"""What a worker's cache should hold by what was sent there: its shadow, least recently used out."""

from __future__ import annotations

from collections.abc import Sequence


class Shadow:
    """Prefixes by key, each with the tokens it stands for, never more of them than `capacity`.

    Keys of a prompt are cumulative: the key of a depth says what is before it too. A use refreshes them deepest first,
    so parents are always younger than their children, eviction takes children first, and no prefix has a hole.
    """

    __slots__ = ("_held", "capacity", "tokens")

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.tokens = 0.0
        self._held: dict[int, tuple[float, float]] = {}  # key -> tokens, last use; oldest first

    def __len__(self) -> int:
        return len(self._held)

    @property
    def fill(self) -> float:
        """Share of the capacity in use."""
        return self.tokens / self.capacity

    def depth(self, keys: Sequence[int]) -> int:
        """How many leading keys are held; by bisection, since there are no holes."""
        held = self._held
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) // 2
            if keys[middle] in held:
                low = middle + 1
            else:
                high = middle
        return low

    def use(self, keys: Sequence[int], weights: Sequence[float], now: float) -> None:
        """A prompt was sent: all its keys are held now, and younger than all others."""
        held = self._held
        for key, weight in zip(reversed(keys), reversed(weights), strict=True):
            before = held.pop(key, None)
            self.tokens += weight if before is None else weight - before[0]
            held[key] = (weight, now)
        while self.tokens > self.capacity and held:
            self.tokens -= held.pop(next(iter(held)))[0]

    def age(self, key: int, now: float) -> float:
        """Seconds since a held key was used."""
        return now - self._held[key][1]

    def oldest(self, now: float) -> float | None:
        """Seconds since the oldest key was used; None if nothing is held."""
        entry = next(iter(self._held.values()), None)
        return None if entry is None else now - entry[1]
