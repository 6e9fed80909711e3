"""Workers slow enough to be caught in the middle, or fast, and raw requests to them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from loadtest.simworker import SimConfig

# 1,000 tokens a second of prefill and 50 ms a token: slow enough to be caught in the middle.
SLOW = SimConfig(models=("base",), prefill_tokens_per_second=1000.0, decode_seconds_per_token=0.05)
FAST = SimConfig(models=("base",), time_scale=0.0)


def post(body: dict[str, Any], path: str = "/v1/chat/completions", extra: str = "", version: str = "1.1") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/{version}\r\nHost: w\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    return (head + extra + "\r\n").encode() + data


def chat(words: int = 10, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "word " * words}], "max_tokens": 4, **fields}


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """One response with a length."""
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return int(head.split()[1]), await reader.readexactly(length)
