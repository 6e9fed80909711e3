"""A simulated worker: its engine, its listener, its connections, and what tests may ask it."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any

import msgspec

from loadtest.simworker import routes
from loadtest.simworker.answers import ApiError, invalid_body
from loadtest.simworker.cache import BlockCache, PrefixCache
from loadtest.simworker.config import SimConfig
from loadtest.simworker.connection import Connection
from loadtest.simworker.driver import Driver
from loadtest.simworker.engine import Engine, Rates
from loadtest.simworker.exchange import Exchange
from loadtest.simworker.faults import Action, FaultTable, Stage, parse_action
from loadtest.simworker.http import JSON, Request
from loadtest.simworker.hybrid import HybridCache
from loadtest.simworker.jobs import Jobs
from loadtest.simworker.records import Record, RecordRing
from loadtest.simworker.render import GenerateBody
from loadtest.simworker.responses import ResponseStore
from loadtest.simworker.shape import shape_of
from loadtest.simworker.tokens import Prompt, Tokenizer
from loadtest.simworker.vocabulary import Vocabulary
from loadtest.simworker.watch import Watch

BACKLOG = 2048
STOP_SECONDS = 5.0
_REFUSE_SECONDS = 1.0
Work = Coroutine[object, object, None]


class SimWorker:
    """`async with SimWorker(SimConfig(...)) as worker:` serves on `worker.url` in the running loop.

    Workers of one process may share a vocabulary, as those of one model do.
    """

    def __init__(self, config: SimConfig | None = None, vocabulary: Vocabulary | None = None) -> None:
        self.config = config or SimConfig()
        self.faults = FaultTable()
        self.watch = Watch()
        self.requests = RecordRing(self.config.max_records, self.config.max_record_bytes)
        self.routes = routes.table(self.config)
        self.tokenizer = Tokenizer(self.config.unit)
        self.responses = ResponseStore()
        self.vocabulary = vocabulary or Vocabulary()
        self.keep_alive_seconds = self.config.keep_alive_seconds
        self.max_body_bytes = self.config.max_body_bytes
        self.rejections = 0
        self.aborted = 0
        self.asleep = False
        self.sleep_level = 0
        self.started_at = 0.0
        self.instance_id = 0
        self.connections: set[Connection] = set()
        self.port = self.config.port
        self._connection_count = 0
        self._server: asyncio.Server | None = None
        self._placeholder: socket.socket | None = None
        self._reopen: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # -- life

    async def __aenter__(self) -> SimWorker:
        self._loop = asyncio.get_running_loop()
        self._new_engine()
        await self._listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        return f"http://{self.config.host}:{self.port}"

    async def stop(self) -> None:
        """Close the listener, break every connection, and wait until all of it is gone."""
        if self._reopen is not None:
            self._reopen.cancel()
        self._close_listener()
        if self._placeholder is not None:
            self._placeholder.close()
            self._placeholder = None
        self.driver.close()
        for task in list(self._tasks):
            task.cancel()
        self.drop_connections()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_SECONDS)
        await self.until(lambda: not self.connections)

    def restart(self) -> None:
        """Another life of the worker at the same address: empty cache, counters at 0, connections reset."""
        self.driver.close()
        self.drop_connections()
        self._new_engine()

    def drop_connections(self) -> None:
        """Reset every connection."""
        for connection in list(self.connections):
            connection.cut()

    def refuse(self, seconds: float | None = None) -> None:
        """Take no new connections for that time, or until `accept`; those that are open stay."""
        self._close_listener()
        if self._placeholder is None:
            # Bound but not listening: connections are refused, and nobody else is given the port.
            self._placeholder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._placeholder.bind((self.config.host, self.port))
        if self._reopen is not None:
            self._reopen.cancel()
        self._reopen = None if seconds is None else self._loop.call_later(seconds, self._accept_soon)

    async def accept(self) -> None:
        """Listen again after `refuse`."""
        if self._reopen is not None:
            self._reopen.cancel()
            self._reopen = None
        if self._placeholder is not None:
            self._placeholder.close()
            self._placeholder = None
        if self._server is None:
            await self._listen()

    def background(self, work: Work) -> asyncio.Task[None]:
        """A task that outlives its connection; it ends with the worker at the latest."""
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _new_engine(self) -> None:
        config = self.config
        rates = Rates(
            config.prefill_tokens_per_second, config.decode_seconds_per_token, config.time_scale, config.max_num_seqs
        )
        self.engine = Engine(_make_cache(config), rates, caching=config.caching)
        self.driver = Driver(self.engine, self._loop, self.watch.notify)
        self.jobs = Jobs(self, self.driver)
        self.started_at = time.time()
        self.instance_id = time.time_ns()
        self.rejections = 0
        self.asleep = False
        self.responses.clear()

    async def _listen(self) -> None:
        self._server = await self._loop.create_server(
            lambda: Connection(self, self._loop), self.config.host, self.port, backlog=BACKLOG, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def _close_listener(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _accept_soon(self) -> None:
        self._reopen = None
        self.background(self.accept())

    # -- for tests

    async def until(self, condition: Callable[[], bool], seconds: float = STOP_SECONDS) -> None:
        """Wait until something about this worker holds. Raises TimeoutError."""
        await self.watch.until(condition, seconds)

    @property
    def calls(self) -> list[Record]:
        """The records of POST requests."""
        return [record for record in self.requests if record.method == "POST"]

    def in_progress(self) -> int:
        return sum(1 for record in self.requests if record.outcome == "open")

    def state(self) -> dict[str, Any]:
        """Counts for /sim/state."""
        return {
            "connections": len(self.connections),
            "connections_total": self._connection_count,
            "running": self.engine.running,
            "waiting": self.engine.waiting,
            "aborted": self.aborted,
            "requests_total": self.requests.total,
            "cached_blocks": self.engine.cache.resident,
            "started_at": self.started_at,
            "tasks": len(self._tasks),
        }

    def sleep_states(self) -> Iterator[tuple[str, bool]]:
        """The states of the sleep gauge and which one holds."""
        yield "awake", not self.asleep
        yield "weights_offloaded", self.asleep and self.sleep_level == 1
        yield "discard_all", self.asleep and self.sleep_level == 2

    # -- for connections

    def opened(self, connection: Connection) -> int:
        self.connections.add(connection)
        self._connection_count += 1
        self.watch.notify()
        return self._connection_count

    def lost(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.watch.notify()

    def new_record(self, connection: int, ordinal: int, now: float, request: Request) -> Record:
        if request.path.startswith("/sim/"):
            return Record(0, connection, ordinal, now)
        record = self.requests.open(connection, ordinal, now)
        record.method = request.method
        record.target = request.target
        record.headers = request.headers
        self.watch.notify()
        return record

    def complete_record(self, record: Record, body: bytes) -> None:
        record.received_at = time.monotonic()
        record.body_bytes = len(body)
        if self.config.record_bodies and record.number:
            self.requests.keep_body(record, body)
        self.watch.notify()

    def fault_at(self, stage: Stage, request: Request | None, ordinal: int) -> Action | None:
        if request is None:
            return self.faults.pick_for_connection()
        if request.path.startswith("/sim/"):
            return None
        if self.config.allow_fault_headers and stage == "request":
            scripted = request.header(b"x-sim-fault")
            if scripted is not None and scripted.startswith("{"):
                return _action_of(scripted)
        return self.faults.pick(stage, request, ordinal)

    def handle(self, exchange: Exchange, action: Action | None) -> Work | None:
        if self.config.request_id_headers:
            given = exchange.request.header(b"x-request-id") or f"{random.getrandbits(128):032x}"
            exchange.extra_headers = ((b"X-Request-Id", given.encode("latin-1")),)
        if action is None:
            return routes.dispatch(self, exchange)
        exchange.record.fault = action.kind
        if action.delay:
            return self._delayed(exchange, action)
        return self._faulty(exchange, action)

    async def _delayed(self, exchange: Exchange, action: Action) -> None:
        await asyncio.sleep(action.delay)
        work = self._faulty(exchange, action)
        if work is not None:
            await work

    def _faulty(self, exchange: Exchange, action: Action) -> Work | None:
        if action.cuts:
            exchange.script(action, self._loop)
            return routes.dispatch(self, exchange)
        if action.kind == "refuse":
            self.refuse(_REFUSE_SECONDS if action.seconds is None else action.seconds)
            exchange.die(rst=True)
        elif action.kind == "raw" and action.then == "answer":
            exchange.write(action.raw_bytes)
            return routes.dispatch(self, exchange)
        elif action.kind == "raw":
            self._raw(exchange, action)
        else:
            headers = [(key.encode(), value.encode()) for key, value in action.headers.items()]
            exchange.reply(action.status, action.answer, JSON, headers)
        return None

    def _raw(self, exchange: Exchange, action: Action) -> None:
        exchange.write(action.raw_bytes)
        if action.then == "keep":
            exchange.finished()
        else:
            exchange.die(rst=action.then == "reset")

    # -- for handlers

    def served(self, name: str | None) -> tuple[str, str]:
        """The name to answer with, and the adapter. Raises ApiError for a model that is not served."""
        if not name or name in self.config.models:
            return self.config.model, ""
        for adapter in self.config.adapters:
            if adapter.name == name:
                return name, name
        raise ApiError(404, f"The model `{name}` does not exist.", param="model")

    def request_id(self, exchange: Exchange, body: GenerateBody) -> str:
        return exchange.request.header(b"x-request-id") or body.request_id or f"{random.getrandbits(128):032x}"

    def prompts_of(self, prompt: str | list[Any] | None, start: int) -> list[Prompt]:
        """The prompts of a text, a list of texts, token ids, or lists of them. Raises ApiError for anything else."""
        if isinstance(prompt, str):
            return [self.tokenizer.text(prompt.encode("utf-8", "surrogatepass"), start)]
        if not prompt:
            raise invalid_body("prompt must not be empty", "prompt")
        if isinstance(prompt[0], int):
            return [self._ids(prompt, start)]
        if isinstance(prompt[0], str):
            texts: list[str] = msgspec.convert(prompt, list[str])
            return [self.tokenizer.text(text.encode("utf-8", "surrogatepass"), start) for text in texts]
        return [self._ids(ids, start) for ids in prompt]

    def _ids(self, value: object, start: int) -> Prompt:
        ids: list[int] = msgspec.convert(value, list[int])
        if any(not 0 <= number < 1 << 32 for number in ids):
            raise invalid_body("token ids must not be negative", "prompt")
        return self.tokenizer.ids(ids, start)


def _make_cache(config: SimConfig) -> PrefixCache:
    """The cache this configuration asks for."""
    if config.cache == "attention":
        return BlockCache(config.block_size, config.num_gpu_blocks, enabled=config.caching)
    return HybridCache(shape_of(config), enabled=config.caching)


def _action_of(scripted: str) -> Action:
    """The action of an x-sim-fault header; one that makes no sense is answered with 400."""
    try:
        return parse_action(scripted.encode("latin-1"))
    except ValueError as error:
        return Action(kind="status", status=400, body=f"x-sim-fault: {error}")
