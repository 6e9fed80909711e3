"""Deployments for the fault cases: mixed fleets, and clients that count what they send."""

from __future__ import annotations

import dataclasses
import http.client
import json
import resource
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx

from loadtest.fleet import NginxProcess, RedisProcess, RouterProcess, find_nginx, find_redis, replicas, until
from loadtest.simworker import Record, SimConfig, SimProcess
from router.workers.registry import worker_id
from tests.invariants.answers import check_answer
from tests.invariants.replicas import REPLICAS
from tests.invariants.replicas import open_descriptors as open_descriptors
from tests.invariants.replicas import samples as samples
from tests.invariants.replicas import total as total
from tests.whole.conftest import QUICK_HEALTH, require

T = TypeVar("T")
Json = dict[str, Any]
CHAT = "/v1/chat/completions"
# Every prompt carries this, so that a log with any of them in it is found.
CANARY = "canary-of-the-prompts"
ADMIN_KEY = "canary-of-the-admin"
AS_ADMIN = {"authorization": f"Bearer {ADMIN_KEY}"}
QUICK = {**QUICK_HEALTH, "ROUTER_TIMEOUTS__DRAIN_DELAY": "0.05", "ROUTER_AUTH__ADMIN_KEY": ADMIN_KEY}
_FAST = SimConfig(
    prefill_tokens_per_second=500_000.0,
    decode_seconds_per_token=0.0005,
    enable_prompt_tokens_details=True,
    allow_fault_headers=True,
)


@dataclass(frozen=True)
class Group:
    """Workers that are alike; cases that use different groups do not disturb each other.

    They share a process unless they are `apart`, as those must be that are killed or stopped.
    """

    name: str
    count: int
    config: SimConfig
    apart: bool


def group(name: str, count: int = 1, *, apart: bool = False, **settings: Any) -> Group:
    """`count` fast workers that serve the model `name`; `settings` are fields of SimConfig."""
    return Group(name, count, dataclasses.replace(_FAST, **{"models": (name,), **settings}), apart or count == 1)


