"""POST /v1/responses, and the answers it keeps."""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from loadtest.simworker import render
from loadtest.simworker.answers import ApiError, JsonObject, named_event
from loadtest.simworker.exchange import Exchange
from loadtest.simworker.jobs import Job
from loadtest.simworker.outlet import ResponseOver
from loadtest.simworker.render import ResponsesBody

if TYPE_CHECKING:
    from loadtest.simworker.worker import SimWorker

PATH = "/v1/responses/"
_body = msgspec.json.Decoder(ResponsesBody)
Work = Coroutine[object, object, None]


@dataclass(slots=True, eq=False)
class Stored:
    """An answer that can be asked for again. `history` is the conversation a later request may continue."""

    answer: JsonObject
    history: bytes = b""
    job: Job | None = None


class ResponseStore:
    """The last `limit` answers of one worker, in memory."""

    def __init__(self, limit: int = 1000) -> None:
        self._limit = limit
        self._kept: OrderedDict[str, Stored] = OrderedDict()

    def keep(self, stored: Stored) -> None:
        self._kept[stored.answer["id"]] = stored
        while len(self._kept) > self._limit:
            self._kept.popitem(last=False)

    def get(self, answer_id: str) -> Stored:
        """Raises ApiError for an answer that is not there."""
        stored = self._kept.get(answer_id)
        if stored is None:
            raise ApiError(404, f"Response with id '{answer_id}' not found.", param="response_id")
        return stored

    def clear(self) -> None:
        self._kept.clear()


def responses(worker: SimWorker, exchange: Exchange) -> Work | None:
    body = _body.decode(exchange.request.body)
    earlier = b""
    if body.previous_response_id:
        earlier = worker.responses.get(body.previous_response_id).history
    if body.background and not worker.config.responses_store:
        raise ApiError(400, "This engine does not support background mode: it keeps no responses.", param="background")
    job = worker.jobs.text(exchange, body, lambda: render.responses(body, earlier), body.max_output_tokens)
    stored = Stored(_answer(f"resp_{uuid.uuid4().hex}", body, job), job=job)
    text = "".join(job.texts[0]).encode()
    stored.history = earlier + render.conversation(body) + render.answer(text)
    if body.store and worker.config.responses_store:
        worker.responses.keep(stored)
    if body.background:
        _in_background(worker, exchange, stored, job)
        return None
    if body.stream:
        return _stream(exchange, stored.answer, job)
    if job.done:
        _reply(exchange, stored.answer, job)
        return None
    return _later(exchange, stored.answer, job)


def retrieve(worker: SimWorker, exchange: Exchange) -> None:
    """GET /v1/responses/{id}."""
    exchange.reply_json(worker.responses.get(exchange.request.path.removeprefix(PATH)).answer)


def cancel(worker: SimWorker, exchange: Exchange) -> None:
    """POST /v1/responses/{id}/cancel."""
    stored = worker.responses.get(exchange.request.path.removeprefix(PATH).removesuffix("/cancel"))
    if stored.answer["status"] in ("queued", "in_progress") and stored.job is not None:
        for sequence in stored.job.sequences:
            worker.driver.abort(sequence)
        stored.answer["status"] = "cancelled"
    exchange.reply_json(stored.answer)


def _in_background(worker: SimWorker, exchange: Exchange, stored: Stored, job: Job) -> None:
    """The job belongs to the worker now: the client may leave without ending it."""
    exchange.cleanup = None
    stored.answer["status"] = "queued"
    exchange.reply_json(stored.answer)
    worker.background(_finish(stored, job))


async def _finish(stored: Stored, job: Job) -> None:
    try:
        await job.finished()
    except ResponseOver:
        stored.answer["status"] = "cancelled"
    else:
        _complete(stored.answer, job)


async def _later(exchange: Exchange, answer: JsonObject, job: Job) -> None:
    await job.finished()
    _reply(exchange, answer, job)


def _reply(exchange: Exchange, answer: JsonObject, job: Job) -> None:
    _complete(answer, job)
    exchange.reply_json(answer)


def _answer(answer_id: str, body: ResponsesBody, job: Job) -> JsonObject:
    """The answer before its first token."""
    return {
        "id": answer_id,
        "created_at": int(time.time()),
        "object": "response",
        "status": "in_progress",
        "background": bool(body.background),
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": None,
        "model": job.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": body.previous_response_id,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": body.tools or [],
        "top_p": 1.0,
        "usage": None,
    }


def _complete(answer: JsonObject, job: Job) -> None:
    answer["status"] = "completed"
    answer["output"] = [_message(answer["id"], "".join(job.texts[0]), "completed")]
    answer["usage"] = {
        "input_tokens": job.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": job.cached_tokens,
            "cache_write_tokens": job.created_tokens,
        },
        "output_tokens": job.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": job.prompt_tokens + job.output_tokens,
    }


def _part(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}


def _message(answer_id: str, text: str, status: str) -> JsonObject:
    return {
        "id": answer_id.replace("resp_", "msg_"),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [_part(text)] if status == "completed" else [],
    }


class _Events:
    """Numbers the events of one stream."""

    def __init__(self) -> None:
        self._next = 0

    def make(self, kind: str, **fields: object) -> bytes:
        shown = {"type": f"response.{kind}", "sequence_number": self._next, **fields}
        self._next += 1
        return named_event(shown)


async def _stream(exchange: Exchange, answer: JsonObject, job: Job) -> None:
    events = _Events()
    exchange.start()
    message = _message(answer["id"], "", "in_progress")
    place = {"item_id": message["id"], "output_index": 0, "content_index": 0}
    exchange.send(events.make("created", response=answer), events.make("in_progress", response=answer))
    opened = False
    async for batch in job.tokens():
        new = []
        if not opened:
            opened = True
            new.append(events.make("output_item.added", output_index=0, item=message))
            new.append(events.make("content_part.added", part=_part(""), **place))
        for index, since, until in batch:
            texts = job.texts[index][since:until]
            new += [events.make("output_text.delta", delta=text, logprobs=[], **place) for text in texts]
        exchange.send(*new)
        await exchange.drain()
    await job.finished()
    _complete(answer, job)
    text = "".join(job.texts[0])
    exchange.send(
        events.make("output_text.done", text=text, logprobs=[], **place),
        events.make("content_part.done", part=_part(text), **place),
        events.make("output_item.done", output_index=0, item=answer["output"][0]),
        events.make("completed", response=answer),
    )
    exchange.end()
