"""A file of decisions as JSON lines, for those who ask later: what `prefix-router replay FILE` reads.

A line is a decision and what became of it, with the prompt's hashes and sizes and nothing of its content. Requests
only leave their records in a bounded queue; a thread makes lines of them and writes. A full queue, a full disk or a
file that can't be opened cost lines, which are counted, and never a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from router.decisions import DecisionRecord
from router.errors import SettingsError
from router.settings import DecisionFileSettings

log = logging.getLogger("router.decision_file")

FLUSH_SECONDS: Final = 0.25
# Lines of one write, about 2 KB each. Making them takes half a millisecond, in which the thread holds the interpreter.
BATCH: Final = 100
LONGEST_LINE: Final = 64 << 10
RESULTS: Final = ("written", "dropped", "failed")
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Entry:
    """One request that has ended: its decisions in order, its prompt's hashes, and the prompt's canonical bytes."""

    records: Sequence[DecisionRecord]
    hashes: Sequence[int]
    prompt_bytes: int


class DecisionFile:
    """Takes entries on the event loop, writes them in a thread of its own; raises SettingsError if it can't begin."""

    def __init__(self, path: Path, settings: DecisionFileSettings, replica: str, clock: Callable[[], float]) -> None:
        self._file = RotatedFile(path, settings.max_bytes, settings.keep)
        self._limit = settings.queue
        self._replica = replica
        self._clock = clock
        self._queue: deque[Entry] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="decision-file")
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self.results = dict.fromkeys(RESULTS, 0)
        try:
            self._file.open()
        except OSError as error:
            raise SettingsError([f"decision_file.path: can't write {path}: {error.strerror}"]) from None

    def add(self, entry: Entry) -> None:
        """Put down a request that has ended; it is written within a moment."""
        if len(self._queue) >= self._limit:
            self.results["dropped"] += len(entry.records)
            return
        self._queue.append(entry)
        if self._timer is None and self._writing is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._begin)

    async def aclose(self) -> None:
        """Write what is left, and close the file."""
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await self._writing
        self._begin()
        if self._writing is not None:
            await self._writing
        if self._timer is not None:
            self._timer.cancel()
        self._thread.shutdown()
        self._file.close()

    def _begin(self) -> None:
        self._timer = None
        if self._queue:
            self._writing = asyncio.get_running_loop().create_task(self._write(), name="decision-file")

    async def _write(self) -> None:
        """Write until the queue is empty; what comes meanwhile waits in it."""
        loop = asyncio.get_running_loop()
        # Decisions are stamped on the loop's clock, and the file speaks of the world's.
        offset = time.time() - self._clock()
        try:
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
                lines = sum(len(entry.records) for entry in batch)
                written = await loop.run_in_executor(self._thread, self._put, batch, offset)
                self.results["written" if written else "failed"] += lines
        finally:
            self._writing = None

    def _put(self, batch: Iterable[Entry], offset: float) -> bool:
        """In the thread: make lines and write them; whether that worked."""
        lines = [line for entry in batch for line in self._lines(entry, offset)]
        try:
            self._file.write(b"".join(lines))
        except OSError as error:
            log.warning("%d decisions are not in the file: %s", len(lines), error.strerror)
            return False
        return True

    def _lines(self, entry: Entry, offset: float) -> Iterable[bytes]:
        for record in entry.records:
            fields = record.as_dict()
            fields["at"] = round(record.at + offset, 4)
            fields["replica"] = self._replica
            fields["prompt_bytes"] = entry.prompt_bytes
            fields["hashes"] = entry.hashes
            yield _encode(fields) + b"\n"


class RotatedFile:
    """A file that gives way to a new one at `max_bytes`, with `keep` older ones behind it: FILE.1 is the youngest.

    Blocking, for one thread. What fails raises OSError and leaves whole lines behind.
    """

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._descriptor: int | None = None
        self._size = 0

    def open(self) -> None:
        """Go on where the file ends, behind the last whole line."""
        # Hashes say who shares what with whom, which is nobody else's business.
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._descriptor).st_size
        begin = max(0, self._size - LONGEST_LINE)
        end = os.pread(self._descriptor, self._size - begin, begin)
        torn = len(end) - end.rfind(b"\n") - 1
        if torn:
            self._size -= torn
            os.ftruncate(self._descriptor, self._size)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def write(self, data: bytes) -> None:
        """Append whole lines."""
        if self._descriptor is None:
            self.open()
        if self._size and self._size + len(data) > self._max_bytes:
            self._rotate()
        assert self._descriptor is not None
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except OSError:
            # Half a line would make the next one unreadable too.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            self.close()
            raise
        self._size += len(data)

    def _rotate(self) -> None:
        self.close()
        if self._keep:
            for number in range(self._keep - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(self._numbered(number), self._numbered(number + 1))
            os.replace(self.path, self._numbered(1))
        else:
            os.truncate(self.path, 0)
        self.open()

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
