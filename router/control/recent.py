"""The last decisions in sums: by model, by worker, and how fast prompts were computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from router.calibration import Verdict
from router.decisions import DecisionRecord

# Prompts with less to compute tell more of the network than of the engine.
TELLING_TOKENS: Final = 256
# An answer whose end comes so much after its first byte was streamed.
STREAMED: Final = 1.02
FAST_SHARE: Final = 0.9


@dataclass(slots=True)
class Answers:
    """Tokens of those answers that reported usage; `unreported` said nothing of their cache.

    `confirmed` is of each answer the smaller of what was predicted and what was reported. `judged`: answers of which
    something was predicted, and that said what became of it; one that confirms nothing is among no verdicts.
    """

    count: int = 0
    prompt: int = 0
    predicted: int = 0
    reported: int = 0
    confirmed: int = 0
    unreported: int = 0
    judged: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)

    def add(self, record: DecisionRecord) -> None:
        if record.reported_cached_tokens is None:
            self.unreported += record.outcome == "ok"
        else:
            self.count += 1
            self.prompt += record.reported_prompt_tokens or 0
            self.predicted += record.predicted_cached_tokens or 0
            self.reported += record.reported_cached_tokens
            self.confirmed += min(record.predicted_cached_tokens or 0, record.reported_cached_tokens)
        predicted = bool(record.predicted_cached_tokens)
        if record.verdict is not None and (predicted or record.verdict != Verdict.CONFIRMED):
            self.verdicts[record.verdict] += 1
            self.judged += predicted and record.verdict != Verdict.UNKNOWN

    def as_dict(self) -> dict[str, Any]:
        """All of it by name."""
        return {
            "answers": self.count,
            "prompt_tokens": self.prompt,
            "predicted_tokens": self.predicted,
            "reported_tokens": self.reported,
            "confirmed_tokens": self.confirmed,
            "verdicts": {verdict.value: self.verdicts[verdict] for verdict in Verdict},
        }


@dataclass(slots=True)
class Traffic:
    """The prompts of one model: why each was placed, and how many were shorter than its engines can reuse.

    `finer`: prompts so short of which the engine reused something all the same.
    """

    prompts: int = 0
    below_floor: int = 0
    finer: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    answers: Answers = field(default_factory=Answers)


@dataclass(slots=True)
class Recent:
    """All of it; `speed` is in prompt tokens a second, None until an answer has told."""

    total: Answers = field(default_factory=Answers)
    models: dict[str, Traffic] = field(default_factory=dict)
    workers: dict[str, Answers] = field(default_factory=dict)
    speed: float | None = None


def look_back(records: Iterable[DecisionRecord], floors: Mapping[str, int]) -> Recent:
    """One pass; `floors` has for each model the shortest prompt that its engines can reuse, in tokens."""
    recent = Recent()
    streamed: list[float] = []
    whole: list[float] = []
    for record in records:
        recent.total.add(record)
        traffic = recent.models.get(record.model)
        if traffic is None:
            traffic = recent.models[record.model] = Traffic()
        traffic.prompts += 1
        traffic.reasons[record.reason] += 1
        traffic.answers.add(record)
        if record.reason != "bypass":
            tokens = record.reported_prompt_tokens or record.prompt_tokens
            if tokens < floors.get(record.model, 0):
                traffic.below_floor += not record.reported_cached_tokens
                traffic.finer += bool(record.reported_cached_tokens)
        answers = recent.workers.get(record.worker)
        if answers is None:
            answers = recent.workers[record.worker] = Answers()
        answers.add(record)
        speed = _speed(record)
        if speed is not None:
            assert record.first_byte_seconds is not None
            streams = (record.total_seconds or 0.0) > STREAMED * record.first_byte_seconds
            (streamed if streams else whole).append(speed)
    recent.speed = _fast(streamed) or _fast(whole)
    return recent


def _speed(record: DecisionRecord) -> float | None:
    """Tokens computed a second until the first byte; waiting counts too, so that the fastest are nearest the truth."""
    if record.reported_prompt_tokens is None or not record.first_byte_seconds:
        return None
    computed = record.reported_prompt_tokens - (record.reported_cached_tokens or 0)
    return computed / record.first_byte_seconds if computed >= TELLING_TOKENS else None


def _fast(speeds: list[float]) -> float | None:
    return sorted(speeds)[int(FAST_SHARE * (len(speeds) - 1))] if speeds else None
