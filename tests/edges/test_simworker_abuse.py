"""What the simulated worker must survive: odd bodies on every route, and crowds that leave at any moment."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import httpx
import pytest

from loadtest.simworker import SimConfig, SimWorker

ROUTES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/score",
    "/rerank",
    "/pooling",
    "/classify",
    "/tokenize",
    "/detokenize",
    "/v1/responses/x/cancel",
    "/sim/faults",
)
FIELDS = ("messages", "prompt", "input", "query", "documents", "text_1", "text_2", "tokens", "model", "stream", "tools")
ALL_FIELDS = (*FIELDS, "max_tokens", "n", "stream_options", "cache_salt", "system", "encoding_format", "top_n")


def odd_value(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.randrange(9 if depth < 3 else 6)
    if kind == 6:
        return [odd_value(draw, depth + 1) for _ in range(draw.randrange(3))]
    if kind == 7:
        return {draw.choice(("role", "content", "type", "text")): odd_value(draw, depth + 1) for _ in range(3)}
    if kind == 8:
        return [{"role": "user", "content": odd_value(draw, depth + 1)}]
    return (None, True, draw.randrange(-3, 2**40), 0.5, "", draw.choice(("x", "\ud800", "\0", "word " * 50)))[kind]


@pytest.mark.parametrize("path", ROUTES)
async def test_no_body_breaks_a_route(path: str) -> None:
    draw = random.Random(path)
    config = SimConfig(time_scale=0.0, enable_prompt_tokens_details=True)
    async with SimWorker(config) as worker, httpx.AsyncClient(base_url=worker.url) as client:
        for _ in range(60):
            body = {name: odd_value(draw) for name in draw.sample(ALL_FIELDS, draw.randrange(1, 9))}
            content = json.dumps(draw.choice((body, odd_value(draw)))).encode()
            answer = await client.post(path, content=content, headers={"content-type": "application/json"})
            assert answer.status_code in (200, 400, 404), (content, answer.text)
        assert (worker.engine.running, worker.engine.waiting, worker.engine.cache.usage) == (0, 0, 0.0)


async def test_a_crowd_that_leaves_at_random_leaves_nothing_behind() -> None:
    draw = random.Random(7)
    config = SimConfig(time_scale=0.05, max_num_seqs=32, num_gpu_blocks=2000, keep_alive_seconds=0.1)
    before = len(asyncio.all_tasks())
    async with SimWorker(config) as worker:

        async def client(number: int) -> None:
            words = draw.randrange(1, 2000)
            body = {"messages": [{"role": "user", "content": f"{number} " * words}], "max_tokens": 100}
            body["stream"] = draw.random() < 0.7
            data = json.dumps(body).encode()
            _, writer = await asyncio.open_connection("127.0.0.1", worker.port)
            head = "POST /v1/chat/completions HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            await asyncio.sleep(draw.random() * 0.5)
            writer.transport.abort() if draw.random() < 0.5 else writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

        await asyncio.gather(*[client(number) for number in range(200)])
        await worker.until(lambda: not worker.connections)
        assert (worker.engine.running, worker.engine.waiting, worker.engine.cache.usage) == (0, 0, 0.0)
        assert len(worker.calls) > 150  # some leave before they are read
        outcomes = [record.outcome for record in worker.calls]
        assert worker.aborted == outcomes.count("aborted") > 0
        assert outcomes.count("open") == 0
        assert len(asyncio.all_tasks()) == before
