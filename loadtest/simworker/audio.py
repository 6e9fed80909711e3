"""POST /v1/audio/transcriptions and translations: multipart forms."""

from __future__ import annotations

import re
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from loadtest.simworker.answers import JsonObject, event, invalid_body
from loadtest.simworker.exchange import Exchange
from loadtest.simworker.jobs import Job
from loadtest.simworker.outlet import DONE_EVENT
from loadtest.simworker.render import GenerateBody
from loadtest.simworker.tokens import chain_start

if TYPE_CHECKING:
    from loadtest.simworker.worker import SimWorker

BYTES_PER_SECOND = 32_000
_BOUNDARY = re.compile(r'boundary="?([^";,]+)"?', re.IGNORECASE)
_NAME = re.compile(rb'name="([^"]*)"', re.IGNORECASE)
Work = Coroutine[object, object, None]


def transcriptions(worker: SimWorker, exchange: Exchange) -> Work | None:
    return _answer(worker, exchange, "transcription")


def translations(worker: SimWorker, exchange: Exchange) -> Work | None:
    return _answer(worker, exchange, "translation")


def form_fields(content_type: str, body: bytes) -> dict[str, bytes]:
    """The fields of a multipart form. Raises ApiError when the body is not one."""
    found = _BOUNDARY.search(content_type)
    if not content_type.lower().startswith("multipart/form-data") or found is None:
        raise invalid_body("a multipart form is needed")
    fields: dict[str, bytes] = {}
    parts = (b"\r\n" + body).split(b"\r\n--" + found.group(1).encode())
    if not parts[-1].startswith(b"--"):
        raise invalid_body("the multipart form has no end")
    for part in parts[1:-1]:
        head, _, value = part.partition(b"\r\n\r\n")
        name = _NAME.search(head)
        if name is not None:
            fields[name.group(1).decode(errors="replace")] = value
    return fields


def _answer(worker: SimWorker, exchange: Exchange, kind: str) -> Work | None:
    request = exchange.request
    fields = form_fields(request.header(b"content-type") or "", request.body)
    if "file" not in fields:
        raise invalid_body("Field required", "file")
    model, adapter = worker.served(fields.get("model", b"").decode(errors="replace"))
    audio = fields["file"]
    start = chain_start(adapter, "")
    # A token for every 20 ms of sound, whatever the bytes are.
    prompts = [worker.tokenizer.ids(list(audio[:: BYTES_PER_SECOND // 50]), start)]
    job = worker.jobs.start(exchange, GenerateBody(), prompts, start, None, model)
    if fields.get("stream", b"").lower() in (b"true", b"1"):
        return _stream(worker, exchange, job, kind)
    shown: JsonObject = {"text": "".join(job.texts[0])}
    if kind == "transcription":
        shown["usage"] = {"type": "duration", "seconds": -(-len(audio) // BYTES_PER_SECOND)}
    if job.done:
        exchange.reply_json(shown)
        return None
    return _later(exchange, job, shown)


async def _later(exchange: Exchange, job: Job, shown: JsonObject) -> None:
    await job.finished()
    exchange.reply_json(shown)


async def _stream(worker: SimWorker, exchange: Exchange, job: Job, kind: str) -> None:
    shell = {
        "id": f"trsc-{worker.request_id(exchange, GenerateBody())}",
        "object": f"{kind}.chunk",
        "created": int(time.time()),
        "model": job.model,
    }
    exchange.start()
    async for batch in job.tokens():
        for index, since, until in batch:
            for at in range(since, until):
                reason = job.finish_reason if at == len(job.texts[index]) - 1 else None
                choice = {"delta": {"content": job.texts[index][at]}, "finish_reason": reason}
                exchange.send(event({**shell, "choices": [choice]}))
        await exchange.drain()
    await job.finished()
    exchange.send(DONE_EVENT)
    exchange.end()
