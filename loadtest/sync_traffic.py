"""Conversations through a balancer, as clients hold them, and what clients see in each phase of a run."""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from loadtest.conversation import Shape, user_turns

MODEL = "sim-model"
SHAPE = Shape(turns=5, first_tokens=1_500, growth_tokens=150, answer_tokens=24, bytes_per_token=6.0)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: when it ended, its number in the conversation, and what came of it.

    `outcome` is ok, refused (an error in place of an answer) or broken (an answer that did not end). `known`: the
    replica knew who held the beginning, whether or not that worker was too busy.
    """

    ended: float
    number: int
    outcome: str
    first_byte: float = 0.0
    known: bool = False


@dataclass(frozen=True, slots=True)
class Phase:
    """What clients saw of the requests that ended within some time."""

    requests: int
    refused: int
    broken: int
    p50_ms: float
    p99_ms: float
    known: float


@dataclass
class Traffic:
    """`lanes` clients at a time, each holding one conversation after the other until the end."""

    url: str
    lanes: int = 12
    think_seconds: float = 0.1
    turns: list[Turn] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._go = asyncio.Event()
        self._go.set()
        self._busy = 0
        self._idle = asyncio.Event()
        self._seeds = itertools.count(1)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Traffic:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        self._client = httpx.AsyncClient(timeout=30, trust_env=False, limits=limits)
        self._tasks = [asyncio.create_task(self._lane()) for _ in range(self.lanes)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    async def pause(self) -> None:
        """Begin nothing more, and wait for what is under way."""
        self._go.clear()
        if self._busy:
            self._idle.clear()
            await self._idle.wait()

    def resume(self) -> None:
        """Go on."""
        self._go.set()

    def phase(self, begin: float, end: float) -> Phase:
        """What clients saw of the requests that ended in between."""
        return judge([turn for turn in self.turns if begin <= turn.ended < end])

    async def _lane(self) -> None:
        while True:
            messages: list[dict[str, str]] = []
            for number, text in enumerate(user_turns(next(self._seeds), SHAPE)):
                await asyncio.sleep(self.think_seconds)
                await self._go.wait()
                messages.append({"role": "user", "content": text})
                self._busy += 1
                try:
                    turn, answer = await self._ask(messages, number)
                finally:
                    self._busy -= 1
                    if not self._busy:
                        self._idle.set()
                self.turns.append(turn)
                if turn.outcome != "ok":
                    break
                messages.append({"role": "assistant", "content": answer})

    async def _ask(self, messages: list[dict[str, str]], number: int) -> tuple[Turn, str]:
        body = {"model": MODEL, "messages": messages, "max_tokens": SHAPE.answer_tokens, "stream": True}
        began = time.monotonic()
        first = 0.0
        data = b""
        try:
            async with self._client.stream("POST", f"{self.url}/v1/chat/completions", json=body) as answer:
                async for piece in answer.aiter_raw():
                    first = first or time.monotonic() - began
                    data += piece
        except httpx.HTTPError:
            return Turn(time.monotonic(), number, "broken" if first else "refused"), ""
        ended = time.monotonic()
        if answer.status_code != 200:
            return Turn(ended, number, "refused"), ""
        if not data.rstrip().endswith(b"data: [DONE]"):
            return Turn(ended, number, "broken", first), ""
        reason = answer.headers["x-router-decision"].split(";")[0]
        return Turn(ended, number, "ok", first, reason in ("hit", "spill")), _said(data)


def _said(data: bytes) -> str:
    pieces: list[str] = []
    for line in data.split(b"\n"):
        if line.startswith(b"data: {"):
            choices = json.loads(line[6:])["choices"]
            pieces += [choice.get("delta", {}).get("content") or "" for choice in choices]
    return "".join(pieces)


def judge(turns: Sequence[Turn]) -> Phase:
    """The figures of some requests."""
    times = [turn.first_byte * 1e3 for turn in turns if turn.outcome == "ok"] or [0.0]
    follow_ups = [turn for turn in turns if turn.number and turn.outcome == "ok"]
    return Phase(
        requests=len(turns),
        refused=sum(turn.outcome == "refused" for turn in turns),
        broken=sum(turn.outcome == "broken" for turn in turns),
        p50_ms=statistics.median(times),
        p99_ms=statistics.quantiles(times, n=100)[98] if len(times) > 1 else times[0],
        known=sum(turn.known for turn in follow_ups) / max(1, len(follow_ups)),
    )
