"""The shipped nginx configuration: what passes unchanged, and what nginx says itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.fleet import NginxProcess, find_nginx, free_port
from router.settings import Settings
from tests.shipped import CONFIG, ROUTERS, SERVICES, Answers, run, stand_in

NGINX = CONFIG / "nginx"


def require(binary: str | None, name: str) -> str:
    """Skip without the binary; in CI its absence is a failure."""
    if binary is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is not installed")
        pytest.skip(f"{name} is not installed")
    return binary


def test_nginx_leads_to_the_replicas_of_the_deployment() -> None:
    servers = re.findall(r"^server (\S+) max_fails=1 fail_timeout=2s;$", (NGINX / "replicas.conf").read_text(), re.M)
    assert servers == [f"{name}:8080" for name in ROUTERS]
    (port,) = re.findall(r"^listen (\d+);$", (NGINX / "listen.conf").read_text(), re.M)
    assert SERVICES["nginx"]["ports"] == [f"{port}:{port}"]
    assert f":{port}/health" in SERVICES["nginx"]["healthcheck"]["test"][-1]


def test_nginx_fits_the_router_s_own_limits() -> None:
    text = (NGINX / "nginx.conf").read_text()
    settings = Settings()

    def seconds(name: str) -> list[int]:
        return [int(value) for value in re.findall(rf"{name} (\d+)s;", text)]

    assert min(seconds("proxy_read_timeout")) > settings.timeouts.first_byte
    upstream, client = seconds("keepalive_timeout")
    assert upstream < settings.timeouts.keep_alive
    assert client >= upstream
    (megabytes,) = re.findall(r"client_max_body_size (\d+)m;", text)
    assert int(megabytes) << 20 >= settings.limits.media_body_bytes


@pytest.mark.nginx
def test_nginx_accepts_the_shipped_files(tmp_path: Path) -> None:
    binary = require(find_nginx(), "nginx")
    shutil.copytree(NGINX, tmp_path / "conf")
    replicas = tmp_path / "conf" / "replicas.conf"
    # Names of the deployment's network mean nothing here.
    replicas.write_text(re.sub(r"router-\d", "127.0.0.1", replicas.read_text()))
    done = run(binary, "-t", "-p", f"{tmp_path}/", "-c", f"{tmp_path}/conf/nginx.conf")
    assert done.returncode == 0, done.stderr
    assert "[warn]" not in done.stderr


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[NginxProcess]:
    """The shipped nginx in front of a stand-in for a replica."""
    require(find_nginx(), "nginx")
    with stand_in() as port, NginxProcess(tmp_path, [port]) as process:
        assert isinstance(process, NginxProcess)
        yield process


def exchange(port: int, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send raw bytes; the status, headers and body of the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection, connection.makefile("rb") as stream:
        connection.sendall(request)
        status = int(stream.readline().split()[1])
        headers = {}
        while line := stream.readline().decode().strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return status, headers, stream.read(int(headers["content-length"]))


def post(path: str, *fields: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: api", "Connection: close", "Content-Length: 2", *fields]
    return "\r\n".join(lines).encode() + b"\r\n\r\n{}"


@pytest.mark.nginx
@pytest.mark.parametrize("status", [200, 400, 413, 431, 500, 502, 503, 504])
def test_what_a_replica_answers_passes_unchanged(nginx: NginxProcess, status: int) -> None:
    got, headers, body = exchange(nginx.port, post(f"/{status}"))
    assert (got, body) == (status, b'{"error":{"code":"from_the_replica"}}')
    assert "retry-after" not in headers


def error_code(headers: dict[str, str], body: bytes) -> str:
    """The code of an error in the OpenAI form; its content type and request id are checked by the way."""
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"]
    answer = json.loads(body)
    assert answer["type"] == "error"
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    return str(answer["error"]["code"])


@pytest.mark.nginx
def test_a_replica_that_dies_without_an_answer_is_reported_in_json(nginx: NginxProcess) -> None:
    status, headers, body = exchange(nginx.port, post("/die", "X-Request-Id: mine"))
    assert (status, error_code(headers, body)) == (503, "no_replica")
    assert (headers["x-request-id"], headers["retry-after"]) == ("mine", "1")
    assert len(Answers.heard) == 1  # what was sent once is not sent again


@pytest.mark.nginx
def test_replicas_that_are_down_are_reported_in_json(tmp_path: Path) -> None:
    require(find_nginx(), "nginx")
    with NginxProcess(tmp_path, [free_port(), free_port()]) as process:
        assert isinstance(process, NginxProcess)
        status, headers, body = exchange(process.port, post("/v1/chat/completions"))
    assert (status, error_code(headers, body)) == (503, "no_replica")


@pytest.mark.nginx
@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400, "bad_request"),
        (b"\x00\x01\r\n\r\n", 400, "bad_request"),
        (
            b"POST /200 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
            400,
            "bad_request",
        ),
        (b"POST /200 HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n", 413, "payload_too_large"),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX-Long: " + b"a" * 20_000 + b"\r\n\r\n", 431, "headers_too_large"),
    ],
    ids=["no-host", "garbage", "two-lengths", "body", "line", "header"],
)
def test_what_nginx_refuses_is_refused_in_json(
    nginx: NginxProcess, request_bytes: bytes, status: int, code: str
) -> None:
    got, headers, body = exchange(nginx.port, request_bytes)
    assert (got, error_code(headers, body)) == (status, code)
    assert Answers.heard == []


@pytest.mark.nginx
def test_a_request_has_one_id_on_its_whole_way(nginx: NginxProcess) -> None:
    exchange(nginx.port, post("/200", "X-Request-Id: mine"))
    exchange(nginx.port, post("/200"))
    given, made = (heard["x-request-id"] for heard in Answers.heard)
    assert given == "mine"
    assert re.fullmatch("[0-9a-f]{32}", made)