@dataclass
class Rig:
    """A deployment. `sent` counts the inference requests of its clients, which its replicas must account for."""

    directory: Path
    groups: dict[str, list[SimProcess]]
    routers: list[RouterProcess]
    redis: RedisProcess | None
    nginx: NginxProcess | None
    http: httpx.Client
    sent: int = 0
    secrets: set[str] = field(default_factory=set)
    # Replicas that were ended took their counts with them.
    countable: bool = True

    @property
    def front(self) -> str:
        """Where clients connect."""
        return self.nginx.url if self.nginx else self.routers[0].url

    @property
    def workers(self) -> list[SimProcess]:
        return [worker for workers in self.groups.values() for worker in workers]

    @property
    def addresses(self) -> set[str]:
        """Where the workers are, which nobody is to learn."""
        return {worker.url.removeprefix("http://") for worker in self.workers}

    def worker(self, short_id: str) -> SimProcess:
        """The process behind a worker's short id."""
        return next(worker for worker in self.workers if worker_id(worker.url) == short_id)

    # -- clients ---------------------------------------------------------------------------------------------

    def post(
        self,
        path: str,
        body: Json | bytes,
        *,
        via: str | None = None,
        headers: dict[str, str] | None = None,
        fault: Json | None = None,
    ) -> httpx.Response:
        """One whole request; `fault` is what the worker is to do with it."""
        self.sent += 1
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = self.http.post((via or self.front) + path, content=content, headers=_headers(headers, fault))
        check_answer(answer, {*self.addresses, *self.secrets})
        return answer

    def chat(
        self, text: str, *, model: str, via: str | None = None, fault: Json | None = None, **more: Any
    ) -> httpx.Response:
        """One chat request of one message."""
        return self.post(CHAT, chat_body(text, model=model, **more), via=via, fault=fault)

    def open(self, body: Json, *, path: str = CHAT, via: str | None = None, fault: Json | None = None) -> Call:
        """Send a request over a connection of its own, and come back at once."""
        self.sent += 1
        return Call(via or self.front, path, json.dumps(body).encode(), _headers(None, fault))

    @contextmanager
    def holding(
        self, count: int, model: str, *, words: str = "", path: str = CHAT, via: str | None = None
    ) -> Iterator[list[Call]]:
        """So many requests that their workers have and do not answer."""
        before = self.arrived(model)
        stall = {"kind": "stall", "seconds": 30}
        calls: list[Call] = []
        try:
            for number in range(count):
                text = f"{words} {number}"
                body = chat_body(text, model=model) if path == CHAT else {"model": model, "input": text}
                calls.append(self.open(body, path=path, via=via, fault=stall))
            for _ in until(20, "the held requests to arrive"):
                if self.arrived(model) >= before + count:
                    break
            yield calls
        finally:
            for call in calls:
                call.close()

    # -- what it shows ---------------------------------------------------------------------------------------

    def arrived(self, model: str) -> int:
        """POST requests that the group's workers have seen."""
        return sum(len(self.records(worker)) for worker in self.groups[model])

    def records(self, worker: SimProcess, *, bodies: bool = False) -> list[Record]:
        """The POST requests of one worker."""
        return [record for record in worker.requests(bodies=bodies) if record.method == "POST"]

    def counts(self, model: str, path: str = CHAT) -> list[int]:
        """Requests per worker of a group."""
        return [len(worker.requests(path=path)) for worker in self.groups[model]]

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry these labels, over all replicas."""
        return sum(total(router.metrics(), name, **labels) for router in self.routers if router.alive)

    def rows(self, model: str) -> list[Json]:
        """What the first replica says of the group's workers, in the group's order."""
        rows = {row["id"]: row for row in self.control("/router/workers")["workers"]}
        return [rows[worker_id(worker.url)] for worker in self.groups[model]]

    def decision(self, response: httpx.Response) -> Json:
        """The last decision for an answered request, complete with its outcome."""
        path = f"/router/decisions?request_id={response.headers['x-request-id']}"
        for router in self.routers:
            found = self.control(path, via=router.url)["decisions"]
            if found:
                record: Json = found[0]
                return record
        raise LookupError(path)

    def explain(self, body: Json, *, via: str | None = None) -> Json:
        """What the first replica would do with a chat request."""
        explained: Json = self.control("/router/explain", body, via=via)
        return explained

    def heard(self, body: Json, *, via: str | None = None) -> None:
        """Wait until a replica, or every one, knows who holds the beginning of a chat request."""
        for url in [via] if via else [router.url for router in self.routers]:
            for _ in until(5, "news of the prompt"):
                if self.explain(body, via=url).get("matched_blocks"):
                    break

    def acquainted(self) -> None:
        """Wait until each replica hears of all others: what is said before that may be lost."""
        if self.redis is None:
            return
        for router in self.routers:
            for _ in until(15, "the replicas to hear of each other"):
                if total(router.metrics(), "router_sync_peers") >= len(self.routers) - 1:
                    break

    def control(self, path: str, body: Json | None = None, *, via: str | None = None) -> Any:
        """The JSON answer of a control route, as the admin sees it: GET, or POST where there is a body."""
        url = (via or self.routers[0].url) + path
        if body is None:
            return self.http.get(url, headers=AS_ADMIN).json()
        return self.http.post(url, json=body, headers=AS_ADMIN).json()

    @contextmanager
    def only(self, chosen: SimProcess, model: str) -> Iterator[None]:
        """Nothing goes to the other workers of a group meanwhile."""
        others = [worker_id(worker.url) for worker in self.groups[model] if worker is not chosen]
        for other in others:
            self.control(f"/router/workers/{other}/drain", {})
        try:
            yield
        finally:
            for other in others:
                self.control(f"/router/workers/{other}/resume", {})


class Call:
    """A request on a socket of its own. Closing it early is a client that leaves."""

    def __init__(self, url: str, path: str, body: bytes, headers: dict[str, str]) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        lines = [f"POST {path} HTTP/1.1", f"host: {host}:{port}", f"content-length: {len(body)}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def __enter__(self) -> Call:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def first(self) -> bytes:
        """What has come once anything has."""
        return self.socket.recv(65536)

    def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        pieces = []
        while piece := self.socket.recv(65536):
            pieces.append(piece)
        self.close()
        return b"".join(pieces)


class Lane:
    """Requests one after another over one connection that is kept alive, at little cost to the sender."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)

    def __enter__(self) -> Lane:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def post(self, path: str, body: Json) -> tuple[int, bytes]:
        """Status and body of the answer."""
        self._connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = self._connection.getresponse()
        return answer.status, answer.read()


