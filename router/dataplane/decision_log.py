"""Decision lines in batches: a log record and a write for each would cost a tenth of a request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Final, TextIO

from router.decisions import DecisionRecord

FLUSH_SECONDS: Final = 0.05
# A batch this long is written at once; nothing is dropped.
MAX_BATCH: Final = 500
NAME: Final = "router.decisions"


class DecisionLog:
    """Writes where the root logger's first stream handler writes, in its form; silent above level info."""

    def __init__(self) -> None:
        self._logger = logging.getLogger(NAME)
        self._lines: list[tuple[float, DecisionRecord]] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, record: DecisionRecord) -> None:
        """Put a decision down; it is written within `FLUSH_SECONDS`."""
        if not self._logger.isEnabledFor(logging.INFO):
            return
        self._lines.append((time.time(), record))
        if len(self._lines) >= MAX_BATCH:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        """Write what has been put down."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, []
        handler = _stream_handler()
        if not lines or handler is None:
            return
        # A full disk costs lines of the log, never a request.
        with contextlib.suppress(OSError, ValueError), handler.lock or contextlib.nullcontext():
            handler.stream.write("".join([_format(at, record) for at, record in lines]))
            handler.flush()


def _stream_handler() -> logging.StreamHandler[TextIO] | None:
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            return handler
    return None


def _format(at: float, record: DecisionRecord) -> str:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    return f"{stamp},{int(at % 1 * 1000):03d} INFO {NAME}: {record.line()}\n"
