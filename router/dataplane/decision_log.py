"""Decision lines in batches: a log record and a write for each would cost a tenth of a request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Final, TextIO

from router.decisions import DecisionRecord
from router.errors import RouterError

FLUSH_SECONDS: Final = 0.05
# A batch this long is written at once; nothing is dropped.
MAX_BATCH: Final = 500
# Failures come in crowds, and so do clients that leave; beyond this many in a batch they are only counted.
MAX_FAILURES: Final = 20
FAILED: Final = "failed"
LEFT: Final = "left"
CROWDS: Final = {FAILED: "WARNING", LEFT: "INFO"}
NAME: Final = "router.decisions"


class DecisionLog:
    """Writes where the root logger's first stream handler writes, in its form; silent above level info."""

    def __init__(self) -> None:
        self._logger = logging.getLogger(NAME)
        self._lines: list[tuple[float, str, str]] = []
        self._crowds = {FAILED: 0, LEFT: 0}
        self._timer: asyncio.TimerHandle | None = None
        self._tells = False  # decisions are at the logger's level

    def add(self, record: DecisionRecord) -> None:
        """Put a decision down; it is written within `FLUSH_SECONDS`."""
        if self._timer is None:
            self._look()
        if not self._tells:
            return
        again = f" attempt={record.attempt}" if record.attempt > 1 else ""
        self._put("INFO", f"{record.line()} request={record.request_id}{again}")

    def failed(self, request_id: bytes, error: RouterError) -> None:
        """A request ended with an error that was not its client's; a few of a crowd are written, the rest counted."""
        if not self._logger.isEnabledFor(logging.WARNING):
            return
        if self._is_one_of_few(FAILED):
            self._put("WARNING", f"failed: {error.status} {error.code} request={request_id.decode('ascii')}")

    def left(self, request_id: bytes, stage: str) -> None:
        """A client left before its request had a decision, so that this is all the log says of it; few of a crowd."""
        if self._logger.isEnabledFor(logging.INFO) and self._is_one_of_few(LEFT):
            self._put("INFO", f"left: stage={stage} request={request_id.decode('ascii')}")

    def _is_one_of_few(self, crowd: str) -> bool:
        self._crowds[crowd] += 1
        return self._crowds[crowd] <= MAX_FAILURES

    def _look(self) -> None:
        # Once for a batch: it is looked up slowly.
        self._tells = self._logger.isEnabledFor(logging.INFO)

    def _put(self, level: str, text: str) -> None:
        self._lines.append((time.time(), level, text))
        if len(self._lines) >= MAX_BATCH:
            self.flush()
        elif self._timer is None:
            self._look()
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        """Write what has been put down."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, []
        for crowd, count in self._crowds.items():
            if count > MAX_FAILURES:
                lines.append((time.time(), CROWDS[crowd], f"{crowd}: {count - MAX_FAILURES} more requests"))
            self._crowds[crowd] = 0
        handler = _stream_handler()
        if not lines or handler is None:
            return
        # A full disk costs lines of the log, never a request.
        with contextlib.suppress(OSError, ValueError), handler.lock or contextlib.nullcontext():
            handler.stream.write("".join(_formatted(lines)))
            handler.flush()


def _stream_handler() -> logging.StreamHandler[TextIO] | None:
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            return handler
    return None


def _formatted(lines: list[tuple[float, str, str]]) -> list[str]:
    """Lines as the logging module would have them; the date is written once for all of a second."""
    formatted: list[str] = []
    last, stamp = -1, ""
    for at, level, text in lines:
        second = int(at)
        if second != last:
            last, stamp = second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        formatted.append(f"{stamp},{int((at - second) * 1000):03d} {level} {NAME}: {text}\n")
    return formatted
