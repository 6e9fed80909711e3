"""A growing conversation: its text, a player that holds it through one or more replicas, and the table of its turns."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openai import OpenAI, Stream
    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessageParam

# With its blank and the stops between sentences a word comes to about six bytes, as English does per token.
_TEXT = """
about above across after again almost along also always animal answer around because been before began begin
behind being below between black book both bring brought build call came change children city close cold color
come could country course cover cross different door down draw during early earth east enough even evening every
face fact family farm father feel feet field figure find fire first fish five follow food form found four friend
from full garden gave girl give good great green ground group grow half hand hard harvest have head hear heard help
here high hold home horse hour house idea inch island just keep kind king knew know land language large last late
laugh learn leave left letter life light line list listen little live long look machine made make many mark market
measure might mile mind money moon morning most mother mountain move much music name near need never next night
north note notice number object often once only open order other over page paper part pass pattern people perhaps
person picture piece place plain plan plant point power press problem product pull question quick rain reach read
ready real remember rest right river road rock room round said same school science second seem sentence serve
several shape ship short should show side simple since sing size sleep slow small snow some song soon sound south
spell stand star start state step still stop story street strong study such sure surface system table take talk
teach tell that their them then there these thing think this those though thought thousand three through time
together told took toward town travel tree true turn under unit until usual very voice vowel wait walk want warm
watch water week weight west what wheel where which while white whole wind window winter with wonder wood word work
world would write year yellow young
"""
_WORDS = tuple(_TEXT.split())
_SENTENCE = (7, 15)


@dataclass(frozen=True, slots=True)
class Shape:
    """How long a conversation is. Tokens become bytes of text by `bytes_per_token`, which depends on the engine.

    `answer_tokens` is the part of each turn's growth that the engine itself writes.
    """

    turns: int = 5
    first_tokens: int = 5_600
    growth_tokens: int = 190
    answer_tokens: int = 16
    bytes_per_token: float = 6.0

    def __post_init__(self) -> None:
        if self.turns < 1 or self.bytes_per_token <= 0 or not 0 < self.answer_tokens < self.growth_tokens:
            raise ValueError("a conversation needs a turn, bytes in a token, and growth beyond the answers")


def user_turns(seed: int, shape: Shape | None = None) -> tuple[str, ...]:
    """What the user says in each turn: the same for the same seed, different from the first words on for another."""
    shape = shape or Shape()
    rng = random.Random(seed)
    later = shape.growth_tokens - shape.answer_tokens
    sizes = [shape.first_tokens, *[later] * (shape.turns - 1)]
    return tuple(_prose(rng, round(tokens * shape.bytes_per_token)) for tokens in sizes)


def _prose(rng: random.Random, size: int) -> str:
    """Sentences of common words, `size` bytes long or a word more."""
    parts: list[str] = []
    written = 0
    left = 0
    while written < size:
        # random() is the one draw whose sequence Python keeps over its versions.
        word = _WORDS[int(rng.random() * len(_WORDS))]
        if left == 0:
            word, left = word.capitalize(), _SENTENCE[0] + int(rng.random() * (_SENTENCE[1] - _SENTENCE[0]))
        left -= 1
        parts.append(f"{word}." if left == 0 else word)
        written += len(parts[-1]) + 1
    return " ".join(parts)


@dataclass(frozen=True, slots=True)
class TurnResult:
    """One turn as the client saw it; None where nobody said."""

    turn: int
    replica: int
    worker: str | None
    decision: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    first_token_seconds: float
    seconds: float
    finish_reason: str | None
    answer: str

    @property
    def reason(self) -> str | None:
        """Why the router chose the worker: the first word of its decision."""
        return self.decision.split(";")[0].strip() if self.decision else None

    @property
    def matched(self) -> str | None:
        """Blocks believed shared over blocks of the prompt, such as `64/64`."""
        for field in (self.decision or "").split(";")[1:]:
            name, _, value = field.strip().partition("=")
            if name == "match":
                return value
        return None


class Player:
    """Holds one conversation, its turns alternating over `client_urls`. A context manager: it owns the clients.

    `timeout` bounds each wait for bytes of an answer, in seconds. A failed turn raises the client's own error and
    leaves the conversation as it was. With `stream` off the time to the first token is that of the whole answer.
    """

    def __init__(
        self,
        client_urls: Sequence[str],
        model: str,
        *,
        max_tokens: int = 16,
        stream: bool = True,
        api_key: str = "unused",
        timeout: float = 300.0,
    ) -> None:
        from openai import DefaultHttpxClient, OpenAI

        if not client_urls:
            raise ValueError("a conversation needs at least one URL")
        self._model = model
        self._max_tokens = max_tokens
        self._stream = stream
        self._messages: list[ChatCompletionMessageParam] = []
        self._turn = 0
        self._clients = [
            OpenAI(
                base_url=f"{url.rstrip('/')}/v1",
                api_key=api_key,
                timeout=timeout,
                # A retry of the client would hide what the router did.
                max_retries=0,
                # A proxy set for the outside world has no business here.
                http_client=DefaultHttpxClient(trust_env=False, timeout=timeout),
            )
            for url in client_urls
        ]

    def __enter__(self) -> Player:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the clients' connections."""
        for client in self._clients:
            client.close()

    def say(self, text: str) -> TurnResult:
        """The next turn: `text` in, the answer into the conversation."""
        replica = self._turn % len(self._clients)
        said: list[ChatCompletionMessageParam] = [*self._messages, {"role": "user", "content": text}]
        ask = self._streamed if self._stream else self._whole
        headers, heard = ask(self._clients[replica], said)
        self._turn += 1
        self._messages = [*said, {"role": "assistant", "content": heard.answer}]
        return TurnResult(
            turn=self._turn,
            replica=replica + 1,
            worker=headers.get("x-router-worker"),
            decision=headers.get("x-router-decision"),
            prompt_tokens=heard.usage.prompt_tokens if heard.usage else None,
            cached_tokens=_cached(heard.usage),
            first_token_seconds=heard.first_token_seconds,
            seconds=heard.seconds,
            finish_reason=heard.finish_reason,
            answer=heard.answer,
        )

    def _streamed(self, client: OpenAI, said: list[ChatCompletionMessageParam]) -> tuple[dict[str, str], _Heard]:
        begun = time.perf_counter()
        raw = client.chat.completions.with_raw_response.create(
            model=self._model,
            messages=said,
            max_tokens=self._max_tokens,
            temperature=0.0,
            stream=True,
            stream_options={"include_usage": True},
        )
        return dict(raw.headers), _listen(raw.parse(), begun)

    def _whole(self, client: OpenAI, said: list[ChatCompletionMessageParam]) -> tuple[dict[str, str], _Heard]:
        begun = time.perf_counter()
        raw = client.chat.completions.with_raw_response.create(
            model=self._model, messages=said, max_tokens=self._max_tokens, temperature=0.0
        )
        return dict(raw.headers), _read(raw.parse(), begun)


