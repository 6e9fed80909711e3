"""POST /v1/chat/completions and /v1/completions."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

import msgspec

from loadtest.simworker import render
from loadtest.simworker.answers import JsonObject, invalid_body, usage
from loadtest.simworker.exchange import Exchange
from loadtest.simworker.jobs import Job, salt_of
from loadtest.simworker.outlet import DONE_EVENT
from loadtest.simworker.render import ChatBody, CompletionBody, GenerateBody
from loadtest.simworker.tokens import Prompt, chain_start

if TYPE_CHECKING:
    from loadtest.simworker.worker import SimWorker

_chat_body = msgspec.json.Decoder(ChatBody)
_completion_body = msgspec.json.Decoder(CompletionBody)
_json = msgspec.json.Encoder().encode
Work = Coroutine[object, object, None]


def chat_completions(worker: SimWorker, exchange: Exchange) -> Work | None:
    body = _chat_body.decode(exchange.request.body)
    _check_stream_options(body)
    if not body.messages:
        raise invalid_body("messages must not be empty", "messages")
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    job = worker.jobs.text(exchange, body, lambda: render.chat(body), limit)
    answer_id = f"chatcmpl-{worker.request_id(exchange, body)}"
    if body.stream:
        return _stream(exchange, job, body, _ChatChunks(answer_id, job))
    return answered(exchange, job, lambda: _chat_answer(answer_id, job))


def completions(worker: SimWorker, exchange: Exchange) -> Work | None:
    body = _completion_body.decode(exchange.request.body)
    _check_stream_options(body)
    model, adapter = worker.served(body.model)
    start = chain_start(adapter, salt_of(body))
    prompts = _prompts(worker, exchange, body, start)
    job = worker.jobs.start(exchange, body, prompts, start, body.max_tokens, model)
    answer_id = f"cmpl-{worker.request_id(exchange, body)}"
    if body.stream:
        return _stream(exchange, job, body, _CompletionChunks(answer_id, job))
    return answered(exchange, job, lambda: _completion_answer(answer_id, job))


def answered(exchange: Exchange, job: Job, answer: Callable[[], JsonObject]) -> Work | None:
    """Reply once the job is done: at once, without a task, when it already is."""
    if job.done:
        exchange.reply_json(answer())
        return None
    return _later(exchange, job, answer)


async def _later(exchange: Exchange, job: Job, answer: Callable[[], JsonObject]) -> None:
    await job.finished()
    exchange.reply_json(answer())


def _check_stream_options(body: GenerateBody) -> None:
    if body.stream_options is not None and not body.stream:
        raise invalid_body("Stream options can only be defined when `stream=True`.", "stream_options")


def _prompts(worker: SimWorker, exchange: Exchange, body: CompletionBody, start: int) -> list[Prompt]:
    """One prompt for a text or a list of ids, several for lists of them."""
    if worker.config.fixed_cost:
        return [Prompt((), len(exchange.request.body) // 4, worker.config.block_size)]
    return worker.prompts_of(body.prompt, start)


def _chat_answer(answer_id: str, job: Job) -> JsonObject:
    choices: list[JsonObject] = [
        {
            "index": index,
            "message": {"role": "assistant", "content": "".join(text), "refusal": None, "tool_calls": []},
            "logprobs": None,
            "finish_reason": job.finish_reason,
            "stop_reason": None,
        }
        for index, text in enumerate(job.texts)
    ]
    return _answer(answer_id, "chat.completion", job, choices)


def _completion_answer(answer_id: str, job: Job) -> JsonObject:
    choices: list[JsonObject] = [
        {
            "index": index,
            "text": "".join(text),
            "logprobs": None,
            "finish_reason": job.finish_reason,
            "stop_reason": None,
        }
        for index, text in enumerate(job.texts)
    ]
    return _answer(answer_id, "text_completion", job, choices)


def _answer(answer_id: str, kind: str, job: Job, choices: list[JsonObject]) -> JsonObject:
    return {
        "id": answer_id,
        "object": kind,
        "created": int(time.time()),
        "model": job.model,
        "choices": choices,
        "usage": usage(job.prompt_tokens, job.output_tokens, job.shown_details),
    }


class _Chunks:
    """The events of one stream; what is the same in all of them is encoded once."""

    kind = ""
    before = b""
    after = b""

    def __init__(self, answer_id: str, job: Job) -> None:
        self.job = job
        shell = {"id": answer_id, "object": self.kind, "created": int(time.time()), "model": job.model}
        self._shell = _json(shell)[:-1]
        self._head = b"data: " + self._shell + b',"choices":[{"index":'

    def opening(self) -> list[bytes]:
        """Events before the first token."""
        return []

    def token(self, index: int, text: str, finish_reason: str | None, tail: bytes) -> bytes:
        middle = b',"logprobs":null,"finish_reason":%b,"stop_reason":null}]' % _json(finish_reason)
        return b"%b%d%b%b%b%b%b}\n\n" % (self._head, index, self.before, _json(text), self.after, middle, tail)

    def usage(self) -> bytes:
        shown = usage(self.job.prompt_tokens, self.job.output_tokens, self.job.shown_details)
        return b'data: %b,"choices":[],"usage":%b}\n\n' % (self._shell, _json(shown))


class _ChatChunks(_Chunks):
    kind = "chat.completion.chunk"
    before = b',"delta":{"content":'
    after = b"}"

    def opening(self) -> list[bytes]:
        delta = b',"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
        return [b"%b%d%b" % (self._head, index, delta) for index in range(len(self.job.sequences))]


class _CompletionChunks(_Chunks):
    kind = "text_completion"
    before = b',"text":'


async def _stream(exchange: Exchange, job: Job, body: GenerateBody, chunks: _Chunks) -> None:
    options = body.stream_options
    continuous = options is not None and options.include_usage and options.continuous_usage_stats
    exchange.start()
    opened = False
    async for batch in job.tokens():
        events = [] if opened else chunks.opening()
        opened = True
        for index, since, until in batch:
            last = len(job.texts[index]) - 1
            for at in range(since, until):
                tail = b',"usage":%b' % _json(usage(job.prompt_tokens, at + 1, None)) if continuous else b""
                reason = job.sequences[index].finish_reason if at == last else None
                events.append(chunks.token(index, job.texts[index][at], reason, tail))
        exchange.send(*events)
        await exchange.drain()
    await job.finished()
    if options is not None and options.include_usage:
        exchange.send(chunks.usage())
    exchange.send(DONE_EVENT)
    exchange.end()
