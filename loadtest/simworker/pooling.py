"""Routes that compute prompts and generate nothing, and the tokenizer's own two."""

from __future__ import annotations

import base64
import struct
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import xxhash

from loadtest.simworker import render
from loadtest.simworker.answers import JsonObject, invalid_body
from loadtest.simworker.exchange import Exchange
from loadtest.simworker.jobs import Job
from loadtest.simworker.render import ChatBody, GenerateBody, Message
from loadtest.simworker.tokens import Prompt, chain_start, split

if TYPE_CHECKING:
    from loadtest.simworker.worker import SimWorker

DIMENSIONS = 8
Work = Coroutine[object, object, None]


class PoolingBody(GenerateBody, kw_only=True):
    input: str | list[Any] | None = None
    messages: list[Message] | None = None
    encoding_format: Literal["float", "base64"] = "float"


class ScoreBody(GenerateBody, kw_only=True):
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None


class RerankBody(GenerateBody, kw_only=True):
    query: str
    documents: list[str]
    top_n: int | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[JsonObject] | None = None
    return_token_strs: bool | None = False


class DetokenizeBody(msgspec.Struct, kw_only=True):
    tokens: list[int]
    model: str | None = None


_pooling_body = msgspec.json.Decoder(PoolingBody)
_score_body = msgspec.json.Decoder(ScoreBody)
_rerank_body = msgspec.json.Decoder(RerankBody)
_tokenize_body = msgspec.json.Decoder(TokenizeBody)
_detokenize_body = msgspec.json.Decoder(DetokenizeBody)


def embeddings(worker: SimWorker, exchange: Exchange) -> Work | None:
    return _pooled(worker, exchange, "embd", lambda data: ("embedding", {"embedding": data}))


def pooling(worker: SimWorker, exchange: Exchange) -> Work | None:
    return _pooled(worker, exchange, "pool", lambda data: ("pooling", {"data": data}))


def classify(worker: SimWorker, exchange: Exchange) -> Work | None:
    body = _pooling_body.decode(exchange.request.body)
    job = _admit(worker, exchange, body, _inputs(worker, body))

    def data() -> list[JsonObject]:
        shown = []
        for index, sequence in enumerate(job.sequences):
            share = _number(sequence.prompt)
            label = "LABEL_1" if share > 0.5 else "LABEL_0"
            shown.append({"index": index, "label": label, "probs": [1 - share, share], "num_classes": 2})
        return shown

    return _answered(worker, exchange, body, job, "classify", lambda: {"object": "list", "data": data()})


def score(worker: SimWorker, exchange: Exchange) -> Work | None:
    """Pairs of one text with each of several, or of two lists of equal length."""
    body = _score_body.decode(exchange.request.body)
    left = _listed(body.queries if body.text_1 is None else body.text_1)
    right = _listed(body.documents if body.text_2 is None else body.text_2)
    if not left or not right or (len(left) != 1 and len(left) != len(right)):
        raise invalid_body("scores need one text against several, or two lists of equal length")
    pairs = [(left[0] if len(left) == 1 else left[index], text) for index, text in enumerate(right)]
    job = _admit(worker, exchange, body, _pairs(worker, body, pairs))

    def data() -> list[JsonObject]:
        numbers = [_number(sequence.prompt) for sequence in job.sequences]
        return [{"index": index, "object": "score", "score": number} for index, number in enumerate(numbers)]

    return _answered(worker, exchange, body, job, "score", lambda: {"object": "list", "data": data()})


def rerank(worker: SimWorker, exchange: Exchange) -> Work | None:
    body = _rerank_body.decode(exchange.request.body)
    pairs = [(body.query, document) for document in body.documents]
    if not pairs:
        raise invalid_body("documents must not be empty", "documents")
    job = _admit(worker, exchange, body, _pairs(worker, body, pairs))

    def results() -> list[JsonObject]:
        shown: list[JsonObject] = [
            {"index": index, "document": {"text": document}, "relevance_score": _number(job.sequences[index].prompt)}
            for index, document in enumerate(body.documents)
        ]
        shown.sort(key=lambda result: -float(result["relevance_score"]))
        return shown[: body.top_n] if body.top_n else shown

    return _answered(worker, exchange, body, job, "rerank", lambda: {"results": results()})


