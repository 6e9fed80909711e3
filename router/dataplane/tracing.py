"""Spans of OpenTelemetry, one for each request for which something was decided; needs the extra `otel`.

The span continues the client's trace where its `traceparent` names one, carries the decision as attributes, and is what
the worker gets as its parent. It never holds anything of a prompt, a key or an address.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span as ApiSpan
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from router.dataplane.client import Client
from router.dataplane.headers import Headers
from router.dataplane.job import Job
from router.routes import Route
from router.settings import TracingSettings

log = logging.getLogger("router.tracing")

EXPORT_SECONDS: Final = 1.0
# Spans of one export. Making bytes of them takes some 3 ms, in which the thread holds the interpreter.
BATCH: Final = 64
# How long one export may take, the exporter's own second tries included, and how long the end waits for the last.
TIMEOUT_SECONDS: Final = 5.0
RESULTS: Final = ("exported", "failed", "dropped")
_PARENT, _STATE = b"traceparent", b"tracestate"
_NANOSECONDS: Final = 1_000_000_000
# Fields of a decision, and what its attributes are called; those that OpenTelemetry has names for keep them.
_ATTRIBUTES: Final = {
    "model": "gen_ai.request.model",
    "reported_prompt_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "status": "http.response.status_code",
    "request_id": "router.request_id",
    "worker": "router.worker",
    "reason": "router.reason",
    "matched_blocks": "router.matched_blocks",
    "blocks": "router.blocks",
    "resumable_tokens": "router.resumable_tokens",
    "prompt_tokens": "router.prompt_tokens",
    "load": "router.load",
    "min_load": "router.min_load",
    "slack": "router.slack",
    "runner_up": "router.runner_up",
    "attempt": "router.attempts",
    "outcome": "router.outcome",
    "first_byte_seconds": "router.first_byte_seconds",
    "predicted_cached_tokens": "router.predicted_cached_tokens",
    "reported_cached_tokens": "router.reported_cached_tokens",
    "verdict": "router.verdict",
}
_FINE: Final = frozenset({"ok", "client_abort"})


class RequestSpan:
    """A span that is not over yet, and when it began in nanoseconds of Unix time."""

    __slots__ = ("began", "span")

    def __init__(self, span: ApiSpan, began: int) -> None:
        self.span = span
        self.began = began

    def carry(self, headers: Headers) -> Headers:
        """The headers with this span as the parent; the client's trace state goes with it."""
        context = self.span.get_span_context()
        kept = [pair for pair in headers if pair[0] not in (_PARENT, _STATE)]
        parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        kept.append((_PARENT, parent.encode()))
        state = context.trace_state.to_header()
        if state:
            kept.append((_STATE, state.encode()))
        return kept


class Tracing:
    """One for all of a process. `exporter` is OTLP over HTTP to the settings' endpoint unless another one is given."""

    def __init__(self, settings: TracingSettings, replica: str, exporter: SpanExporter | None = None) -> None:
        # It names addresses, and says the same with every batch; what matters is told here once.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self.exporting = Exporting(
            exporter or OTLPSpanExporter(endpoint=settings.endpoint, timeout=TIMEOUT_SECONDS), settings.queue
        )
        resource = Resource.create({SERVICE_NAME: settings.service_name, SERVICE_INSTANCE_ID: replica})
        provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.sample)), resource=resource, shutdown_on_exit=False
        )
        provider.add_span_processor(self.exporting)
        self._tracer = provider.get_tracer("prefix-router")
        self._propagator = TraceContextTextMapPropagator()

    @property
    def results(self) -> Mapping[str, int]:
        """Spans by what became of them."""
        return self.exporting.results

    def begin(self, client: Client, route: Route) -> RequestSpan:
        """A span that begins now, a child of the client's if the client names one."""
        began = time.time_ns()
        parent = client.fields.get(_PARENT)
        context = Context() if parent is None else self._context(client, parent)
        attributes = {"http.request.method": client.method.decode("latin-1"), "http.route": route.path}
        span = self._tracer.start_span(
            f"{attributes['http.request.method']} {route.path}",
            context,
            SpanKind.SERVER,
            attributes=attributes,
            start_time=began,
        )
        return RequestSpan(span, began)

    def end(self, job: Job) -> None:
        """A request has ended: complete its span, and let it go."""
        request = job.span
        if not isinstance(request, RequestSpan):
            return
        span, record = request.span, job.record
        ended = time.time_ns()
        if record is not None and record.total_seconds is not None:
            # By the clock that the rest of its times come from.
            ended = request.began + int(record.total_seconds * _NANOSECONDS)
        if span.is_recording():
            for earlier in job.earlier:
                span.add_event("retry", {"router.worker": earlier.worker, "error.type": earlier.error or ""})
            self._describe(span, job, request.began)
        span.end(ended)

    def close(self) -> None:
        """Export what is left, for a few seconds at most; blocks for as long."""
        self.exporting.shutdown()

    def _context(self, client: Client, parent: bytes) -> Context:
        carrier = {"traceparent": parent.decode("latin-1")}
        states = [value.decode("latin-1") for name, value in client.headers if name == _STATE]
        if states:
            carrier["tracestate"] = ",".join(states)
        return self._propagator.extract(carrier, Context())

    def _describe(self, span: ApiSpan, job: Job, began: int) -> None:
        record, error = job.record, None
        told: dict[str, AttributeValue] = {}
        if record is not None:
            told = {name: value for field, name in _ATTRIBUTES.items() if (value := getattr(record, field)) is not None}
            if record.first_byte_seconds is not None:
                span.add_event("first byte", timestamp=began + int(record.first_byte_seconds * _NANOSECONDS))
            if record.outcome not in _FINE:
                error = record.error or record.outcome
        if job.failure is not None and not job.client.started:
            error = job.failure.code
            told["http.response.status_code"] = job.failure.status
        if error is not None:
            told["error.type"] = error
            span.set_status(Status(StatusCode.ERROR))
        span.set_attributes(told)


class Exporting(SpanProcessor):
    """A bounded queue and a thread that exports from it: no request waits, and what is lost is counted."""

    def __init__(self, exporter: SpanExporter, limit: int) -> None:
        self.results = dict.fromkeys(RESULTS, 0)
        self._exporter = exporter
        self._limit = limit
        self._queue: deque[ReadableSpan] = deque()
        self._over = threading.Event()
        self._failing = False
        # A daemon, since the end of the process must not wait for a collector.
        self._thread = threading.Thread(target=self._run, name="tracing", daemon=True)
        self._thread.start()

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        """Nothing to do."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span that was sampled."""
        context = span.context
        if context is None or not context.trace_flags.sampled:
            return
        if len(self._queue) >= self._limit:
            self.results["dropped"] += 1
        else:
            self._queue.append(span)

    def shutdown(self) -> None:
        """Export what is left within the time-out, and stop."""
        self._over.set()
        self._thread.join(TIMEOUT_SECONDS)
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """There is no need: what is queued goes out within a second."""
        return True

    def _run(self) -> None:
        while not self._over.wait(EXPORT_SECONDS):
            self._export_all()
        self._export_all()

    def _export_all(self) -> None:
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            done = self._export(batch)
            self.results["exported" if done else "failed"] += len(batch)
            if done == self._failing:
                log.log(*((logging.INFO, "spans are exported again") if done else _FAILURE))
                self._failing = not done

    def _export(self, batch: Sequence[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:
            # Whatever an exporter trips over, tracing must go on and the requests with it.
            return False


_FAILURE: Final = (logging.WARNING, "spans can't be exported; they are counted in router_spans_total")
