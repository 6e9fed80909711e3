"""Asks a worker what it says of itself: GET only, each answer bounded in size and time."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from router.cachemodel import profile_from_labels
from router.doctor.facts import Facts, asks_outside, count_engines, read_lengths, speaks_as_router
from router.workers.discovery import MAX_BYTES, MetricsFacts, parse_metrics, parse_models
from router.workers.fetch import Answer, FetchError, Target

_SMALL = 64 << 10
_LONGEST_VERSION = 64


@dataclass(frozen=True, slots=True)
class Subject:
    """A worker to be looked at; `timeout` bounds each answer, in seconds."""

    url: str
    key: str | None
    timeout: float


class _Version(msgspec.Struct):
    version: str


async def look(subject: Subject) -> Facts:
    """All that can be learnt without sending a prompt."""
    target = Target(subject.url, subject.key)
    trouble: str | None = None
    answers: dict[str, Answer] = {}
    for path, limit in (("/health", _SMALL), ("/v1/models", MAX_BYTES), ("/metrics", MAX_BYTES), ("/version", _SMALL)):
        try:
            answers[path] = await target.get(path, limit=limit, timeout=subject.timeout)
        except FetchError as error:
            trouble = trouble or str(error)
            if not answers and path == "/v1/models":
                break  # two silent routes: the others would only cost two more waits
    if not answers:
        return Facts(subject.url, trouble=trouble)
    return _facts(subject, answers)


async def counters(subject: Subject) -> MetricsFacts:
    """The worker's counters and load as they are now; all unknown if it does not say."""
    try:
        answer = await Target(subject.url, subject.key).get("/metrics", limit=MAX_BYTES, timeout=subject.timeout)
    except FetchError:
        return MetricsFacts()
    return parse_metrics(answer.body) if answer.status == 200 else MetricsFacts()


def _facts(subject: Subject, answers: dict[str, Answer]) -> Facts:
    status = {path: answer.status for path, answer in answers.items()}
    listed = answers.get("/v1/models")
    models = parse_models(listed.body) if listed is not None and listed.status == 200 else {}
    bases = [model for model in models.values() if model.parent is None] or list(models.values())
    page = answers["/metrics"].body if status.get("/metrics") == 200 else b""
    metrics = parse_metrics(page)
    return Facts(
        subject.url,
        with_key=subject.key is not None,
        health_status=status.get("/health"),
        models_status=status.get("/v1/models"),
        models=tuple(model.name for model in bases),
        window=bases[0].window if bases else None,
        version=_version(answers.get("/version")),
        metrics_status=status.get("/metrics"),
        metrics=metrics,
        profile=profile_from_labels(metrics.cache_labels or {}),
        lengths=read_lengths(page),
        engines=count_engines(page),
        external_cache=asks_outside(page),
        is_router=speaks_as_router(page),
    )


def _version(answer: Answer | None) -> str | None:
    if answer is None or answer.status != 200:
        return None
    try:
        version = msgspec.json.decode(answer.body, type=_Version).version
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return version if version.isprintable() and 0 < len(version) <= _LONGEST_VERSION else None
