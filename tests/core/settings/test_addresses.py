"""Addresses of workers: one form of each, and those that are refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.settings import load, may_be_a_worker, normalise_worker_url
from tests.core.settings.rig import Write, problems


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("http://gpu1:8000", "http://gpu1:8000"),
        ("http://gpu1:8000/", "http://gpu1:8000"),
        ("  http://gpu1  ", "http://gpu1:80"),
        ("https://gpu1", "https://gpu1:443"),
        ("http://gpu1:", "http://gpu1:80"),
        ("HTTP://GPU1.Example.COM.:8000", "http://gpu1.example.com:8000"),
        ("http://vllm_0.vllm-workers.svc:8000", "http://vllm_0.vllm-workers.svc:8000"),
        ("http://10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://[0:0:0:0:0:0:0:1]", "http://[::1]:80"),
        ("http://[2001:DB8::0001]:8000", "http://[2001:db8::1]:8000"),
        ("http://gateway/fleet/a/", "http://gateway:80/fleet/a"),
        ("http://gateway/v1beta", "http://gateway:80/v1beta"),
        ("http://3com.example", "http://3com.example:80"),
        ("http://host:65535", "http://host:65535"),
    ],
)
def test_an_address_has_one_form(url: str, canonical: str) -> None:
    assert normalise_worker_url(url) == canonical
    assert normalise_worker_url(canonical) == canonical


@pytest.mark.parametrize(
    "url",
    [
        "",
        "gpu1:8000",
        "//gpu1",
        "file:///etc/passwd",
        "ftp://gpu1",
        "unix:///run/vllm.sock",
        "javascript:alert(1)",
        "http://",
        "http:///path",
        "http://:8000",
        "http://user@gpu1",
        "http://user:pass@gpu1",
        "http://@gpu1",
        "http://:@gpu1",
        "http://gpu1:8000@evil",
        "http://gpu1?x=1",
        "http://gpu1/?",
        "http://gpu1#x",
        "http://gpu1/#",
        "http://gpu1:0",
        "http://gpu1:65536",
        "http://gpu1:-1",
        "http://gpu1:port",
        "http://gpu 1",
        "http://gpu\n1",
        "http://gpu1/\r\nX: y",
        "http://gpu1\\evil",
        "http://gpu%31",
        "http://bücher",
        "http://-.-..x",
        "http://[::1",
        "http://[fe80::1%25eth0]",
        "http://gpu1/v1",
        "http://gpu1/v1/",
        "http://gpu1/fleet/v1",
        "http://gpu1/a/../b",
        "http://gpu1/a//b",
        "http://gpu1/a%2fb",
        "http://gpu1/a;b",
        "http://169.254.169.254",
        "http://169.254.169.254./latest",
        "http://[fe80::1]",
        "http://[::ffff:169.254.169.254]",
        "http://[::ffff:a9fe:a9fe]",
        "http://2852039166",
        "http://0xa9fea9fe",
        "http://169.254.43518",
        "http://0251.0376.0251.0376",
        "http://0xa9.0xfe.0xa9.0xfe",
        "http://127.1",
        "http://0",
        "http://0.0.0.0:8000",
        "http://[::]:8000",
        "http://[::ffff:0.0.0.0]",
        "http://224.0.0.1",
        "http://[ff02::1]",
    ],
)
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|Port|port"):
        normalise_worker_url(url)
    assert problems(None, {"workers": [url]})[0].startswith("workers.0.url: ")


def test_addresses_with_blanks_between_want_commas() -> None:
    with pytest.raises(ValueError, match="several worker URLs in one; commas"):
        normalise_worker_url("http://gpu1:8000 http://gpu2:8000")


def test_an_address_with_the_api_path_is_told_what_to_leave_out() -> None:
    assert problems(None, {"workers": ["http://gpu1:8000/v1"]}) == [
        "workers.0.url: a worker URL ends before /v1, which the router adds"
    ]


@settings(max_examples=200)
@given(st.one_of(st.text(max_size=30), st.text("htps:/[]@.0123456789axf%#?\\ ", max_size=30).map("http://".__add__)))
def test_any_text_is_an_address_or_an_error(text: str) -> None:
    try:
        canonical = normalise_worker_url(text)
    except ValueError:
        return
    assert canonical.startswith(("http://", "https://"))
    assert not set(canonical) & set("@?#\\% \r\n\t")
    assert normalise_worker_url(canonical) == canonical


@pytest.mark.parametrize(
    "urls",
    [
        ["http://a", "http://b", "http://a"],
        ["http://a", "http://a:80/"],
        ["http://a", "HTTP://A."],
        ["https://a", "https://a:443"],
        ["http://[::1]", "http://[0::1]:80"],
    ],
)
def test_a_worker_that_is_listed_twice_is_refused(urls: list[str]) -> None:
    (line,) = problems(None, {"workers": urls})
    assert line == f"workers: listed twice: {normalise_worker_url(urls[0])}"


def test_a_double_is_reported_beside_other_problems(write: Write) -> None:
    lines = problems(write("workers: ['http://a', 'http://a']\nport: x\n"))
    assert lines[1:] == ["FILE, line 1: workers: listed twice: http://a:80"]


def test_the_same_host_may_serve_on_several_ports_and_paths() -> None:
    urls = ["http://a:1", "http://a:2", "http://a:1/x", "https://a:1"]
    assert [worker.url for worker in load(None, {"workers": urls}).workers] == urls


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("10.0.0.1", True),
        ("127.0.0.1", True),
        ("8.8.8.8", True),
        ("::1", True),
        ("fd00::1", True),
        ("::ffff:10.0.0.1", True),
        ("169.254.169.254", False),
        ("::ffff:169.254.169.254", False),
        ("fe80::1%eth0", False),
        ("fe80::1", False),
        ("224.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("no address", False),
    ],
)
def test_where_a_name_may_lead(host: str, allowed: bool) -> None:
    assert may_be_a_worker(host) is allowed
