"""What the processes behind one port ask of each other, since whatever comes to the port reaches one of them.

A scrape of `/metrics` and a look into `/router/decisions` are answered with what all of them know, and a change of the
fleet is made on all. A question has the shape of an HTTP request and is put to the other's control plane with the
asker's headers, so nobody learns or changes here what he could not at the port. It goes over a unix socket without a
file, which leaves nothing behind when a process is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import msgspec

from router.errors import Unavailable
from router.wire import error_body, error_headers

App = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

ASK_SECONDS = 1.0
BIND_SECONDS, WAIT_SECONDS = 5.0, 0.02
MAX_MESSAGE = 64 << 20
# More than any body that the control plane reads; what is longer it refuses by itself.
MAX_BODY = 128 * 1024
WORKERS = "/router/workers"
# Own answers after which the others are asked all the same: a change made here and not there, or there and not here.
_HERE_OR_THERE = frozenset({404, 409})
_LENGTH = struct.Struct("!I")
_PEER = struct.Struct("3i")


class Question(msgspec.Struct, array_like=True):
    """An HTTP request."""

    method: str
    path: str
    query: bytes
    headers: Headers
    body: bytes


class Answer(msgspec.Struct, array_like=True):
    """An HTTP answer."""

    status: int
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class Member:
    """One of the processes behind a port: number 1 to `count`.

    `channel` leads to the parent and ends with it; `token` names the group; `changes` are those of the fleet that were
    made before this process began.
    """

    number: int
    count: int
    token: str
    channel: socket.socket
    changes: tuple[bytes, ...] = ()

    def address(self, number: int) -> bytes:
        """Where a process of the group takes questions."""
        return f"\0prefix-router/{self.token}/{number}".encode()


class Siblings:
    """The control plane of all processes; `control` is that of this one."""

    def __init__(self, member: Member, control: App) -> None:
        self._member = member
        self._control = control
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Repeat what was changed before, and take questions."""
        for change in self._member.changes:
            await ask(self._control, msgspec.msgpack.decode(change, type=Question))
        self._server = await asyncio.start_unix_server(self._serve, sock=await self._bind())

    def close(self) -> None:
        """Take no more questions."""
        if self._server is not None:
            self._server.close()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI: the routes that concern all processes, and the control plane for the others."""
        combine = _combine(scope)
        if combine is None:
            await self._control(scope, receive, send)
            return
        body = await _body(receive)
        if body is None:
            return
        question = Question(scope["method"], scope["path"], scope["query_string"], list(scope["headers"]), body)
        own = await ask(self._control, question)
        answer = own
        if own.status < 400 or (combine is changed and own.status in _HERE_OR_THERE):
            others = [number for number in range(1, self._member.count + 1) if number != self._member.number]
            theirs = await asyncio.gather(*(self._ask_other(number, question) for number in others))
            answer = combine(question, own, theirs)
            if combine is changed and answer.status < 400:
                self._remember(question)
        await _say(answer, send)

    async def _bind(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address = self._member.address(self._member.number)
        for _ in range(int(BIND_SECONDS / WAIT_SECONDS)):
            # A predecessor that drains is about to give the address up.
            with contextlib.suppress(OSError):
                listener.bind(address)
                return listener
            await asyncio.sleep(WAIT_SECONDS)
        listener.bind(address)
        return listener

    def _remember(self, question: Question) -> None:
        """Tell the parent, which tells every process that it starts from now on."""
        with contextlib.suppress(OSError):
            self._member.channel.send(msgspec.msgpack.encode(question))

    async def _ask_other(self, number: int, question: Question) -> Answer | None:
        """None if it does not answer: it may be about to start."""
        try:
            async with asyncio.timeout(ASK_SECONDS):
                return await self._exchange(number, msgspec.msgpack.encode(question))
        except (OSError, TimeoutError, EOFError, msgspec.MsgspecError):
            return None

    async def _exchange(self, number: int, question: bytes) -> Answer:
        # The event loop takes a path for a text that ends with its first zero; the system does not.
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.connect(self._member.address(number))
            reader, writer = await asyncio.open_unix_connection(sock=connection)
        except BaseException:
            connection.close()
            raise
        try:
            writer.write(_LENGTH.pack(len(question)) + question)
            return msgspec.msgpack.decode(await _read(reader), type=Answer)
        finally:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(2 * ASK_SECONDS):
                if _same_user(writer.get_extra_info("socket")):
                    question = msgspec.msgpack.decode(await _read(reader), type=Question)
                    answer = msgspec.msgpack.encode(await ask(self._control, question))
                    writer.write(_LENGTH.pack(len(answer)) + answer)
                    await writer.drain()
        except (OSError, TimeoutError, EOFError, msgspec.MsgspecError):
            pass  # whoever asked sees that there is no answer
        finally:
            writer.close()


# -- how answers become one ----------------------------------------------------------------------------------------

Combine = Callable[[Question, Answer, Sequence[Answer | None]], Answer]


def metrics(question: Question, own: Answer, others: Sequence[Answer | None]) -> Answer:
    """The expositions of all: each metric once, with the samples of every process, which a label tells apart."""
    families: dict[bytes, list[bytes]] = {}
    for answer in (own, *others):
        if answer is not None and answer.status == 200:
            for name, head, samples in _families(answer.body):
                families.setdefault(name, [head]).append(samples)
    return Answer(200, own.headers, b"".join(b"".join(parts) for parts in families.values()))


def _families(exposition: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Name, comments and samples of each metric of an exposition."""
    found = []
    for block in exposition.split(b"# HELP ")[1:]:
        first, _, rest = block.partition(b"\n")
        kind, _, samples = rest.partition(b"\n")
        found.append((first.split(b" ", 1)[0], b"# HELP " + first + b"\n" + kind + b"\n", samples))
    return found


