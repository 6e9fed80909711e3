"""Cases of clients that send what is no request, straight to a replica and through nginx with the shipped settings."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from loadtest.fleet import RouterProcess, until
from tests.whole.rig import CHAT, QUICK, Rig, building, chat_body, group, together, total

JSON = {"content-type": "application/json"}
BODY = json.dumps(chat_body("abuse", model="sole")).encode()
SETTINGS = {
    "ROUTER_TIMEOUTS__HEADER": "1.5",
    "ROUTER_TIMEOUTS__BODY": "1.5",
    "ROUTER_TIMEOUTS__WRITE_STALL": "1.5",
    "ROUTER_TIMEOUTS__QUEUE": "5",
}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with building(tmp_path_factory.mktemp("abuse")) as build:
        rig = build(group("sole"), group("loud", decode_seconds_per_token=0.0), nginx=True, settings=SETTINGS)
        # What is refused for its form is counted as a request or not, as far as it could be read.
        rig.countable = False
        yield rig


@pytest.fixture(params=["direct", "nginx"])
def port(request: pytest.FixtureRequest, deployment: Rig) -> int:
    front = deployment.routers[0].url if request.param == "direct" else deployment.front
    return int(front.rpartition(":")[2])


def send(port: int, data: bytes, *, seconds: float = 10, shut: bool = False) -> bytes:
    """What comes back until the connection ends, or falls silent for so long."""
    seen = b""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as sock:
        try:
            sock.sendall(data)
            if shut:
                sock.shutdown(socket.SHUT_WR)
            while piece := sock.recv(65536):
                seen += piece
        except TimeoutError:
            seen += b"<silence>"
        except OSError:
            pass  # ended while we were still sending
    return seen


def request(*fields: str, verb: str = "POST", target: str = CHAT, version: str = "1.1", host: str = "host: r") -> bytes:
    lines = [f"{verb} {target} HTTP/{version}", *([host] if host else []), *fields, "", ""]
    return "\r\n".join(lines).encode("latin-1")


LENGTH = f"content-length: {len(BODY)}"
CHUNKED = "transfer-encoding: chunked"
MALFORMED = {
    "h1-length-and-chunks": request(LENGTH, CHUNKED) + b"0\r\n\r\nGET /health HTTP/1.1\r\nhost: r\r\n\r\n",
    "h2-two-equal-lengths": request(LENGTH, LENGTH) + BODY,
    "h2-two-lengths": request("content-length: 2", "content-length: 3") + b"{} ",
    "h2-a-list-of-lengths": request("content-length: 2, 2") + b"{}",
    "h2-a-signed-length": request("content-length: +2") + b"{}",
    "h2-a-length-in-hex": request("content-length: 0x2") + b"{}",
    "h4-chunks-in-http-1-0": request(CHUNKED, version="1.0") + b"2\r\n{}\r\n0\r\n\r\n",
    "h5-folded-line": request("x-a: b", " c", LENGTH) + BODY,
    "h5-nul": request("x-a: b\0c", LENGTH) + BODY,
    "h5-bare-cr": request("x-a: b\rc", LENGTH) + BODY,
    "h5-blank-before-colon": request("x-a : b", LENGTH) + BODY,
    "h9-no-host": request(LENGTH, host="") + BODY,
    "h9-two-hosts": request("host: other", LENGTH) + BODY,
}
CHUNKS = {
    "h6-a-negative-size": request(CHUNKED) + b"-1\r\n{}\r\n0\r\n\r\n",
    "h6-seventeen-digits": request(CHUNKED) + b"11111111111111111\r\n{}\r\n0\r\n\r\n",
    "h6-a-wrong-end": request(CHUNKED) + b"2\r\n{}xx0\r\n\r\n",
    "h6-no-size": request(CHUNKED) + b"\r\n{}\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("case", [*MALFORMED, *CHUNKS])
def test_h1_h2_h4_h5_h6_h9_what_can_be_read_in_two_ways_is_refused_once(rig: Rig, port: int, case: str) -> None:
    before = rig.arrived("sole")
    seen = send(port, {**MALFORMED, **CHUNKS}[case])
    assert seen.startswith((b"HTTP/1.1 400", b"HTTP/1.1 411", b"HTTP/1.1 501")), seen[:200]
    assert seen.count(b"HTTP/1.1 ") == 1
    assert b'"error"' in seen
    assert not seen.endswith(b"<silence>")
    assert rig.arrived("sole") == before


def test_h6_a_megabyte_of_chunk_extension_is_not_collected(rig: Rig, port: int) -> None:
    before = rig.arrived("sole")
    memory = resident(rig.routers[0].pid)
    seen = send(port, request(CHUNKED, "connection: close") + b"2;" + b"a" * 1_000_000 + b"\r\n{}\r\n0\r\n\r\n")
    # Read and passed over, or refused: in both cases nobody keeps it, and the body that it belongs to is `{}`.
    assert seen == b"" or seen.startswith((b"HTTP/1.1 400", b"HTTP/1.1 413", b"HTTP/1.1 404")), seen[:200]
    assert rig.arrived("sole") == before
    assert resident(rig.routers[0].pid) - memory < 10_000_000


@pytest.mark.parametrize(
    "fields", [["x-a: " + "b" * 20_000_000], [f"x-{number}: b" for number in range(20_000)]], ids=["bytes", "count"]
)
def test_h10_header_sections_have_a_size_and_a_count(rig: Rig, port: int, fields: list[str]) -> None:
    before = rig.arrived("sole")
    seen = send(port, request(*fields, LENGTH) + BODY)
    # Whoever is still sending may find the connection reset before the answer is read.
    assert seen == b"" or seen.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400")), seen[:200]
    assert rig.arrived("sole") == before


@pytest.mark.parametrize("verb", ["GET", "HEAD", "DELETE", "PUT"])
def test_h12_other_verbs_are_told_the_right_one(rig: Rig, port: int, verb: str) -> None:
    answer = httpx.request(verb, f"http://127.0.0.1:{port}{CHAT}", trust_env=False)
    assert answer.status_code == 405
    assert "POST" in answer.headers["allow"]
    assert verb == "HEAD" or answer.json()["error"]["type"] == "invalid_request_error"


def test_h14_the_path_decides_and_not_the_host(rig: Rig) -> None:
    before = rig.arrived("sole")
    host = f"host: r{CHAT}?x="
    seen = send(rig.routers[0].port, request(LENGTH, "connection: close", target="/sleep", host=host) + BODY)
    assert seen.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400")), seen[:200]
    assert rig.arrived("sole") == before


def test_h15_an_address_that_a_client_claims_decides_nothing(rig: Rig) -> None:
    claims = {"x-forwarded-for": "10.0.0.1, 10.0.0.2", "x-real-ip": "10.0.0.3", "forwarded": "for=10.0.0.4"}
    assert rig.post(CHAT, BODY, via=rig.routers[0].url, headers=claims).status_code == 200
    answer = rig.http.post(rig.routers[0].url + "/router/workers", json={}, headers=claims)
    assert answer.status_code in (401, 403)


@pytest.mark.parametrize("name", ["a\r\nset-cookie: b", "a\nb", "a\0b"], ids=["crlf", "lf", "nul"])
def test_h16_nothing_that_is_echoed_splits_a_header(rig: Rig, name: str) -> None:
    answer = rig.post(CHAT, chat_body("echo", model=name), via=rig.routers[0].url)
    assert answer.status_code in (400, 404)
    assert "set-cookie" not in answer.headers
    seen = send(rig.routers[0].port, request(f"x-request-id: {name}", LENGTH, "connection: close") + BODY)
    assert b"\r\nset-cookie: b" not in seen.partition(b"\r\n\r\n")[0].lower() or b" 400 " in seen[:20]


def test_h19_a_compressed_body_is_an_unsupported_one(rig: Rig, port: int) -> None:
    url = f"http://127.0.0.1:{port}{CHAT}"
    answer = httpx.post(url, content=BODY, headers={"content-encoding": "gzip"}, trust_env=False)
    assert answer.status_code == 415
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_c7_a_header_that_drips_ends_in_its_time(rig: Rig) -> None:
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", rig.routers[0].port), timeout=10) as sock:
        sock.settimeout(0.1)
        seen = b""
        for byte in request(LENGTH):
            try:
                sock.send(bytes([byte]))
                piece = sock.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                break
            seen += piece
            if not piece:
                break
    assert seen == b"" or seen.startswith(b"HTTP/1.1 408")
    assert time.monotonic() - began < 8


def test_c8_a_connection_without_a_word_ends(rig: Rig) -> None:
    assert send(rig.routers[0].port, b"") == b""


def test_c11_pipelined_requests_are_answered_in_order_and_counted(rig: Rig) -> None:
    bodies = [json.dumps(chat_body(f"number {number}", model="sole")).encode() for number in range(3)]
    parts = [
        request(f"content-length: {len(body)}", f"x-request-id: pipe-{n}", "content-type: application/json") + body
        for n, body in enumerate(bodies)
    ]
    before = rig.metric("router_outcomes_total", outcome="ok")
    with socket.create_connection(("127.0.0.1", rig.routers[0].port), timeout=10) as sock:
        sock.sendall(b"".join(parts))
        seen = b""
        while seen.count(b'"usage"') < 3:
            try:
                piece = sock.recv(65536)
            except TimeoutError:
                raise AssertionError(seen) from None
            assert piece, seen
            seen += piece
    order = [seen.index(f"pipe-{number}".encode()) for number in range(3)]
    assert order == sorted(order)
    for _ in until(5, "all three counted"):
        if rig.metric("router_outcomes_total", outcome="ok") == before + 3:
            break


def test_c12_nobody_is_told_to_send_too_much(rig: Rig) -> None:
    fields = ("expect: 100-continue", "content-length: 100000000")
    seen = send(rig.routers[0].port, request(*fields))
    assert seen.startswith(b"HTTP/1.1 413")
    assert b"100 Continue" not in seen


def test_c6_clients_that_do_not_read_hold_up_their_worker_and_not_the_memory(rig: Rig) -> None:
    router = rig.routers[0]
    body = json.dumps(chat_body("loud", model="loud", stream=True, max_tokens=20_000)).encode()
    before = resident(router.pid)
    socks = []
    for _ in range(30):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", router.port))
        sock.sendall(request(f"content-length: {len(body)}") + body)
        socks.append(sock)
    highest = 0
    for _ in until(30, "all to be given up"):
        highest = max(highest, resident(router.pid))
        if rig.metric("router_in_flight") == 0 and rig.arrived("loud") >= 30:
            break
    for sock in socks:
        sock.close()
    assert highest - before < 60_000_000
    for _ in until(5, "the worker at rest"):
        state = rig.groups["loud"][0].state()
        if state["running"] == state["waiting"] == 0:
            break


def resident(pid: int) -> int:
    """Bytes of memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_x4_bodies_in_memory_have_a_common_limit(rig: Rig, tmp_path: Path) -> None:
    size = 1_000_000
    limits = {
        "ROUTER_LIMITS__BODY_BYTES": str(2 * size),
        "ROUTER_LIMITS__TOTAL_BODY_BYTES": str(8 * size),
        "ROUTER_LIMITS__MEDIA_BODY_BYTES": str(2 * size),
    }
    worker = rig.groups["sole"][0]
    with RouterProcess(tmp_path, [worker.url], environment={**QUICK, **SETTINGS, **limits}) as router:
        router.wait_ready(1)
        before = resident(router.pid)
        body = json.dumps(chat_body("large", model="sole", padding="x" * size)).encode()
        fault = json.dumps({"kind": "stall", "seconds": 1.0})

        def one(number: int) -> int:
            headers = {"content-type": "application/json", "x-sim-fault": fault}
            return httpx.post(router.url + CHAT, content=body, headers=headers, trust_env=False, timeout=30).status_code

        statuses = together(30, one)
        assert set(statuses) == {200, 503}
        assert statuses.count(200) >= 7
        assert resident(router.pid) - before < 60_000_000
        for _ in until(5, "bodies to be let go"):
            if total(router.metrics(), "router_body_bytes") == 0:
                break
        assert one(0) == 200