@dataclass(frozen=True, slots=True)
class _Heard:
    answer: str
    finish_reason: str | None
    usage: CompletionUsage | None
    first_token_seconds: float
    seconds: float


def _listen(stream: Stream[ChatCompletionChunk], begun: float) -> _Heard:
    """Follow a streamed answer to its end."""
    parts: list[str] = []
    finish: str | None = None
    usage: CompletionUsage | None = None
    first: float | None = None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            if choice.delta.content:
                first = first or time.perf_counter() - begun
                parts.append(choice.delta.content)
    seconds = time.perf_counter() - begun
    return _Heard("".join(parts), finish, usage, first or seconds, seconds)


def _read(completion: ChatCompletion, begun: float) -> _Heard:
    seconds = time.perf_counter() - begun
    choice = completion.choices[0]
    return _Heard(choice.message.content or "", choice.finish_reason, completion.usage, seconds, seconds)


def _cached(usage: CompletionUsage | None) -> int | None:
    """Tokens the engine says it did not compute again; None when it does not say, which is not zero."""
    if usage is None or usage.prompt_tokens_details is None:
        return None
    return usage.prompt_tokens_details.cached_tokens


def play(
    client_urls: Sequence[str],
    turns: Sequence[str],
    model: str,
    *,
    max_tokens: int = 16,
    stream: bool = True,
    api_key: str = "unused",
    timeout: float = 300.0,
) -> list[TurnResult]:
    """Hold the whole conversation, each turn through the next of `client_urls`."""
    with Player(client_urls, model, max_tokens=max_tokens, stream=stream, api_key=api_key, timeout=timeout) as player:
        return [player.say(text) for text in turns]


_COLUMNS = ("turn", "replica", "worker", "prompt tokens", "time", "matched blocks", "cached tokens (engine)")


def format_table(results: Sequence[TurnResult]) -> str:
    """The turns as a Markdown table; a dash where nobody said."""
    rows = [_COLUMNS, *(_cells(result) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _cells(result: TurnResult) -> tuple[str, ...]:
    return (
        str(result.turn),
        str(result.replica),
        result.worker or "-",
        "-" if result.prompt_tokens is None else f"{result.prompt_tokens:,}",
        f"{result.seconds:.2f} s",
        result.matched or "-",
        "-" if result.cached_tokens is None else f"{result.cached_tokens:,}",
    )