def chat_body(text: str, *, model: str, **more: Any) -> Json:
    """A short chat request; the canary stands at its end, where it does not make prompts alike."""
    messages = [{"role": "user", "content": f"{text} {CANARY}"}]
    return {"model": model, "max_tokens": 2, "messages": messages, **more}


def together(count: int, work: Callable[[int], T]) -> list[T]:
    """Do something so many times at once."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def text_of(words: str, size: int) -> str:
    """At least `size` bytes of text that begins with `words` and repeats them."""
    return (words + " ") * (size // (len(words) + 1) + 1)


# -- building --------------------------------------------------------------------------------------------------


class RigBuilder:
    """Builds rigs that end with a test or a module."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack

    def __call__(
        self,
        *groups: Group,
        replica_count: int = 1,
        redis: bool = False,
        nginx: bool = False,
        settings: dict[str, str] | None = None,
        config: Path | None = None,
        wait: bool = True,
    ) -> Rig:
        """Workers, replicas and, where asked for, Redis and nginx; `settings` are the replicas' environment."""
        raise_descriptor_limit()
        news = None
        if redis or replica_count > 1:
            require(find_redis(), "redis-server")
            news = self._stack.enter_context(RedisProcess(self._directory))
        workers = self._start_workers(groups)
        urls = [worker.url for members in workers.values() for worker in members]
        environment = {**QUICK, **(settings or {})}
        routers = self._stack.enter_context(
            replicas(
                self._directory,
                replica_count,
                urls if wait else [],
                redis_url=news.url if news else None,
                flags=[] if wait else [flag for url in urls for flag in ("--worker", url)],
                environment=environment,
                config=config,
            )
        )
        front = None
        if nginx:
            require(find_nginx(), "nginx")
            # Started as root it keeps bodies in files as another user, who has no business in the tests' directory.
            place = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
            place.chmod(0o711)
            front = self._stack.enter_context(NginxProcess(place, [router.port for router in routers]))
        client = httpx.Client(trust_env=False, verify=False, timeout=30, limits=httpx.Limits(max_connections=None))
        rig = Rig(self._directory, workers, routers, news, front, self._stack.enter_context(client))
        rig.acquainted()
        for router in routers:
            REPLICAS.note(router)
        self._stack.callback(_check_recovery, rig)
        return rig

    def _start_workers(self, groups: Sequence[Group]) -> dict[str, list[SimProcess]]:
        processes: dict[str, list[SimProcess]] = {}
        for wanted in groups:
            counts = [1] * wanted.count if wanted.apart else [wanted.count]
            processes[wanted.name] = [SimProcess(wanted.config, count=count) for count in counts]
            for process in processes[wanted.name]:
                self._stack.callback(process.stop)
                process.launch()
        for started in processes.values():
            for process in started:
                process.wait_ready()
        return {
            name: [worker for process in started for worker in _views(process)] for name, started in processes.items()
        }


def _check_recovery(rig: Rig) -> None:
    from tests.whole.invariants import check_recovery  # which needs this module itself

    check_recovery(rig)


def _views(process: SimProcess) -> list[SimProcess]:
    """One object per worker of a process; only that of a single worker can be killed."""
    if process.count == 1:
        return [process]
    views = []
    for url in process.urls:
        view = SimProcess(process.config)
        view.port = int(url.rpartition(":")[2])
        views.append(view)
    return views


@contextmanager
def building(directory: Path) -> Iterator[RigBuilder]:
    """A builder whose rigs end with the block."""
    with ExitStack() as stack:
        yield RigBuilder(directory, stack)


def raise_descriptor_limit() -> None:
    """Let this process and its children have enough sockets for a thousand streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 8192:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))


def _headers(headers: dict[str, str] | None, fault: Json | None) -> dict[str, str]:
    sent = {"content-type": "application/json", **(headers or {})}
    if fault is not None:
        sent["x-sim-fault"] = json.dumps(fault)
    return sent
