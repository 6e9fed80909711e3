"""The last decisions and what became of them, for people who ask why."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from typing import Any, Final

# Decisions whose evidence is kept: it is larger than a record, and people ask about what has just happened.
EVIDENCE_KEPT: Final = 256


@dataclass(slots=True)
class DecisionRecord:
    """One decision in plain values; the outcome is filled in when the answer has ended. No prompt content, no URLs."""

    request_id: str
    at: float
    endpoint: str
    model: str
    worker: str
    reason: str
    matched_blocks: int
    blocks: int
    resumable_tokens: int
    prompt_tokens: int
    load: int
    min_load: int
    slack: int
    runner_up: str | None
    attempt: int
    status: int | None = None
    outcome: str | None = None
    first_byte_seconds: float | None = None
    total_seconds: float | None = None
    reported_prompt_tokens: int | None = None
    predicted_cached_tokens: int | None = None
    reported_cached_tokens: int | None = None
    output_tokens: int | None = None
    verdict: str | None = None
    # The code of the error that ended the attempt, or what made it be given to another worker.
    error: str | None = None

    # Spelt out, since a generated one is not compiled.
    def __init__(
        self,
        request_id: str,
        at: float,
        endpoint: str,
        model: str,
        worker: str,
        reason: str,
        matched_blocks: int,
        blocks: int,
        resumable_tokens: int,
        prompt_tokens: int,
        load: int,
        min_load: int,
        slack: int,
        runner_up: str | None,
        attempt: int,
        status: int | None = None,
        outcome: str | None = None,
        first_byte_seconds: float | None = None,
        total_seconds: float | None = None,
        reported_prompt_tokens: int | None = None,
        predicted_cached_tokens: int | None = None,
        reported_cached_tokens: int | None = None,
        output_tokens: int | None = None,
        verdict: str | None = None,
        error: str | None = None,
    ) -> None:
        self.request_id = request_id
        self.at = at
        self.endpoint = endpoint
        self.model = model
        self.worker = worker
        self.reason = reason
        self.matched_blocks = matched_blocks
        self.blocks = blocks
        self.resumable_tokens = resumable_tokens
        self.prompt_tokens = prompt_tokens
        self.load = load
        self.min_load = min_load
        self.slack = slack
        self.runner_up = runner_up
        self.attempt = attempt
        self.status = status
        self.outcome = outcome
        self.first_byte_seconds = first_byte_seconds
        self.total_seconds = total_seconds
        self.reported_prompt_tokens = reported_prompt_tokens
        self.predicted_cached_tokens = predicted_cached_tokens
        self.reported_cached_tokens = reported_cached_tokens
        self.output_tokens = output_tokens
        self.verdict = verdict
        self.error = error

    def header_lines(self) -> bytes:
        """The decision as the answer's header shows it, in two lines with their ends."""
        return (
            f"x-router-worker: {self.worker}\r\n"
            f"x-router-decision: {self.reason}; match={self.matched_blocks}/{self.blocks}; "
            f"resumable={self.resumable_tokens}; load={self.load}/{self.min_load}; slack={self.slack}\r\n"
        ).encode()

    def line(self) -> str:
        """The decision as the log shows it."""
        return (
            f"[PREFIX] {self.reason}: {self.worker} keeps {self.matched_blocks}/{self.blocks} blocks "
            f"(slots={self.load} min={self.min_load} slack={self.slack}, ~{self.prompt_tokens} tokens)"
        )

    def as_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return {name: getattr(self, name) for name in _FIELDS}


_FIELDS: Final = tuple([field.name for field in fields(DecisionRecord)])


class DecisionRing:
    """The last `size` decisions, newest last, and the evidence of the latest of them."""

    def __init__(self, size: int) -> None:
        self._ring: deque[DecisionRecord] = deque(maxlen=size)
        self._evidence: deque[tuple[DecisionRecord, object]] = deque(maxlen=min(size, EVIDENCE_KEPT))

    def add(self, record: DecisionRecord, evidence: object = None) -> None:
        """`evidence` is what the decision saw, for those who ask soon; see `evidence_of`."""
        self._ring.append(record)
        if evidence is not None:
            self._evidence.append((record, evidence))

    def __len__(self) -> int:
        return len(self._ring)

    def find(self, request_id: str | None = None, limit: int = 1000) -> list[DecisionRecord]:
        """Newest first, all of them or those of one request."""
        found = [record for record in reversed(self._ring) if request_id is None or record.request_id == request_id]
        return found[:limit]

    def evidence_of(self, record: DecisionRecord) -> object:
        """What was given with the record; None if nothing was, or too many decisions have fallen since."""
        return next((evidence for owner, evidence in self._evidence if owner is record), None)
