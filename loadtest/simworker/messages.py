"""The Anthropic form: POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING

import msgspec

from loadtest.simworker import render
from loadtest.simworker.answers import JsonObject, named_event
from loadtest.simworker.chat import answered
from loadtest.simworker.exchange import Exchange
from loadtest.simworker.jobs import Job
from loadtest.simworker.render import MessagesBody

if TYPE_CHECKING:
    from loadtest.simworker.worker import SimWorker

_body = msgspec.json.Decoder(MessagesBody)
_STOP_REASONS = {"length": "max_tokens", "stop": "end_turn"}
Work = Coroutine[object, object, None]


def messages(worker: SimWorker, exchange: Exchange) -> Work | None:
    body = _body.decode(exchange.request.body)
    job = worker.jobs.text(exchange, body, lambda: render.messages(body), body.max_tokens)
    answer_id = f"chatcmpl-{worker.request_id(exchange, body)}"
    if body.stream:
        return _stream(exchange, job, answer_id)
    return answered(exchange, job, lambda: _answer(answer_id, job))


def count_tokens(worker: SimWorker, exchange: Exchange) -> None:
    body = _body.decode(exchange.request.body)
    worker.served(body.model)
    count = worker.tokenizer.count(render.messages(body))
    exchange.reply_json({"input_tokens": count, "context_management": None})


def _usage(job: Job) -> JsonObject:
    """`input_tokens` leaves out what came from the cache and what was written to it, where these are shown."""
    if not job.details:
        return {"input_tokens": job.prompt_tokens, "output_tokens": job.output_tokens}
    return {
        "input_tokens": job.prompt_tokens - job.cached_tokens - job.created_tokens,
        "output_tokens": job.output_tokens,
        "cache_read_input_tokens": job.cached_tokens,
        "cache_creation_input_tokens": job.created_tokens,
    }


def _answer(answer_id: str, job: Job) -> JsonObject:
    return {
        "id": answer_id,
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "".join(job.texts[0])}],
        "model": job.model,
        "stop_reason": _STOP_REASONS[job.finish_reason],
        "stop_sequence": None,
        "usage": _usage(job),
    }


async def _stream(exchange: Exchange, job: Job, answer_id: str) -> None:
    exchange.start()
    opened = False
    async for batch in job.tokens():
        new = [] if opened else _opening(job, answer_id)
        opened = True
        for index, since, until in batch:
            new += [_delta(text) for text in job.texts[index][since:until]]
        exchange.send(*new)
        await exchange.drain()
    await job.finished()
    ending = {"stop_reason": _STOP_REASONS[job.finish_reason], "stop_sequence": None}
    exchange.send(
        named_event({"type": "content_block_stop", "index": 0}),
        named_event({"type": "message_delta", "delta": ending, "usage": _usage(job)}),
        named_event({"type": "message_stop"}),
    )
    exchange.end()


def _opening(job: Job, answer_id: str) -> list[bytes]:
    message = _answer(answer_id, job)
    message |= {"content": [], "stop_reason": None}
    message["usage"] = {"input_tokens": job.prompt_tokens, "output_tokens": 0}
    block = {"type": "text", "text": ""}
    return [
        named_event({"type": "message_start", "message": message}),
        named_event({"type": "content_block_start", "index": 0, "content_block": block}),
    ]


def _delta(text: str) -> bytes:
    return named_event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})
