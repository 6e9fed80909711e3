"""A worker that follows a script, and a fleet under a prober."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

from router.settings import HealthSettings
from router.workers.health import State
from router.workers.probes import Prober
from router.workers.registry import Registry, Worker

PAGE = """process_start_time_seconds {started}
vllm:num_requests_running{{engine="0"}} 3
vllm:num_requests_waiting{{engine="0"}} 2
vllm:prefix_cache_queries_total{{engine="0"}} 100
vllm:prefix_cache_hits_total{{engine="0"}} 60
vllm:cache_config_info{{block_size="32",num_gpu_blocks="100",enable_prefix_caching="True"}} 1
vllm:engine_sleep_state{{sleep_state="awake"}} {awake}
"""
OK = "200 OK"
HANG = "hang"
SECONDS = 10.0  # more than any wait here takes


class ScriptedWorker:
    """A server with the three routes of a probe, each of them a knob; its port is its own from the beginning."""

    def __init__(self) -> None:
        self.port = 0
        self.health: str | bytes = OK
        self.metrics: str | None = PAGE.format(started=1000, awake=1)
        self.models = ["m"]
        self.models_status = OK
        self.key: str | None = None
        self.asked: list[tuple[str, str | None]] = []
        self._heard = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._talks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._bound: socket.socket | None = socket.socket()
        self._bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._bound.bind(("127.0.0.1", 0))
        self.port = self._bound.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def count(self, path: str) -> int:
        return sum(asked == path for asked, _ in self.asked)

    async def probed(self, times: int = 1, path: str = "/health") -> None:
        """Wait for so many more requests of a path."""
        target = self.count(path) + times
        async with asyncio.timeout(SECONDS), self._heard:
            await self._heard.wait_for(lambda: self.count(path) >= target)

    async def start(self) -> None:
        bound, self._bound = self._bound, None
        if bound is None:
            self._server = await asyncio.start_server(self._talk, "127.0.0.1", self.port)
        else:
            self._server = await asyncio.start_server(self._talk, sock=bound)

    async def stop(self) -> None:
        if self._bound is not None:
            self._bound.close()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        for writer in self._talks.values():
            writer.transport.abort()
        await asyncio.gather(*self._talks)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks[task] = writer
        task.add_done_callback(self._talks.pop)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            keys = [line[15:] for line in head.split("\r\n") if line.startswith("authorization: ")]
            path = head.split(" ")[1]
            self.asked.append((path, keys[0] if keys else None))
            async with self._heard:
                self._heard.notify_all()
            await self._answer(path, keys, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(
        self, path: str, keys: list[str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        status, body = self._what(path)
        if status == HANG:
            await reader.read()
            return
        if self.key is not None and path.startswith("/v1") and keys != [f"Bearer {self.key}"]:
            status, body = "401 Unauthorized", b'{"error":"Unauthorized"}'
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    def _what(self, path: str) -> tuple[str, bytes]:
        if path == "/health":
            return (self.health, b"") if isinstance(self.health, str) else (OK, self.health)
        if path == "/metrics":
            return ("404 Not Found", b"") if self.metrics is None else (OK, self.metrics.encode())
        if path == "/v1/models":
            cards = [{"id": name, "max_model_len": 4096, "parent": None} for name in self.models]
            return self.models_status, json.dumps({"object": "list", "data": cards}).encode()
        return "404 Not Found", b""


@contextlib.asynccontextmanager
async def scripted(*, up: bool = True) -> AsyncIterator[ScriptedWorker]:
    worker = ScriptedWorker()
    if up:
        await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


class Fleet:
    """A registry under a prober with short intervals, and ways to wait for what becomes of it."""

    def __init__(self, **health: Any) -> None:
        self.registry = Registry()
        self.health = HealthSettings(**{"interval": 0.02, "timeout": 0.5, "fall": 3, "rise": 2, **health})
        self.now = 100.0
        self.wall = 5000.0
        self.epochs: list[float] = []
        self.states: list[tuple[str, State]] = []
        self._news = asyncio.Condition()
        self._told: set[asyncio.Task[None]] = set()
        hooks = self.registry.hooks
        hooks.epoch.append(lambda worker: self.tell(self.epochs, worker.epoch))
        hooks.state.append(lambda worker, _, after: self.tell(self.states, (worker.id, after)))
        self.prober = Prober(
            self.registry, self.health, worker_key=None, clock=lambda: self.now, wall=lambda: self.wall
        )

    def tell(self, into: list[Any], what: object) -> None:
        into.append(what)
        task = asyncio.get_running_loop().create_task(self._notify())
        self._told.add(task)
        task.add_done_callback(self._told.discard)

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a change of state or epoch has made the condition true."""
        async with asyncio.timeout(SECONDS), self._news:
            await self._news.wait_for(condition)

    async def poll(self, condition: Callable[[], bool]) -> None:
        """The same for what nobody tells."""
        async with asyncio.timeout(SECONDS):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    async def reach(self, worker: Worker, state: State) -> None:
        await self.until(lambda: worker.state is state)

    def add(self, scripted: ScriptedWorker, key: str | None = None) -> Worker:
        return self.registry.add(scripted.url, slots=8, api_key=key)

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.prober.aclose()
        await asyncio.gather(*self._told)
