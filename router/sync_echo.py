"""Own statements on their way through the channel and back: whether news passes both ways, and how fast. Pure."""

from __future__ import annotations

MOST = 16


class Echoes:
    """Times in seconds on one clock."""

    __slots__ = ("_back", "_lag", "_under_way")

    def __init__(self) -> None:
        # Sequence -> when it left, in order.
        self._under_way: dict[int, float] = {}
        self._lag: float | None = None
        self._back = float("-inf")

    def __len__(self) -> int:
        return len(self._under_way)

    def left(self, sequence: int, now: float) -> None:
        """A statement has left; the oldest is forgotten when too many do not come back."""
        self._under_way[sequence] = now
        if len(self._under_way) > MOST:
            del self._under_way[next(iter(self._under_way))]

    def came(self, sequence: int, now: float) -> bool:
        """A message of one's own has come back: whether it was a statement that was waited for."""
        left = self._under_way.pop(sequence, None)
        if left is None:
            return False
        self._back = now
        self._lag = now - left
        for older in [number for number in self._under_way if number < sequence]:
            del self._under_way[older]
        return True

    def clear(self) -> None:
        """Those under way are lost."""
        self._under_way.clear()

    def silent(self, now: float) -> float:
        """For how long none has come back."""
        return now - self._back

    def lag(self, now: float) -> float | None:
        """How long the last one took, or the next one takes by now; None while there is none."""
        if not self._under_way:
            return self._lag
        waiting = now - next(iter(self._under_way.values()))
        return waiting if self._lag is None else max(waiting, self._lag)
