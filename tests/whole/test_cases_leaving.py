"""Cases of clients that leave: the worker learns of it, and nothing stays counted, open or claimed."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.fleet import RouterProcess, until
from loadtest.simworker import Record, SimProcess
from tests.whole.rig import QUICK, Call, Json, Rig, building, chat_body, group, text_of, total

SILENT: Json = {"kind": "stall", "seconds": 30}
SILENT_MIDSTREAM: Json = {"kind": "stall", "unit": "event", "after": 3, "seconds": 30}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with building(tmp_path_factory.mktemp("leaving")) as build:
        rig = build(group("pair", 2, apart=True), group("slow", 1, prefill_tokens_per_second=200.0))
        yield rig


def record_of(rig: Rig, model: str, marker: str) -> Record:
    """The one request whose body has the marker, once a worker has it."""
    for _ in until(10, f"{marker} at a worker"):
        for worker in rig.groups[model]:
            for record in rig.records(worker, bodies=True):
                if marker.encode() in record.body:
                    return record
    raise AssertionError(marker)


def seconds_to_abort(rig: Rig, model: str, marker: str, left_at: float) -> float:
    """From the client's leaving to the moment its worker saw that."""
    for _ in until(10, "the worker to see it"):
        record = record_of(rig, model, marker)
        if record.aborted_at is not None:
            return record.aborted_at - left_at
    raise AssertionError(marker)


def test_p34_clients_that_leave_before_the_headers_leave_no_load_behind(rig: Rig) -> None:
    with rig.holding(200, "pair"):
        assert rig.metric("router_in_flight") == 200
    for _ in until(5, "all gone"):
        if rig.metric("router_in_flight") == 0:
            break
    assert rig.metric("router_aborts_total", stage="waiting") >= 200
    rig.groups["pair"][0].restart()
    for _ in until(10, "the restarted worker to be ready"):
        if all(row["state"] == "ready" for row in rig.rows("pair")):
            break
    before = rig.counts("pair")
    with rig.holding(20, "pair"):
        now = rig.counts("pair")
    assert [after - then for after, then in zip(now, before, strict=True)] == [10, 10]


@pytest.mark.parametrize("size", [100, 300_000], ids=["small", "large"])
def test_p63_a_client_that_leaves_a_whole_answer_stops_the_worker(rig: Rig, size: int) -> None:
    marker = f"left-{size}"
    call = rig.open(chat_body(text_of(marker, size), model="pair"), fault=SILENT)
    record_of(rig, "pair", marker)
    call.close()
    assert seconds_to_abort(rig, "pair", marker, time.monotonic()) <= 2


@pytest.mark.parametrize("half", [False, True], ids=["closed", "half-closed"])
def test_p64_a_client_that_leaves_during_prefill_stops_the_worker(rig: Rig, half: bool) -> None:
    marker = f"prefill-{half}"
    call = rig.open(chat_body(text_of(marker, 20_000), model="slow", stream=True))
    record_of(rig, "slow", marker)
    left_at = time.monotonic()
    if half:
        call.socket.shutdown(socket.SHUT_WR)
    else:
        call.close()
    assert seconds_to_abort(rig, "slow", marker, left_at) <= 2
    call.close()
    for _ in until(2, "the engine to be free"):
        state = rig.groups["slow"][0].state()
        if state["running"] == state["waiting"] == 0:
            break


def test_p64_a_client_that_leaves_a_silent_stream_stops_the_worker(rig: Rig) -> None:
    call = rig.open(chat_body("midstream-silence", model="pair", stream=True, max_tokens=50), fault=SILENT_MIDSTREAM)
    seen = b""
    while seen.count(b"data: ") < 3:
        seen += call.first()
    call.close()
    assert seconds_to_abort(rig, "pair", "midstream-silence", time.monotonic()) <= 2
    assert rig.metric("router_aborts_total", stage="stream") >= 1


class Gateway:
    """A TCP relay before a worker that can stop taking connections: then they hang, as at a host that is gone."""

    def __init__(self, worker: SimProcess) -> None:
        self._port = worker.port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        self._listener.settimeout(0.05)
        self._open = threading.Event()
        self._ended = threading.Event()
        self._fillers: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Gateway:
        self._open.set()
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._open.set()
        for thread in self._threads:
            thread.join(5)
        for each in (self._listener, *self._fillers):
            each.close()

    def shut(self) -> None:
        """Take no more connections; the few that the kernel would keep in line are taken by us."""
        self._open.clear()
        time.sleep(0.1)  # for an accept that has begun
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(self._listener.getsockname())
            self._fillers.append(filler)

    def reopen(self) -> None:
        for filler in self._fillers:
            filler.close()
        self._open.set()

    def _accept(self) -> None:
        while not self._ended.is_set():
            self._open.wait()
            with contextlib.suppress(TimeoutError):
                client, _ = self._listener.accept()
                worker = socket.create_connection(("127.0.0.1", self._port))
                self._spawn(self._pump, client, worker)
                self._spawn(self._pump, worker, client)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        try:
            source.settimeout(0.1)
            while not self._ended.is_set():
                with contextlib.suppress(TimeoutError):
                    data = source.recv(65536)
                    if not data:
                        break
                    target.sendall(data)
        except OSError:
            pass
        finally:
            # Both directions end together; the second close finds nothing left to do.
            source.close()
            target.close()

    def _spawn(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()


def test_p42_requests_cancelled_while_connecting_leave_the_pool_whole(rig: Rig, tmp_path: Path) -> None:
    settings = {**QUICK, "ROUTER_HEALTH__INTERVAL": "60", "ROUTER_LIMITS__CONNECTIONS_PER_WORKER": "4"}
    with (
        Gateway(rig.groups["pair"][0]) as gateway,
        RouterProcess(tmp_path, [gateway.url], environment=settings) as router,
    ):
        router.wait_ready(1)
        time.sleep(0.3)  # the probes' connections end
        gateway.shut()
        for _ in range(5):
            calls = [connecting(router.url, number) for number in range(4)]
            for _ in until(2, "four requests under way"):
                if total(router.metrics(), "router_in_flight") == 4:
                    break
            for call in calls:
                call.close()
            for _ in until(2, "none under way"):
                if total(router.metrics(), "router_in_flight") == 0:
                    break
        gateway.reopen()
        began = time.monotonic()
        answer = connecting(router.url, 99).rest()
        assert answer.startswith(b"HTTP/1.1 200"), answer[:500]
        assert time.monotonic() - began < 5.0
        assert total(router.metrics(), "router_outcomes_total", outcome="client_abort") == 20


def connecting(url: str, number: int) -> Call:
    import json

    body = json.dumps(chat_body(f"{number}", model="pair")).encode()
    return Call(url, "/v1/chat/completions", body, {"content-type": "application/json"})
