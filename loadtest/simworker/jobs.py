"""From a request to its sequences in the engine, and their tokens in time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loadtest.simworker.answers import ApiError, JsonObject, pieces, seed_of
from loadtest.simworker.driver import Driver
from loadtest.simworker.engine import Phase, Sequence
from loadtest.simworker.exchange import Exchange
from loadtest.simworker.outlet import ResponseOver
from loadtest.simworker.render import GenerateBody
from loadtest.simworker.tokens import Prompt, chain_start

if TYPE_CHECKING:
    from loadtest.simworker.worker import SimWorker

MAX_CHOICES = 16384
_NO_HASHES: tuple[int, ...] = ()
# Events joined into one write when many tokens are due at once.
_BATCH = 64


@dataclass(slots=True, eq=False)
class Job:
    """One request inside the engine: a sequence per prompt and choice."""

    driver: Driver
    sequences: list[Sequence]
    texts: list[list[str]]
    prompts: int
    model: str
    details: bool

    @property
    def done(self) -> bool:
        return all(sequence.phase is Phase.DONE for sequence in self.sequences)

    @property
    def prompt_tokens(self) -> int:
        per_prompt = len(self.sequences) // self.prompts
        return sum(sequence.prompt.tokens for sequence in self.sequences[::per_prompt])

    @property
    def output_tokens(self) -> int:
        return sum(sequence.output_tokens for sequence in self.sequences)

    @property
    def cached_tokens(self) -> int:
        """Of the last prompt only, as the engine reports it."""
        return self.sequences[-1].cached_tokens

    @property
    def created_tokens(self) -> int:
        """Tokens of the last prompt that were written to the cache: its whole blocks that were not there."""
        if not self.driver.engine.caching:
            return 0
        prompt = self.sequences[-1].prompt
        return max(prompt.tokens // prompt.unit * prompt.unit - self.cached_tokens, 0)

    @property
    def shown_details(self) -> JsonObject | None:
        """`prompt_tokens_details` of the usage; None when they are switched off."""
        return {"cached_tokens": self.cached_tokens} if self.details else None

    @property
    def finish_reason(self) -> str:
        return self.sequences[0].finish_reason

    async def finished(self) -> None:
        await self.driver.finished(self.sequences)

    async def tokens(self) -> AsyncIterator[list[tuple[int, int, int]]]:
        """What is new whenever something is: (sequence, from, to). Raises ResponseOver if the engine drops one."""
        sent = [0] * len(self.sequences)
        left = self.output_tokens
        while left:
            now = time.monotonic()
            new = []
            for index, sequence in enumerate(self.sequences):
                if sequence.phase is Phase.ABORTED:
                    raise ResponseOver
                until = min(self.driver.engine.emitted(sequence, now), sent[index] + _BATCH)
                if until > sent[index]:
                    new.append((index, sent[index], until))
                    left -= until - sent[index]
                    sent[index] = until
            if new:
                yield new
            else:
                await self.driver.change(self.sequences, self._next(sent))

    def _next(self, sent: list[int]) -> float | None:
        step = self.driver.engine.step_seconds
        times = [
            sequence.first_token_at + count * step
            for sequence, count in zip(self.sequences, sent, strict=True)
            if sequence.phase is Phase.DECODE and count < sequence.output_tokens
        ]
        return min(times, default=None)

    def close(self, exchange: Exchange) -> None:
        """The exchange is over: note what it took, and take out of the engine what is still in it."""
        record = exchange.record
        started = [sequence for sequence in self.sequences if sequence.phase is not Phase.WAITING]
        record.prompt_tokens = self.prompt_tokens
        record.output_tokens = self.output_tokens
        if started:
            record.cached_tokens = sum(sequence.cached_tokens for sequence in started)
            record.prefill_seconds = sum(sequence.prefill_seconds for sequence in started)
            record.queue_seconds = max(sequence.started_at - sequence.submitted_at for sequence in started)
        for sequence in self.sequences:
            if not sequence.over:
                self.driver.abort(sequence)


class Jobs:
    """Makes jobs for one worker."""

    def __init__(self, worker: SimWorker, driver: Driver) -> None:
        self._worker = worker
        self._driver = driver
        self._config = worker.config

    def text(self, exchange: Exchange, body: GenerateBody, text: Callable[[], bytes], limit: int | None) -> Job:
        """A job of one rendered prompt; `limit` is the number of tokens to generate, if the request says."""
        model, adapter = self._worker.served(body.model)
        start = chain_start(adapter, salt_of(body))
        if self._config.fixed_cost:
            prompts = [Prompt(_NO_HASHES, len(exchange.request.body) // 4, self._config.block_size)]
        else:
            prompts = [self._worker.tokenizer.text(text(), start)]
        return self.start(exchange, body, prompts, start, limit, model)

    def start(
        self, exchange: Exchange, body: GenerateBody, prompts: list[Prompt], start: int, limit: int | None, model: str
    ) -> Job:
        """Admit the prompts. Raises ApiError for what the engine refuses."""
        choices = 1 if body.n is None else body.n
        if not 1 <= choices <= MAX_CHOICES:
            raise ApiError(400, f"n must be between 1 and {MAX_CHOICES}.", param="n")
        self._check_queue()
        echo = body.sim_echo if body.sim_echo is not None else exchange.request.header(b"x-sim-echo")
        job = Job(self._driver, [], [], len(prompts), model, self._config.enable_prompt_tokens_details)
        for prompt in prompts:
            count = self._output_tokens(prompt, limit)
            text = pieces(count, seed_of(prompt.hashes, prompt.tail), echo)
            reason = "stop" if limit is None else "length"
            for _ in range(choices):
                job.sequences.append(self._sequence(prompt, start, text, count, reason))
                job.texts.append(text)
        self._submit(exchange, job)
        return job

    def prefill(self, exchange: Exchange, prompts: list[Prompt], model: str) -> Job:
        """A job that computes prompts and generates nothing."""
        self._check_queue()
        job = Job(self._driver, [], [], len(prompts), model, details=False)
        for prompt in prompts:
            self._output_tokens(prompt, 0)
            job.sequences.append(Sequence(prompt, 0, lambda: _NO_HASHES, "stop"))
        self._submit(exchange, job)
        return job

    def _check_queue(self) -> None:
        limit = self._config.max_num_queued_reqs
        if limit is not None and self._driver.engine.waiting >= limit:
            self._worker.rejections += 1
            raise ApiError(503, "The server is overloaded: too many requests are queued.")

    def _submit(self, exchange: Exchange, job: Job) -> None:
        exchange.cleanup = lambda: job.close(exchange)
        now = time.monotonic()
        for sequence in job.sequences:
            if self._config.fixed_cost:
                self._driver.engine.skip(sequence, now)
            else:
                self._driver.submit(sequence)

    def _sequence(self, prompt: Prompt, start: int, text: list[str], count: int, reason: str) -> Sequence:
        tokenizer = self._worker.tokenizer

        def final_hashes() -> tuple[int, ...]:
            return tokenizer.extended(prompt, "".join(text).encode(), start)

        return Sequence(prompt, count, final_hashes, reason)

    def _output_tokens(self, prompt: Prompt, limit: int | None) -> int:
        window = self._config.window
        if limit is not None and limit < 0:
            raise ApiError(400, f"max_tokens must be at least 1, got {limit}.", param="max_tokens")
        if prompt.tokens + (limit or (1 if limit is None else 0)) > window:
            raise ApiError(
                400,
                f"This model's maximum context length is {window} tokens, but the request needs {prompt.tokens} in "
                f"the prompt and {limit or 0} for the completion.",
                param="input_tokens",
            )
        if limit is not None:
            return limit
        return min(self._config.default_output_tokens, window - prompt.tokens)


def salt_of(body: GenerateBody) -> str:
    """The cache salt. Raises ApiError for one the engine refuses."""
    salt = body.cache_salt
    if salt is None:
        return ""
    if not salt or len(salt) > 128 or any(mark in salt for mark in "@/\\\0"):
        message = "cache_salt must have 1 to 128 characters without '@', '/', '\\' or NUL."
        raise ApiError(400, message, param="cache_salt")
    return salt
