"""The probe: one prompt three times, another, the first again, each for one token of answer.

The prompts are as long as the cache's floor asks, no longer than `budget` tokens in all, and new in every run, so
that no earlier run has left them in the cache. Nothing is sent to a worker that asks more than the budget allows.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import httpx
import msgspec

from router.doctor.facts import Facts, Probe, Sent
from router.doctor.judge import PLAN
from router.doctor.look import Subject, counters
from router.workers.discovery import MetricsFacts

DEFAULT_BUDGET = 65_536
_LEAST_TOKENS = 2_000  # shorter prompts are computed too fast to be timed
_ANSWER_SECONDS = 120.0  # for a long prompt behind others in a queue
_ANSWER_TOKENS = 16  # room for template, start and answer
_MAX_ANSWER = 1 << 20
_ROUTES = ("/v1/completions", "/v1/chat/completions")
_NOT_THIS_ROUTE = (400, 404, 405, 422, 501)
# Common words: a token each with the blank before them, for nearly every tokenizer.
_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body"
)
_WORDS = _TEXT.split()


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


class ProbeError(Exception):
    """A prompt of the probe got no usable answer; the message says why, without URL or key."""


def size(facts: Facts, budget: int) -> int | str:
    """Tokens of each prompt, or why there can be no probe."""
    if not facts.models:
        return "there is no model to be asked"
    profile = facts.profile
    # A quarter more than the floor, since words are not exactly tokens, and one unit, so that the hit is no accident.
    wanted = max(_LEAST_TOKENS, profile.floor_tokens * 5 // 4 + profile.unit)
    room = budget // len(PLAN)
    if facts.window is not None:
        room = min(room, facts.window - _ANSWER_TOKENS)
        if facts.window - _ANSWER_TOKENS < profile.floor_tokens:
            return f"the floor of {profile.floor_tokens:,} tokens does not fit the window of {facts.window:,}"
    least = max(profile.floor_tokens * 5 // 4, 1)
    if room < least:
        return f"it needs {least * len(PLAN):,} tokens in all, and may send {budget:,}"
    return min(wanted, room)


async def probe(
    subject: Subject,
    facts: Facts,
    *,
    budget: int = DEFAULT_BUDGET,
    draw: Callable[[], float] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Probe:
    """Send the prompts, one after another; a probe that cannot be completed says why."""
    tokens = size(facts, budget)
    if isinstance(tokens, str):
        return Probe(skipped=tokens)
    draw = draw or random.SystemRandom().random
    texts = [_text(tokens, draw) for _ in range(max(PLAN) + 1)]
    headers = {} if subject.key is None else {"authorization": f"Bearer {subject.key}"}
    before = await counters(subject)
    busy = bool(before.running or before.waiting)
    sent: list[Sent] = []
    skipped: str | None = None
    async with httpx.AsyncClient(base_url=subject.url, headers=headers, timeout=None, trust_env=False) as client:
        asker = _Asker(client, facts.models[0])
        try:
            for number in PLAN:
                sent.append(await _timed(asker, number, texts[number], clock))
                if sum(one.tokens or tokens for one in sent) > budget:
                    raise ProbeError("its prompts came out longer than allowed")
        except ProbeError as error:
            skipped = str(error) if len(sent) < len(PLAN) else None
    after = await counters(subject)
    return Probe(
        tuple(sent),
        _moved(before.cache_queries, after.cache_queries),
        _moved(before.cache_hits, after.cache_hits),
        busy=busy or bool(after.running or after.waiting) or _strangers(before, after, sent),
        skipped=skipped,
    )


async def _timed(asker: _Asker, number: int, text: str, clock: Callable[[], float]) -> Sent:
    """A prompt, what its answer said, and how long that took; raises ProbeError where there is none."""
    begun = clock()
    usage = await asker.ask(text)
    seconds = clock() - begun
    details = usage.prompt_tokens_details
    return Sent(number, usage.prompt_tokens, details.cached_tokens if details else None, seconds)


def _strangers(before: MetricsFacts, after: MetricsFacts, sent: list[Sent]) -> bool:
    """Whether the worker computed prompts that are not the probe's."""
    moved = _moved(before.prompt_tokens, after.prompt_tokens)
    sizes = [one.tokens for one in sent if one.tokens is not None]
    return moved is not None and len(sizes) == len(sent) and moved > 1.02 * sum(sizes)


def _moved(before: float | None, after: float | None) -> float | None:
    if before is None or after is None or after < before:
        return None
    return after - before


def _text(tokens: int, draw: Callable[[], float]) -> str:
    return " ".join(_WORDS[int(draw() * len(_WORDS))] for _ in range(tokens - 1))


class _Asker:
    """Sends prompts to the route that the worker understands; the first prompt finds out which."""

    def __init__(self, client: httpx.AsyncClient, model: str) -> None:
        self._client = client
        self._model = model
        self._routes = list(_ROUTES)

    async def ask(self, text: str) -> _Usage:
        """The usage of an answer of one token. Raises ProbeError."""
        while True:
            status, content = await self._post(self._routes[0], text)
            if status == 200:
                return _usage(content)
            if status not in _NOT_THIS_ROUTE or len(self._routes) == 1:
                raise ProbeError(f"{self._routes[0]} says {status}")
            self._routes.pop(0)

    async def _post(self, route: str, text: str) -> tuple[int, bytes]:
        body: dict[str, object] = {"model": self._model, "max_tokens": 1, "temperature": 0, "stream": False}
        if route == _ROUTES[0]:
            body["prompt"] = text
        else:
            body["messages"] = [{"role": "user", "content": text}]
        content = bytearray()
        try:
            async with asyncio.timeout(_ANSWER_SECONDS), self._client.stream("POST", route, json=body) as answer:
                async for part in answer.aiter_bytes():
                    content += part
                    if len(content) > _MAX_ANSWER:
                        raise ProbeError(f"{route} answers with more than {_MAX_ANSWER >> 20} MiB")
        except TimeoutError:
            raise ProbeError(f"{route} did not answer in time") from None
        except httpx.HTTPError as error:
            raise ProbeError(f"{route} failed ({type(error).__name__})") from None
        return answer.status_code, bytes(content)


def _usage(content: bytes) -> _Usage:
    try:
        return msgspec.json.decode(content, type=_Answer).usage or _Usage()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ProbeError("an answer could not be read") from None
