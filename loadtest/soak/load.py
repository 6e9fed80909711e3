"""Clients of many kinds, and what became of each of their requests. Nobody's requests go uncounted."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

from loadtest.conversation import Shape, user_turns
from loadtest.soak.account import Sent

MODEL = "sim-model"
CHAT = Shape(turns=5, first_tokens=1_200, growth_tokens=120, answer_tokens=24, bytes_per_token=6.0)
LONG = Shape(turns=1, first_tokens=16_000, growth_tokens=120, answer_tokens=24, bytes_per_token=6.0)
KINDS = {"conversation": 60, "whole": 15, "long": 8, "leaves early": 7, "leaves within": 10}
ANSWER_SECONDS = 30.0


@dataclass
class Load:
    """`lanes` clients until `stop`. Kinds: a conversation in streams, a whole answer, a long prompt, clients that
    leave before the first byte and within the stream.

    `outcomes` counts what clients saw: ok, left (by their own choice), refused (an error of the router in place of an
    answer), balancer (an error of nginx), broken (an answer that did not end), unreachable.
    """

    url: str
    lanes: int
    think_seconds: float = 0.15
    outcomes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    requests: dict[str, Sent] = field(default_factory=dict)  # by id
    began: float = 0.0

    def __post_init__(self) -> None:
        self._seeds = iter(range(1, 1 << 60))
        self._numbers = itertools.count(1)
        self._going = True

    def stop(self) -> None:
        """Begin nothing more."""
        self._going = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Clients are at work within; the end waits for their last answers."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        async with httpx.AsyncClient(timeout=ANSWER_SECONDS, trust_env=False, limits=limits) as client:
            lanes = [asyncio.create_task(self._lane(client, number)) for number in range(self.lanes)]
            try:
                yield
                self.stop()
                await asyncio.gather(*lanes)
            finally:
                # One whose answer comes as it is cancelled goes on.
                self.stop()
                for lane in lanes:
                    lane.cancel()
                await asyncio.gather(*lanes, return_exceptions=True)

    async def _lane(self, client: httpx.AsyncClient, number: int) -> None:
        rng = random.Random(number)
        while self._going:
            kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
            messages: list[dict[str, str]] = []
            for text in user_turns(next(self._seeds), LONG if kind == "long" else CHAT):
                if not self._going:
                    return
                messages.append({"role": "user", "content": text})
                if not await self._turn(client, kind, messages, rng) or kind != "conversation":
                    break
                messages.append({"role": "assistant", "content": "well"})
                await asyncio.sleep(self.think_seconds)
            await asyncio.sleep(self.think_seconds)

    async def _turn(
        self, client: httpx.AsyncClient, kind: str, messages: list[dict[str, str]], rng: random.Random
    ) -> bool:
        body = {"model": MODEL, "messages": messages, "max_tokens": CHAT.answer_tokens, "stream": kind != "whole"}
        leave = {"leaves early": rng.uniform(0.02, 0.08), "leaves within": rng.uniform(0.1, 0.2)}.get(kind)
        name = f"soak-{next(self._numbers)}"
        self.kinds[kind] += 1
        began = now()
        outcome = await ask(client, f"{self.url}/v1/chat/completions", body, name, leave)
        self.outcomes[outcome] += 1
        self.requests[name] = Sent(outcome, began - self.began, now() - self.began)
        return outcome == "ok"


async def ask(client: httpx.AsyncClient, url: str, body: dict[str, object], name: str, leave: float | None) -> str:
    """What came of one request, by whose id routers call it; the client leaves after `leave` seconds."""
    began = False

    def beginning() -> None:
        nonlocal began
        began = True

    try:
        return await asyncio.wait_for(_answer(client, url, body, name, beginning), leave or ANSWER_SECONDS)
    except TimeoutError:
        return "left" if leave is not None else "silent"
    except httpx.HTTPError:
        return "broken" if began else "unreachable"


async def _answer(
    client: httpx.AsyncClient, url: str, body: dict[str, object], name: str, beginning: Callable[[], None]
) -> str:
    data = b""
    async with client.stream("POST", url, json=body, headers={"x-request-id": name}) as answer:
        async for piece in answer.aiter_raw():
            beginning()
            data += piece
    if answer.status_code != 200:
        if b'"no_replica"' in data:
            return "balancer"
        return "refused" if "x-router-decision" in answer.headers or b'"code"' in data else "balancer"
    whole = data.rstrip().endswith(b"data: [DONE]" if body["stream"] else b"}")
    return "ok" if whole else "broken"


def now() -> float:
    """Seconds of a clock that only goes forward."""
    return time.monotonic()