def tokenize(worker: SimWorker, exchange: Exchange) -> None:
    body = _tokenize_body.decode(exchange.request.body)
    worker.served(body.model)
    if body.messages is not None:
        text = render.chat(ChatBody(messages=body.messages, tools=body.tools))
    elif body.prompt is not None:
        text = render.utf8(body.prompt)
    else:
        raise invalid_body("either prompt or messages must be given", "prompt")
    count, ids = worker.vocabulary.encoded(text)
    shown = {
        "count": count,
        "max_model_len": worker.config.window,
        "tokens": ids,
        "token_strs": [piece.decode(errors="replace") for piece in split(text)] if body.return_token_strs else None,
    }
    exchange.reply_json(shown)


def detokenize(worker: SimWorker, exchange: Exchange) -> None:
    body = _detokenize_body.decode(exchange.request.body)
    worker.served(body.model)
    exchange.reply_json({"prompt": worker.vocabulary.text(body.tokens).decode(errors="replace")})


def _pooled(
    worker: SimWorker, exchange: Exchange, prefix: str, shape: Callable[[object], tuple[str, JsonObject]]
) -> Work | None:
    body = _pooling_body.decode(exchange.request.body)
    job = _admit(worker, exchange, body, _inputs(worker, body))

    def data() -> list[JsonObject]:
        shown = []
        for index, sequence in enumerate(job.sequences):
            kind, fields = shape(_vector(sequence.prompt, body.encoding_format))
            shown.append({"index": index, "object": kind, **fields})
        return shown

    return _answered(worker, exchange, body, job, prefix, lambda: {"object": "list", "data": data()})


def _inputs(worker: SimWorker, body: PoolingBody) -> list[Prompt]:
    _, adapter = worker.served(body.model)
    start = chain_start(adapter, "")
    if body.messages is not None:
        return [worker.tokenizer.text(render.chat(ChatBody(messages=body.messages)), start)]
    return worker.prompts_of(body.input, start)


def _pairs(worker: SimWorker, body: GenerateBody, pairs: list[tuple[str, str]]) -> list[Prompt]:
    _, adapter = worker.served(body.model)
    start = chain_start(adapter, "")
    texts = [render.utf8(first) + b"\x04" + render.utf8(second) for first, second in pairs]
    return [worker.tokenizer.text(text, start) for text in texts]


def _admit(worker: SimWorker, exchange: Exchange, body: GenerateBody, prompts: list[Prompt]) -> Job:
    model, _ = worker.served(body.model)
    return worker.jobs.prefill(exchange, prompts, model)


def _answered(
    worker: SimWorker, exchange: Exchange, body: GenerateBody, job: Job, prefix: str, rest: Callable[[], JsonObject]
) -> Work | None:
    answer_id = f"{prefix}-{worker.request_id(exchange, body)}"

    def answer() -> JsonObject:
        tokens = job.prompt_tokens
        usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None}
        return {"id": answer_id, "created": int(time.time()), "model": job.model, **rest(), "usage": usage}

    if job.done:
        exchange.reply_json(answer())
        return None
    return _later(exchange, job, answer)


async def _later(exchange: Exchange, job: Job, answer: Callable[[], JsonObject]) -> None:
    await job.finished()
    exchange.reply_json(answer())


def _listed(value: str | list[str] | None) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


def _number(prompt: Prompt) -> float:
    """A number from 0 to 1 that stands for the prompt."""
    return _bits(prompt, 0) / 0xFFFF


def _bits(prompt: Prompt, at: int) -> int:
    link = prompt.hashes[-1] if prompt.hashes else prompt.tokens
    return xxhash.xxh3_64_intdigest(prompt.tail, link + at) & 0xFFFF


def _vector(prompt: Prompt, form: str) -> list[float] | str:
    values = [_bits(prompt, at) / 0x8000 - 1 for at in range(DIMENSIONS)]
    if form == "float":
        return values
    return base64.b64encode(struct.pack(f"<{DIMENSIONS}f", *values)).decode()
