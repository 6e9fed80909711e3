"""Worker URLs and the limits' arithmetic."""

from __future__ import annotations

import pytest

from router.dataplane.upstream_types import Origin, UpstreamLimits


@pytest.mark.parametrize(
    ("url", "origin", "authority"),
    [
        ("http://10.0.0.7:8000", Origin("10.0.0.7", 8000), b"10.0.0.7:8000"),
        ("http://10.0.0.7:8000/", Origin("10.0.0.7", 8000), b"10.0.0.7:8000"),
        ("http://worker", Origin("worker", 80), b"worker"),
        ("https://worker.example", Origin("worker.example", 443, tls=True), b"worker.example"),
        ("https://worker.example:80", Origin("worker.example", 80, tls=True), b"worker.example:80"),
        ("HTTP://Worker.Example:443", Origin("worker.example", 443), b"worker.example:443"),
        ("http://gpu_1.svc.cluster.local.:8000", Origin("gpu_1.svc.cluster.local.", 8000),
         b"gpu_1.svc.cluster.local.:8000"),
        ("http://worker:8000/engines/a/", Origin("worker", 8000, base_path=b"/engines/a"), b"worker:8000"),
        ("http://[::1]:8000", Origin("::1", 8000), b"[::1]:8000"),
        ("http://[fe80::1%eth0]", Origin("fe80::1%eth0", 80), b"[fe80::1]"),
    ],
)  # fmt: skip
def test_urls(url: str, origin: Origin, authority: bytes) -> None:
    assert Origin.parse(url) == origin
    assert Origin.parse(url).authority == authority


@pytest.mark.parametrize(
    "url",
    [
        *("", "worker:8000", "//worker:8000", "http:worker", "http://", "http://:8000", "ftp://worker", "file:///etc/passwd"),
        *("http://user@worker", "http://user:secret@worker", "http://worker?x=1", "http://worker/#f", "http://worker?"),
        *("http://worker:0", "http://worker:65536", "http://worker:x", "http://worker:-1", "http://[::1", "http://[x]"),
        *("http://wor ker", "http://worker\n", "\thttp://worker", "http://wörker", "http://-worker", "http://a..b"),
        *("http://worker/ä", "http://" + "a" * 64, "http://" + "a." * 127 + "a", "http://wor%6Ber", "http://a\\b"),
    ],
)  # fmt: skip
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Origin.parse(url)


def test_origins_are_equal_by_value() -> None:
    assert len({Origin("a", 1), Origin("a", 1), Origin("a", 2), Origin("a", 1, tls=True)}) == 3


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        (UpstreamLimits(), 0.375),
        (UpstreamLimits(keep_alive_seconds=75.0), 1.0),
        (UpstreamLimits(idle_seconds=0.8), 0.1),
        (UpstreamLimits(first_byte_seconds=0.001), 0.005),
    ],
)
def test_how_often_deadlines_are_looked_at(limits: UpstreamLimits, seconds: float) -> None:
    assert limits.sweep_seconds == pytest.approx(seconds)
