"""What one request costs the client side: the router's upstream client beside aiohttp, httpx and a bare socket.

`python -m loadtest.bench_upstream` starts a worker in another process and prints CPU time of this one, user and system,
per request with a small JSON answer and per streamed event. The bare socket writes and reads the same bytes without
looking at them: what it costs is the event loop and the kernel, and the rest of a row is the client's own.
Rounds are interleaved and the median counts, for the machine's other work comes and goes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final, cast

import aiohttp
import httptools
import httpx
import uvloop

from router.dataplane.upstream import Origin, UpstreamLimits, UpstreamPool

REQUEST: Final = b'{"model":"m","prompt":"Say hello to everybody who reads this.","max_tokens":8}'
JSON: Final = (
    b'{"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[{"index":0,"text":" Hello",'
    b'"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15}}'
)
EVENT: Final = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,'
    b'"delta":{"content":" tok"},"logprobs":null,"finish_reason":null}]}\n\n'
)
HEAD: Final = b"HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2029 00:00:00 GMT\r\nserver: uvicorn\r\n"
ANSWER: Final = HEAD + b"content-length: %d\r\ncontent-type: application/json\r\n\r\n" % len(JSON) + JSON
STREAM: Final = HEAD + b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK: Final = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
END: Final = b"0\r\n\r\n"

JSON_TYPE: Final = {"content-type": "application/json"}

EVENTS: Final = 200
EVENT_SECONDS: Final = 0.002  # far enough apart that each event is a read of its own

# One exchange over a path: how many events it brought.
Exchange = Callable[[str], Awaitable[int]]


# -- the worker --------------------------------------------------------------------------------------------------


class WorkerProtocol(asyncio.Protocol):
    """Answers /json at once and /stream one event at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_message_complete(self) -> None:
        if self._url == b"/stream":
            self._left = EVENTS
            self._transport.write(STREAM)
            self._next_event()
        else:
            self._transport.write(ANSWER)

    def _next_event(self) -> None:
        if self._transport.is_closing():
            return
        if not self._left:
            self._transport.write(END)
            return
        self._left -= 1
        self._transport.write(CHUNK)
        self._loop.call_later(EVENT_SECONDS, self._next_event)


async def serve() -> None:
    """Print the port, then answer until killed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: WorkerProtocol(loop), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


# -- the clients -------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def router_client(port: int) -> AsyncIterator[Exchange]:
    pool = UpstreamPool(Origin("127.0.0.1", port), UpstreamLimits())
    heads = {path: request_head(path) for path in ("/json", "/stream")}

    async def exchange(path: str) -> int:
        response = await pool.request(heads[path], REQUEST)
        pieces = 0
        while response.read_nowait() or await response.read():
            pieces += 1
        return pieces

    yield exchange
    pool.close()
    await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def aiohttp_client(port: int) -> AsyncIterator[Exchange]:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=2.0, sock_read=180.0)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:

        async def exchange(path: str) -> int:
            pieces = 0
            async with session.post(f"http://127.0.0.1:{port}{path}", data=REQUEST, headers=JSON_TYPE) as response:
                async for _ in response.content.iter_any():
                    pieces += 1
            return pieces

        yield exchange


@contextlib.asynccontextmanager
async def httpx_client(port: int) -> AsyncIterator[Exchange]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    timeout = httpx.Timeout(180.0, connect=2.0)
    async with httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False) as client:

        async def exchange(path: str) -> int:
            pieces = 0
            url = f"http://127.0.0.1:{port}{path}"
            async with client.stream("POST", url, content=REQUEST, headers=JSON_TYPE) as response:
                async for _ in response.aiter_raw():
                    pieces += 1
            return pieces

        yield exchange


def request_head(path: str) -> bytes:
    fields = b"Host: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(REQUEST)
    return b"POST %b HTTP/1.1\r\n" % path.encode("ascii") + fields


class BareProtocol(asyncio.Protocol):
    """Bytes out, bytes in, one future per read."""

    def __init__(self) -> None:
        self.waiter: asyncio.Future[bytes] | None = None
        self.held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.held += data
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(b"")

    async def read(self) -> bytes:
        if not self.held:
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        data, self.held = self.held, b""
        return data


@contextlib.asynccontextmanager
async def bare_socket(port: int) -> AsyncIterator[Exchange]:
    idle: list[BareProtocol] = []
    opened: list[BareProtocol] = []
    loop = asyncio.get_running_loop()
    requests = {path: request_head(path) + REQUEST for path in ("/json", "/stream")}

    async def exchange(path: str) -> int:
        if idle:
            connection = idle.pop()
        else:
            _, connection = await loop.create_connection(BareProtocol, "127.0.0.1", port)
            opened.append(connection)
        connection.transport.write(requests[path])
        last = END if path == "/stream" else JSON
        pieces = 0
        while not (await connection.read()).endswith(last):
            pieces += 1
        idle.append(connection)
        return pieces

    yield exchange
    for connection in opened:
        connection.transport.abort()
    await asyncio.sleep(0)


CLIENTS: Final = {"router": router_client, "aiohttp": aiohttp_client, "httpx": httpx_client, "bare socket": bare_socket}


# -- measuring ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU microseconds of this process per unit."""

    user: float
    system: float


async def measure(name: str, port: int, path: str, requests: int, at_once: int) -> Cost:
    """Cost per request, or per event where the path streams."""
    async with CLIENTS[name](port) as exchange:

        async def run(count: int) -> int:
            return sum([await exchange(path) for _ in range(count)])

        await asyncio.gather(*(exchange("/json") for _ in range(at_once)))
        before = resource.getrusage(resource.RUSAGE_SELF)
        pieces = sum(await asyncio.gather(*(run(requests // at_once) for _ in range(at_once))))
        after = resource.getrusage(resource.RUSAGE_SELF)
    units = pieces if path == "/stream" else requests
    return Cost((after.ru_utime - before.ru_utime) * 1e6 / units, (after.ru_stime - before.ru_stime) * 1e6 / units)


def report(title: str, costs: dict[str, list[Cost]]) -> None:
    print(f"\n{title}\n{'':14}{'user us':>9}{'system us':>11}{'sum us':>9}")
    for name, rounds in costs.items():
        user = statistics.median(cost.user for cost in rounds)
        system = statistics.median(cost.system for cost in rounds)
        print(f"{name:14}{user:9.1f}{system:11.1f}{user + system:9.1f}")


def compare(port: int, options: argparse.Namespace) -> None:
    for title, path, requests in (
        (f"A request with a small JSON answer, {options.at_once} at once", "/json", options.requests),
        (f"An event of a stream, {options.at_once} streams at once", "/stream", options.at_once * options.streams),
    ):
        costs: dict[str, list[Cost]] = {name: [] for name in CLIENTS}
        for _ in range(options.rounds):
            for name, rounds in costs.items():
                rounds.append(uvloop.run(measure(name, port, path, requests, options.at_once)))
        report(title, costs)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--serve", action="store_true", help="be the worker")
    parser.add_argument("--requests", type=int, default=4000, help="requests per round (%(default)s)")
    parser.add_argument("--streams", type=int, default=2, help="streams per connection and round (%(default)s)")
    parser.add_argument("--at-once", type=int, default=32, help="requests under way (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the median counts (%(default)s)")
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve())
        return
    command = [sys.executable, "-m", "loadtest.bench_upstream", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        try:
            assert worker.stdout is not None
            compare(int(worker.stdout.readline()), options)
        finally:
            worker.kill()


if __name__ == "__main__":
    main()
