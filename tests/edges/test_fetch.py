from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from router.workers import fetch
from router.workers.fetch import Answer, FetchError, Refused, Shortage, Target, TimedOut

Talk = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\n"


@asynccontextmanager
async def listening(talk: Talk, *, head: bool = True) -> AsyncIterator[str]:
    """A server that reads one head and lets `talk` answer; all has ended when the context has."""
    talks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks.add(task)
        try:
            await talk(await reader.readuntil(b"\r\n\r\n") if head else b"", reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.wait_for(asyncio.gather(*talks), 5)


def saying(*parts: bytes) -> Talk:
    async def talk(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()
        await writer.wait_closed()

    return talk


async def get(url: str, *, key: str | None = None, limit: int = 1000, timeout: float = 5.0) -> Answer:
    return await Target(url, key).get("/health", limit=limit, timeout=timeout)


@pytest.mark.parametrize(
    ("parts", "answer"),
    [
        ((OK + b"content-length: 2\r\n\r\nok",), Answer(200, b"ok")),
        ((OK + b"content-length: 0\r\n\r\n",), Answer(200, b"")),
        ((OK, b"content-len", b"gth: 4\r\n\r\nab", b"cd"), Answer(200, b"abcd")),
        ((OK + b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",), Answer(200, b"abc")),
        ((OK + b"\r\nuntil ", b"the end"), Answer(200, b"until the end")),
        ((b"HTTP/1.0 503 Gone\r\n\r\n",), Answer(503, b"")),
        ((b"HTTP/1.1 204 Nothing\r\n\r\n",), Answer(204, b"")),
        ((b"HTTP/1.1 100 Continue\r\n\r\n", OK + b"content-length: 1\r\n\r\nx"), Answer(200, b"x")),
        ((OK + b"content-length: 2\r\n\r\nokHTTP/1.1 500 No\r\n\r\n",), Answer(200, b"ok")),
        ((b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n",), Answer(302, b"")),
        ((OK + b"content-encoding: gzip\r\ncontent-length: 3\r\n\r\n\x1f\x8b\x08",), Answer(200, b"\x1f\x8b\x08")),
    ],
    ids=str,
)
async def test_answers(parts: tuple[bytes, ...], answer: Answer) -> None:
    async with listening(saying(*parts)) as url:
        assert await get(url) == answer


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ((b"SSH-2.0-OpenSSH_9\r\n",), "not HTTP"),
        ((b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",), "not HTTP"),
        ((OK + b"content-length: 5\r\n\r\nabc",), "closed before"),
        ((OK + b"transfer-encoding: chunked\r\n\r\n5\r\nabc",), "closed before"),
        ((OK + b"content-le",), "closed before"),
        ((b"HTTP/1.1 100 Continue\r\n\r\n",), "closed before"),
        ((), "closed before"),
        ((OK + b"content-length: 2000\r\n\r\n" + b"x" * 2000,), "over 1000 bytes"),
        ((OK + b"\r\n" + b"x" * 2000,), "over 1000 bytes"),
        ((OK + b"x-flood: y\r\n" * 60_000,), "head over"),
        ((b"HTTP/1.1 100 Continue\r\n\r\n",) * 20_000, "head over"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_is_no_answer(parts: tuple[bytes, ...], why: str) -> None:
    async with listening(saying(*parts)) as url:
        with pytest.raises(FetchError, match=why):
            await get(url)


async def test_a_body_without_end_is_left_at_the_limit() -> None:
    written = 0
    closed = asyncio.Event()

    async def talk(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(OK + b"\r\n")
        try:
            while True:
                writer.write(b"x" * 65_536)
                written += 65_536
                await writer.drain()
        finally:
            closed.set()

    async with listening(talk) as url:
        with pytest.raises(FetchError, match="over 1000 bytes"):
            await get(url)
        await asyncio.wait_for(closed.wait(), 5)
    assert written < 50_000_000  # what socket buffers hold


@pytest.mark.parametrize("pace", [None, 0.01])
async def test_silence_and_dripping_end_at_the_deadline(pace: float | None) -> None:
    closed = asyncio.Event()

    async def talk(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while pace is not None:
                writer.write(b"H")
                await writer.drain()
                await asyncio.sleep(pace)
            await reader.read()
        finally:
            closed.set()

    async with listening(talk) as url:
        began = asyncio.get_running_loop().time()
        with pytest.raises((TimedOut, FetchError)):
            await get(url, timeout=0.1)
        assert asyncio.get_running_loop().time() - began < 2
        await asyncio.wait_for(closed.wait(), 5)


async def test_the_request() -> None:
    heads: list[bytes] = []

    async def talk(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        await saying(OK + b"content-length: 0\r\n\r\n")(head, reader, writer)

    async with listening(talk) as url:
        await get(url + "/base/", key="k-1")
        await get(url)
    first, second = heads
    assert first.startswith(b"GET /base/health HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"\r\nauthorization: Bearer k-1\r\n" in first
    assert b"\r\nconnection: close\r\n" in first
    assert b"authorization" not in second


async def test_a_key_that_would_make_two_headers_is_not_sent() -> None:
    heads: list[bytes] = []

    async def talk(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(head)

    async with listening(talk) as url:
        with pytest.raises(FetchError, match="does not fit a header"):
            await get(url, key="k\r\nx-evil: 1")
    assert not heads


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with listening(saying(OK + b"content-length: 0\r\n\r\n")) as url:
        assert (await get(url)).status == 200


async def test_nobody_listening_is_refused() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(Refused):
            await get(f"http://127.0.0.1:{bound.getsockname()[1]}")


async def test_plain_http_where_tls_is_expected() -> None:
    async with listening(saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"), head=False) as url:
        target = Target(url.replace("http:", "https:"), None, ssl.create_default_context())
        with pytest.raises(FetchError, match="TLS failed"):
            await target.get("/health", limit=10, timeout=5)


def os_error(*numbers: int) -> OSError:
    """As asyncio reports that several addresses were tried."""
    return OSError("Multiple exceptions: " + ", ".join(f"[Errno {n}] Connect call failed ('::1', 1)" for n in numbers))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (os_error(errno.ECONNREFUSED, errno.ECONNREFUSED), Refused),
        (os_error(errno.EADDRNOTAVAIL, errno.ECONNREFUSED), Refused),
        (os_error(errno.EHOSTUNREACH, errno.ECONNREFUSED), FetchError),
        (OSError(errno.EMFILE, "Too many open files"), Shortage),
        (OSError(errno.EADDRNOTAVAIL, "No port left"), Shortage),
        (ConnectionResetError(errno.ECONNRESET, "Reset by 10.0.0.7"), FetchError),
        (socket.gaierror(-2, "Name gpu7.internal not known"), FetchError),
        (UnicodeError("label too long"), FetchError),
    ],
    ids=repr,
)
def test_failures_to_connect_are_told_apart_and_name_no_address(error: Exception, kind: type[FetchError]) -> None:
    told = fetch._from_os(error)
    assert type(told) is kind
    assert not any(part in str(told) for part in ("10.0", "::1", "gpu7"))


async def test_a_name_that_leads_where_no_worker_is_gets_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[bytes] = []

    async def listen(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read())

    async with listening(listen, head=False) as url:
        monkeypatch.setattr(fetch, "may_be_a_worker", lambda host: False)
        with pytest.raises(FetchError, match="link-local"):
            await get(url)
    assert heard == [b""]
