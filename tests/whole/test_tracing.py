"""Traces go through the router: its span joins the client's trace, carries the decision, and is the worker's parent."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest.fleet import until
from tests.otlp_receiver import OtlpReceiver, Received
from tests.whole.rig import CANARY, CHAT, Rig, RigBuilder, chat_body, group, text_of, total

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
MODEL = "traced"


@dataclasses.dataclass
class Traced:
    rig: Rig
    receiver: OtlpReceiver

    def post(self, body: dict[str, Any], request_id: str, **headers: str) -> httpx.Response:
        sent = {"x-request-id": request_id, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return self.rig.post(CHAT, body, headers=sent)

    def span(self, request_id: str) -> Received:
        """The span of a request, once it has come."""
        for _ in until(20, f"the span of {request_id}"):
            for span in list(self.receiver.spans):
                if span.attributes.get("router.request_id") == request_id:
                    return span
        raise AssertionError

    def worker_headers(self, request_id: str) -> dict[bytes, bytes]:
        """What the worker got with a request."""
        for worker in self.rig.workers:
            for record in worker.requests():
                headers = dict(record.headers)
                if headers.get(b"x-request-id") == request_id.encode():
                    return headers
        raise AssertionError


def sampled_child_of(span: Received, headers: dict[bytes, bytes]) -> bool:
    """Whether the worker was told to go on with this span, and to record what it does."""
    begin, _, flags = headers[b"traceparent"].rpartition(b"-")
    # A trace that begins here may also say that its id is random.
    return begin == f"00-{span.trace}-{span.id}".encode() and int(flags, 16) & 1 == 1


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    with ExitStack() as stack:
        receiver = stack.enter_context(OtlpReceiver())
        builder = RigBuilder(tmp_path_factory.mktemp("traced"), stack)
        settings = {"ROUTER_TRACING__ENDPOINT": receiver.endpoint, "OTEL_RESOURCE_ATTRIBUTES": "region=here"}
        yield Traced(builder(group(MODEL, 2), settings=settings), receiver)


def test_a_span_tells_the_decision_and_what_became_of_it(traced: Traced) -> None:
    text = text_of("once upon a time there was a prompt", 8_000)
    traced.post(chat_body(text, model=MODEL), "first")
    answer = traced.post(chat_body(text, model=MODEL), "second")
    span = traced.span("second")
    told = span.attributes
    assert span.name == "POST /v1/chat/completions"
    assert span.kind == 2
    assert not span.failed
    assert told["router.reason"] == "hit"
    assert told["router.worker"] == answer.headers["x-router-worker"]
    assert told["router.matched_blocks"] == told["router.blocks"] > 10
    assert told["gen_ai.request.model"] == MODEL
    assert told["gen_ai.usage.input_tokens"] == answer.json()["usage"]["prompt_tokens"]
    assert told["router.reported_cached_tokens"] > 1_000
    assert (told["router.outcome"], told["http.response.status_code"]) == ("ok", 200)
    ((name, at, _),) = span.events
    assert name == "first byte"
    assert span.began < at <= span.ended
    assert span.resource["service.name"] == "prefix-router"
    assert span.resource["region"] == "here"


def test_the_clients_trace_goes_on_at_the_worker(traced: Traced) -> None:
    parent = f"00-{TRACE}-{PARENT}-01"
    traced.post(chat_body("join", model=MODEL), "joined", traceparent=parent, tracestate="vendor=x,other=y")
    span = traced.span("joined")
    assert (span.trace, span.parent) == (TRACE, PARENT)
    headers = traced.worker_headers("joined")
    assert headers[b"traceparent"] == f"00-{TRACE}-{span.id}-01".encode()
    assert headers[b"tracestate"] == b"vendor=x,other=y"


def test_a_request_without_a_trace_begins_one(traced: Traced) -> None:
    traced.post(chat_body("begin", model=MODEL), "begun")
    span = traced.span("begun")
    assert span.parent == ""
    assert sampled_child_of(span, traced.worker_headers("begun"))


def test_a_client_that_does_not_want_its_trace_recorded_is_heard(traced: Traced) -> None:
    parent = f"00-{TRACE}-{PARENT}-00"
    traced.post(chat_body("quiet", model=MODEL), "quiet", traceparent=parent)
    traced.post(chat_body("loud", model=MODEL), "loud")
    traced.span("loud")
    assert not [span for span in traced.receiver.spans if span.attributes.get("router.request_id") == "quiet"]
    begin, _, end = traced.worker_headers("quiet")[b"traceparent"].rpartition(b"-")
    assert begin.startswith(f"00-{TRACE}-".encode())
    assert end == b"00"


@pytest.mark.parametrize("parent", ["00-1-2-01", "garbage", "00-" + "0" * 32 + "-b7ad6b7169203331-01"])
def test_a_parent_that_is_none_is_not_passed_on(traced: Traced, parent: str) -> None:
    name = f"odd{len(parent)}"
    assert traced.post(chat_body("odd", model=MODEL), name, traceparent=parent).status_code == 200
    span = traced.span(name)
    assert span.parent == ""
    assert sampled_child_of(span, traced.worker_headers(name))


def test_a_retry_is_an_event_and_a_failure_a_failed_span(traced: Traced) -> None:
    for worker in traced.rig.workers:
        worker.add_faults({"path": CHAT, "action": {"kind": "status", "status": 503}, "times": 1})
    assert traced.post(chat_body("both are busy", model=MODEL), "busy").status_code == 503
    span = traced.span("busy")
    assert span.failed
    assert span.attributes["error.type"] == "upstream_error"
    assert span.attributes["http.response.status_code"] == 503
    assert span.attributes["router.attempts"] == 2
    (retry,) = [event for event in span.events if event[0] == "retry"]
    assert retry[2]["error.type"] == "overloaded"
    assert retry[2]["router.worker"] != span.attributes["router.worker"]


def test_a_request_that_nobody_may_serve_is_a_failed_span_too(traced: Traced) -> None:
    first, second = traced.rig.workers
    with traced.rig.only(first, MODEL), traced.rig.only(second, MODEL):
        assert traced.post(chat_body("nobody", model=MODEL), "nobody").status_code == 503
    for _ in until(20, "the span"):
        refused = [span for span in traced.receiver.spans if span.attributes.get("error.type") == "no_worker_available"]
        if refused:
            break
    assert refused[0].failed
    assert refused[0].attributes["http.response.status_code"] == 503


def test_no_word_of_a_prompt_no_key_and_no_address_is_in_any_span(traced: Traced) -> None:
    traced.post(chat_body("canary", model=MODEL), "canary", authorization="Bearer canary-of-the-client")
    traced.span("canary")
    told = repr(traced.receiver.spans)
    assert CANARY not in told
    assert "canary-of-the-client" not in told
    assert not [worker.url for worker in traced.rig.workers if worker.url.removeprefix("http://") in told]


def test_a_collector_that_refuses_costs_spans_and_no_request(traced: Traced) -> None:
    traced.receiver.status = 400
    try:
        assert traced.post(chat_body("refused", model=MODEL), "refused").status_code == 200
        for _ in until(20, "the refusal to be counted"):
            if total(traced.rig.routers[0].metrics(), "router_spans_total", result="failed"):
                break
    finally:
        traced.receiver.status = 200
    traced.post(chat_body("taken again", model=MODEL), "taken")
    traced.span("taken")
    log = traced.rig.routers[0].log.read_text()
    assert log.count("spans can't be exported") == 1
    assert traced.receiver.endpoint not in log


def test_what_is_queued_at_the_end_is_exported(tmp_path: Path) -> None:
    with ExitStack() as stack:
        receiver = stack.enter_context(OtlpReceiver())
        builder = RigBuilder(tmp_path, stack)
        rig = builder(group(MODEL), settings={"ROUTER_TRACING__ENDPOINT": receiver.endpoint})
        for number in range(5):
            rig.post(CHAT, chat_body(f"last {number}", model=MODEL))
        rig.routers[0].stop()
        assert len(receiver.spans) == 5


def test_without_tracing_the_clients_parent_is_the_workers(tmp_path: Path) -> None:
    with ExitStack() as stack:
        rig = RigBuilder(tmp_path, stack)(group(MODEL))
        parent = f"00-{TRACE}-{PARENT}-01"
        rig.post(CHAT, chat_body("as it is", model=MODEL), headers={"traceparent": parent})
        (record,) = rig.records(rig.workers[0])
        assert dict(record.headers)[b"traceparent"] == parent.encode()
        assert "router_spans_total{" not in rig.routers[0].metrics()
