"""The same client over TLS."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from router import errors
from tests.edges.upstream.rig import CHUNKED, HELLO, WorkerSide, ask, chunk, eventually, pool_for, read_all, worker

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and certificate for 127.0.0.1 in one file."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    key, public = path.with_suffix(".key"), path.with_suffix(".crt")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=worker", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*command, *names, "-keyout", str(key), "-out", str(public)], check=True, capture_output=True)
    path.write_text(key.read_text() + public.read_text())
    return path


@pytest.fixture
def server_side(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.fixture
def client_side(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


async def answer_all(side: WorkerSide) -> None:
    while await side.request():
        await side.send(HELLO)


async def test_requests_share_a_connection(server_side: ssl.SSLContext, client_side: ssl.SSLContext) -> None:
    async with worker(answer_all, tls=server_side) as it, pool_for(it.origin, ssl_context=client_side) as pool:
        for _ in range(5):
            assert await read_all(await ask(pool, b"x" * 100_000)) == b"hello"
        assert len(it.connections) == 1
        assert it.requests == 5


async def test_an_unknown_certificate_is_refused(server_side: ssl.SSLContext) -> None:
    async with worker(answer_all, tls=server_side) as it, pool_for(it.origin) as pool:
        with pytest.raises(errors.ConnectFailed):
            await ask(pool)
        assert it.requests == 0


async def test_a_worker_without_tls_is_refused(client_side: ssl.SSLContext) -> None:
    async def script(side: WorkerSide) -> None:
        await side.reader.read(1)
        side.writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with worker(script) as it:
        origin = type(it.origin)(it.origin.host, it.origin.port, tls=True)
        async with pool_for(origin, ssl_context=client_side) as pool:
            with pytest.raises(errors.ConnectFailed):
                await ask(pool)


async def test_a_cut_stream_is_a_reset(server_side: ssl.SSLContext, client_side: ssl.SSLContext) -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(CHUNKED + chunk(b"one"))

    async with worker(script, tls=server_side) as it, pool_for(it.origin, ssl_context=client_side) as pool:
        response = await ask(pool)
        assert await response.read() == b"one"
        with pytest.raises(errors.UpstreamReset):
            await response.read()


async def test_closing_ends_the_connection_at_once(server_side: ssl.SSLContext, client_side: ssl.SSLContext) -> None:
    async def script(side: WorkerSide) -> None:
        await side.request()
        await side.send(CHUNKED + chunk(b"one"))
        await side.gone()

    async with worker(script, tls=server_side) as it, pool_for(it.origin, ssl_context=client_side) as pool:
        response = await ask(pool)
        response.close()
        await eventually(lambda: it.connections[0].reader.at_eof())
        assert pool.statistics().open == 0