def test_x2_x7_beyond_its_capacity_a_fleet_goes_on_and_the_rest_is_refused_at_once(rig: Rig, tmp_path: Path) -> None:
    worker = rig.groups["sole"][0]
    settings = {**QUICK, **SETTINGS, "ROUTER_LIMITS__QUEUE_PER_WORKER": "4", "ROUTER_LIMITS__DEFAULT_SLOTS": "4"}
    with RouterProcess(tmp_path, [worker.url], environment=settings) as router:
        router.wait_ready(1)
        fault = json.dumps({"kind": "stall", "seconds": 0.5})

        def one(number: int) -> tuple[int, str | None, float]:
            began = time.monotonic()
            headers = {"content-type": "application/json", "x-sim-fault": fault}
            answer = httpx.post(router.url + CHAT, content=BODY, headers=headers, trust_env=False, timeout=30)
            return answer.status_code, answer.headers.get("retry-after"), time.monotonic() - began

        with ThreadPoolExecutor(80) as pool:
            answers = pool.map(one, range(80))
            assert httpx.get(router.url + "/health", trust_env=False, timeout=5).status_code == 200
            seen = list(answers)
        served = [each for each in seen if each[0] == 200]
        shed = [each for each in seen if each[0] != 200]
        # Four are served and four wait; whoever comes later may find a place again.
        assert len(served) >= 8
        assert shed
        assert {each[0] for each in shed} <= {429, 503}
        assert all(each[1] for each in shed)


def test_x8_a_log_that_cannot_be_written_stops_nobody(rig: Rig, tmp_path: Path) -> None:
    worker = rig.groups["sole"][0]
    router = RouterProcess(tmp_path, [worker.url], environment={**QUICK, **SETTINGS})
    router.log = Path("/dev/full")
    with router:
        router.wait_ready(1)
        for number in range(20):
            body = json.dumps(chat_body(f"unlogged {number}", model="sole")).encode()
            assert httpx.post(router.url + CHAT, content=body, headers=JSON, trust_env=False).status_code == 200
