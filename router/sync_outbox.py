"""What waits to be told to the other replicas, and in which order; whether it may go now is not decided here.

Ownership goes before the end of the requests that it came of: a claim that is withdrawn has been made true by then.
"""

from __future__ import annotations

from collections import deque

import msgspec

from router.sync_codec import Message, News, NewsKind, Row, take
from router.sync_work import OwnWork
from router.workers.registry import Registry

# Questions and digests that wait to be sent.
MAX_CONTROLS = 64


class Outbox:
    """Encoded `deltas` in order, ids of workers whose load has `changed`, and the `work`, which its owner puts in."""

    def __init__(self, registry: Registry, most: int) -> None:
        self.deltas: deque[msgspec.Raw] = deque()
        self.changed: set[str] = set()
        self.work = OwnWork(registry, most)
        self._registry = registry
        self._most = most
        # What the others were told last of each worker.
        self._told: dict[str, Row] = {}
        self._batches: deque[Message] = deque()
        self._controls: deque[Message] = deque(maxlen=MAX_CONTROLS)

    def make_room(self) -> bool:
        """Let the oldest delta go if there is no room for another one; whether that was so."""
        full = len(self.deltas) >= self._most
        if full:
            self.deltas.popleft()
        return full

    def post(self, message: Message) -> None:
        """A question or an answer for all."""
        self._controls.append(message)

    def statement(self, kind: NewsKind, blocks: int, *, heard: bool) -> News:
        """All that this replica has on workers; what it has under way follows, if anyone hears it."""
        rows = [Row(w.id, w.epoch, *w.own_part) for w in self._registry if w.local or w.epoch]
        self._told = {row.worker: row for row in rows}
        # Steps first: of what the account tells, the start must not count as untold.
        self._batches += self.work.messages()
        if heard:
            self._batches += self.work.account()
        return News(kind, rows=rows, blocks=blocks)

    def next(self) -> Message | None:
        """What to send now, if anything."""
        if self.changed or self.deltas:
            news = self._news()
            if news.rows or news.encoded:
                return news
        if not self._batches:
            self._batches += self.work.messages()
        if self._batches:
            return self._batches.popleft()
        return self._controls.popleft() if self._controls else None

    def cut_off(self) -> None:
        """Nobody hears anything: only ownership, epochs and loads are kept until somebody does."""
        self._told.clear()
        self._controls.clear()
        self._batches.clear()
        self.work.clear()

    def _news(self) -> News:
        rows = deque(row for row in map(self._row, self.changed) if row is not None)
        self.changed.clear()
        news = take(self.deltas, rows)
        self._told.update((row.worker, row) for row in news.rows)
        self.changed.update(row.worker for row in rows)  # those for which there was no room
        return news

    def _row(self, worker_id: str) -> Row | None:
        """What is to be told of a worker; None if that has not changed in the end."""
        worker = self._registry.get(worker_id)
        if worker is None:
            return None
        row = Row(worker_id, worker.epoch, *worker.own_part)
        return None if row == self._told.get(worker_id) else row
