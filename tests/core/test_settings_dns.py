"""Names under which workers are found, and the server that is asked for them."""

from __future__ import annotations

import pytest

from router.__main__ import main
from router.settings import read_name_server
from router.settings.dns import read_dns_name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("vllm:8000", "vllm:8000"),
        (" VLLM.Default.svc.cluster.local:08000 ", "vllm.default.svc.cluster.local:8000"),
        ("vllm.example.:1", "vllm.example.:1"),
        ("_http._tcp.vllm:65535", "_http._tcp.vllm:65535"),
    ],
)
def test_a_name_and_its_port(text: str, name: str) -> None:
    assert read_dns_name(text) == name


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("vllm", "name:port"),
        ("vllm:0", "name:port"),
        ("vllm:65536", "name:port"),
        ("vllm:port", "name:port"),
        (":8000", "plain host name"),
        ("http://vllm:8000", "plain host name"),
        ("a..b:8000", "plain host name"),
        ("vllm_\u00e9:8000", "plain host name"),
        ("x" * 64 + ":8000", "plain host name"),
        (".".join(["x" * 60] * 5) + ":8000", "plain host name"),
        ("10.0.0.1:8000", "under workers"),
    ],
)
def test_what_is_no_name_and_port(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_dns_name(text)


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("10.0.0.10", ("10.0.0.10", 53)),
        ("127.0.0.1:8600", ("127.0.0.1", 8600)),
        ("::1", ("::1", 53)),
        ("[fd00::1]:5353", ("fd00::1", 5353)),
    ],
)
def test_a_name_server(text: str, server: tuple[str, int]) -> None:
    assert read_name_server(text) == server


@pytest.mark.parametrize("text", ["ns.example", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0", "[::1", "10.0.0.1:53:54"])
def test_what_is_no_name_server(text: str) -> None:
    with pytest.raises(ValueError, match=r"name server"):
        read_name_server(text)


def test_names_are_enough_to_serve_and_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUTER_WORKERS_DNS", "vllm:8000, vllm:8000, other:9000")
    assert main(["check-config"]) == 0
    assert capsys.readouterr().out == "ok: 0 workers and 2 names of workers, policy work\n"


def test_a_name_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTER_WORKERS_DNS", "http://vllm:8000")
    monkeypatch.setenv("ROUTER_DNS__SERVER", "ns.example")
    assert main(["check-config"]) == 2
    said = capsys.readouterr().err
    assert "ROUTER_WORKERS_DNS" in said
    assert "ROUTER_DNS__SERVER" in said
