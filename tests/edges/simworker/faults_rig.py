"""A worker to be told faults, in this process or another, and a raw client of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from loadtest.simworker import Record, SimConfig, SimProcess, SimWorker

CONFIG = SimConfig(time_scale=0.0, allow_fault_headers=True)
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
STREAM = {**CHAT, "stream": True}


class Served:
    """A worker in this process or another, behind one face."""

    def __init__(self, worker: SimWorker | SimProcess) -> None:
        self.worker = worker
        self.port = worker.port

    async def add(self, *rules: dict[str, Any]) -> None:
        if isinstance(self.worker, SimWorker):
            self.worker.faults.add(*rules)
        else:
            await asyncio.to_thread(self.worker.add_faults, *rules)

    async def records(self) -> list[Record]:
        if isinstance(self.worker, SimWorker):
            return list(self.worker.requests)
        return await asyncio.to_thread(self.worker.requests)

    async def last(self) -> Record:
        return (await self.records())[-1]


def post(body: object, path: str = "/v1/chat/completions", headers: str = "") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    return (head + headers + "\r\n").encode() + data


class Peer:
    """A raw client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, data: bytes = b"") -> Peer:
        peer = cls(*await asyncio.open_connection("127.0.0.1", port))
        peer.writer.write(data)
        return peer

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)

    async def rest(self) -> tuple[bytes, bool]:
        """All that comes until the connection ends, and whether it ended by reset."""
        got = b""
        try:
            async with asyncio.timeout(10):
                while data := await self.reader.read(65536):
                    got += data
        except ConnectionResetError:
            return got, True
        finally:
            await self.close()
        return got, False

    async def read(self, count: int) -> bytes:
        async with asyncio.timeout(10):
            return await self.reader.readexactly(count)

    async def until(self, mark: bytes) -> bytes:
        async with asyncio.timeout(10):
            return await self.reader.readuntil(mark)

    async def silent(self, seconds: float = 0.1) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self.reader.read(1)
        except TimeoutError:
            return True
        return False


async def exchange(served: Served, action: dict[str, Any], body: dict[str, Any]) -> tuple[bytes, bool]:
    await served.add({"action": action})
    return await (await Peer.open(served.port, post(body))).rest()
