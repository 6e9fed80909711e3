"""Tracing's bounds: a queue that is full, an exporter that fails, packages that are not there."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from router.dataplane import tracing
from router.dataplane.tracing import Tracing
from router.settings import TracingSettings

ROOT = Path(__file__).resolve().parents[2]


class Held(SpanExporter):
    """An exporter that holds its first batch until it is let go, and then says what the test wants."""

    def __init__(self, *says: SpanExportResult | Exception) -> None:
        self.says = list(says)
        self.holds = threading.Event()
        self.go = threading.Event()
        self.got: list[str] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.holds.set()
        assert self.go.wait(20)
        said = self.says.pop(0) if self.says else SpanExportResult.SUCCESS
        if isinstance(said, Exception):
            raise said
        if said is SpanExportResult.SUCCESS:
            self.got += [span.name for span in spans]
        return said


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "EXPORT_SECONDS", 0.005)


def spans(traced: Tracing, *names: str) -> None:
    for name in names:
        traced._tracer.start_span(name).end()


def test_more_than_the_queue_holds_is_dropped_and_counted() -> None:
    exporter = Held()
    traced = Tracing(TracingSettings(queue=4), "r", exporter)
    spans(traced, "first")
    assert exporter.holds.wait(20)
    spans(traced, *[f"s{number}" for number in range(10)])
    exporter.go.set()
    traced.close()
    assert exporter.got == ["first", "s0", "s1", "s2", "s3"]
    assert traced.results == {"exported": 5, "failed": 0, "dropped": 6}


@pytest.mark.parametrize("trouble", [SpanExportResult.FAILURE, RuntimeError("tripped")])
def test_an_exporter_that_fails_is_asked_again_and_told_of_once(
    trouble: SpanExportResult | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "router.tracing")
    exporter = Held(trouble, trouble)
    exporter.go.set()
    traced = Tracing(TracingSettings(), "r", exporter)
    for number in range(3):
        exporter.holds.clear()
        spans(traced, f"s{number}")
        assert exporter.holds.wait(20)
    traced.close()
    assert exporter.got == ["s2"]
    assert traced.results == {"exported": 1, "failed": 2, "dropped": 0}
    assert [record.getMessage() for record in caplog.records] == [
        "spans can't be exported; they are counted in router_spans_total",
        "spans are exported again",
    ]


def test_a_share_of_traces_is_sampled() -> None:
    exporter = Held()
    exporter.go.set()
    traced = Tracing(TracingSettings(sample=0.0), "r", exporter)
    spans(traced, *["none"] * 50)
    traced.close()
    assert traced.results == {"exported": 0, "failed": 0, "dropped": 0}


def test_without_the_packages_it_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['opentelemetry.sdk'] = None\n"
        "from router.__main__ import main\n"
        "sys.exit(main(['serve', '--worker', 'http://127.0.0.1:9', '--port', '0']))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={"ROUTER_TRACING__ENDPOINT": "http://127.0.0.1:9/v1/traces", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert run.returncode == 2
    assert run.stderr == "prefix-router: tracing.endpoint: needs pip install 'prefix-router[otel]'\n"


@pytest.mark.parametrize("endpoint", ["collector:4318", "ftp://collector/v1/traces", "http://"])
def test_an_endpoint_is_a_whole_url(endpoint: str) -> None:
    with pytest.raises(ValueError, match="whole URL"):
        TracingSettings(endpoint=endpoint)
    assert TracingSettings(endpoint="").endpoint is None


def test_serving_without_tracing_never_loads_it() -> None:
    script = "import sys; from router.app import Router; print('router.dataplane.tracing' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
