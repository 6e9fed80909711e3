"""What a worker remembers about the requests it got. Times are `time.monotonic()`, comparable across processes."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Outcome = Literal["open", "done", "aborted", "fault"]


@dataclass(slots=True, eq=False)
class Record:
    """One request. `aborted_at` is when the client was seen to leave before its answer was complete."""

    number: int
    connection: int
    ordinal: int
    arrived_at: float
    method: str = ""
    target: str = ""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    body_bytes: int = 0
    received_at: float | None = None
    first_byte_at: float | None = None
    ended_at: float | None = None
    aborted_at: float | None = None
    outcome: Outcome = "open"
    status: int | None = None
    fault: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    prefill_seconds: float | None = None
    queue_seconds: float | None = None

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def header(self, name: str) -> str | None:
        """The first header of that name, in any case."""
        wanted = name.lower().encode()
        for key, value in self.headers:
            if key.lower() == wanted:
                return value.decode("latin-1")
        return None

    def as_json(self, *, bodies: bool) -> dict[str, Any]:
        """A plain form for /sim/requests; header texts are latin-1, bodies base64."""
        shown: dict[str, Any] = {name: getattr(self, name) for name in _PLAIN}
        shown["headers"] = [(key.decode("latin-1"), value.decode("latin-1")) for key, value in self.headers]
        if bodies:
            shown["body"] = base64.b64encode(self.body).decode()
        return shown

    @classmethod
    def from_json(cls, shown: dict[str, Any]) -> Record:
        """The inverse of `as_json`."""
        record = cls(**{name: shown[name] for name in _PLAIN})
        record.headers = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in shown["headers"]]
        record.body = base64.b64decode(shown.get("body", ""))
        return record


_PLAIN = tuple(name for name in Record.__slots__ if name not in ("headers", "body"))


class RecordRing:
    """The last `limit` records; bodies beyond `max_bytes` in all are dropped, oldest first."""

    def __init__(self, limit: int, max_bytes: int) -> None:
        self._records: deque[Record] = deque(maxlen=limit)
        self._with_body: deque[Record] = deque()
        self._bytes = 0
        self._max_bytes = max_bytes
        self.total = 0

    def open(self, connection: int, ordinal: int, now: float) -> Record:
        self.total += 1
        record = Record(self.total, connection, ordinal, now)
        self._records.append(record)
        return record

    def keep_body(self, record: Record, body: bytes) -> None:
        if not body:
            return
        record.body = body
        self._with_body.append(record)
        self._bytes += len(body)
        while self._bytes > self._max_bytes or len(self._with_body) > (self._records.maxlen or 0):
            oldest = self._with_body.popleft()
            self._bytes -= len(oldest.body)
            oldest.body = b""

    def clear(self) -> None:
        self._records.clear()
        self._with_body.clear()
        self._bytes = 0

    def __iter__(self) -> Iterator[Record]:
        return iter(list(self._records))

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Record:
        return self._records[index]