def decisions(question: Question, own: Answer, others: Sequence[Answer | None]) -> Answer:
    """The newest of all, as many as were asked for; what else is said is said by one that had any."""
    answers = [msgspec.json.decode(answer.body) for answer in (own, *others) if answer and answer.status == 200]
    found: list[dict[str, Any]] = [record for answer in answers for record in answer["decisions"]]
    found.sort(key=lambda record: float(record["at"]), reverse=True)
    limit = int(parse_qs(question.query.decode("latin-1")).get("limit", ["100"])[-1])
    speaker = next((answer for answer in answers if answer["decisions"]), answers[0])
    return Answer(200, own.headers, msgspec.json.encode({**speaker, "decisions": found[:limit]}))


def changed(question: Question, own: Answer, others: Sequence[Answer | None]) -> Answer:
    """A change counts once all have made it; repeated after a part of them has, it does no harm to that part."""
    answers = [own, *(answer for answer in others if answer is not None)]
    if len(answers) <= len(others):
        error = Unavailable(
            f"Only {len(answers)} of {len(others) + 1} processes have answered; ask again until all have.",
            retry_after=1,
        )
        return Answer(error.status, error_headers(error), error_body(error))
    return min(answers, key=lambda answer: answer.status >= 400)


def _combine(scope: Any) -> Combine | None:
    """How the answers to a request become one; None where one process can speak for all."""
    if scope["type"] != "http":
        return None
    method, path = scope["method"], scope["path"]
    if method == "GET":
        return {"/metrics": metrics, "/router/decisions": decisions}.get(path)
    changes = method in ("POST", "DELETE") and (path == WORKERS or path.startswith(WORKERS + "/"))
    return changed if changes else None


# -- ASGI and the socket ------------------------------------------------------------------------------------------


async def ask(app: App, question: Question) -> Answer:
    """What an ASGI app answers to a whole request."""
    given = [{"type": "http.request", "body": question.body, "more_body": False}]
    answer = Answer(500, [], b"")

    async def receive() -> Any:
        return given.pop() if given else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status, answer.headers = message["status"], [(bytes(n), bytes(v)) for n, v in message["headers"]]
        else:
            answer.body += message.get("body", b"")

    await app(_scope(question), receive, send)
    return answer


def _scope(question: Question) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": question.method,
        "scheme": "http",
        "path": question.path,
        "raw_path": question.path.encode(),
        "query_string": question.query,
        "root_path": "",
        "headers": question.headers,
        "client": None,
        "server": None,
        "state": {},
    }


async def _body(receive: Any) -> bytes | None:
    """The whole body, or more of it than anybody reads; None if the client left."""
    body = b""
    while len(body) <= MAX_BODY:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    return body


async def _say(answer: Answer, send: Any) -> None:
    headers = [(name, value) for name, value in answer.headers if name != b"content-length"]
    headers.append((b"content-length", b"%d" % len(answer.body)))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


async def _read(reader: asyncio.StreamReader) -> bytes:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > MAX_MESSAGE:
        raise EOFError
    return await reader.readexactly(length)


def _same_user(connection: Any) -> bool:
    """A socket without a file has no owner, so whoever connects is looked at."""
    _, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return bool(user == os.getuid())
