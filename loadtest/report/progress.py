"""How far a long run is, on standard error: a line that is rewritten on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

WIDTH = 24
ELSEWHERE_SECONDS = 10.0
TERMINAL_SECONDS = 0.2


class Progress:
    """Counts steps of a known number; use as a context manager. `unit` names them."""

    def __init__(
        self,
        label: str,
        total: int,
        unit: str = "",
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label = label
        self._total = max(1, total)
        self._unit = f" {unit}" if unit else ""
        self._stream = stream or sys.stderr
        self._clock = clock
        self._rewrites = self._stream.isatty()
        self._began = self._said = clock()
        self.done = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._rewrites:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def step(self) -> None:
        """One more is done."""
        self.done += 1
        now = self._clock()
        if now - self._said >= (TERMINAL_SECONDS if self._rewrites else ELSEWHERE_SECONDS):
            self._said = now
            self._say(self.line())

    def line(self) -> str:
        """The line for this moment."""
        share = min(1.0, self.done / self._total)
        elapsed = self._clock() - self._began
        left = f", about {_words(elapsed / share * (1 - share))} left" if share and share < 1 else ""
        bar = ("#" * round(share * WIDTH)).ljust(WIDTH, ".")
        return f"{self._label} [{bar}] {self.done:,} of {self._total:,}{self._unit}{left}"

    def _say(self, line: str) -> None:
        self._stream.write(f"\r\x1b[K{line}" if self._rewrites else f"{line}\n")
        self._stream.flush()


def _words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
