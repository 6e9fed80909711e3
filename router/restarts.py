"""When a process that died is started again: at once after a long life, ever later after short ones."""

from __future__ import annotations

# A process that lived this long did not die of its start.
LONG_LIFE_SECONDS = 10.0
FIRST_SECONDS = 0.1
LAST_SECONDS = 10.0
OFTEN = 3
HOPELESS = 6


class Restarts:
    """The deaths of one process and its successors."""

    __slots__ = ("early",)

    def __init__(self) -> None:
        # Short lives in a row.
        self.early = 0

    def died(self, lived: float) -> float:
        """Seconds to wait before the next start, after a life of so many seconds."""
        if lived >= LONG_LIFE_SECONDS:
            self.early = 0
            return 0.0
        self.early += 1
        return min(LAST_SECONDS, FIRST_SECONDS * 2.0 ** min(self.early - 1, 16))

    @property
    def often(self) -> bool:
        """Whether it is likely to die again, so that nothing should wait for it."""
        return self.early >= OFTEN

    @property
    def hopeless(self) -> bool:
        """Whether it never lived for long, often enough to doubt that it will."""
        return self.early >= HOPELESS
