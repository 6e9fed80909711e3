"""Header rules in both directions: what concerns one hop stays there, what belongs to the message passes."""

from __future__ import annotations

import pytest

from router.dataplane.headers import first, returned_lines, upstream_head

Pairs = list[tuple[bytes, bytes]]


def sent(headers: Pairs, *, length: int | None = 5, authorization: bytes | None = None) -> list[bytes]:
    """The lines of the head that a worker gets."""
    head = upstream_head(b"POST", b"/v1/x?q=1", b"worker:8000", headers, length, b"id-1", authorization)
    assert head.endswith(b"\r\n\r\n")
    return head[:-4].split(b"\r\n")


def test_the_head_begins_with_what_the_router_says_itself() -> None:
    lines = sent([(b"host", b"router"), (b"content-length", b"99"), (b"x-request-id", b"theirs")])
    assert lines == [b"POST /v1/x?q=1 HTTP/1.1", b"host: worker:8000", b"content-length: 5", b"x-request-id: id-1"]


@pytest.mark.parametrize(
    "name",
    [
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"expect",
    ],
)
def test_headers_of_one_hop_are_not_forwarded(name: bytes) -> None:
    assert sent([(name, b"x"), (b"x-foo", b"bar")])[2:] == [b"x-foo: bar", b"content-length: 5", b"x-request-id: id-1"]


@pytest.mark.parametrize(
    ("connection", "kept"),
    [
        (b"close", [b"x-one", b"x-two"]),
        (b"keep-alive", [b"x-one", b"x-two"]),
        (b"X-One", [b"x-two"]),
        (b"close, x-one ,,X-TWO", []),
        (b"", [b"x-one", b"x-two"]),
        (b"host, content-length", [b"x-one", b"x-two"]),
    ],
)
def test_headers_that_connection_names_are_not_forwarded(connection: bytes, kept: list[bytes]) -> None:
    lines = sent([(b"connection", connection), (b"x-one", b"1"), (b"x-two", b"2")])
    assert [line.partition(b":")[0] for line in lines[2:-2]] == kept
    assert lines[1] == b"host: worker:8000"
    assert b"content-length: 5" in lines


def test_several_connection_lines_count_together() -> None:
    lines = sent([(b"connection", b"x-one"), (b"x-one", b"1"), (b"connection", b"x-two"), (b"x-two", b"2")])
    assert lines[2:] == [b"content-length: 5", b"x-request-id: id-1"]


def test_other_headers_pass_in_order_doubled_and_byte_for_byte() -> None:
    headers = [(b"traceparent", b"00-a-b-01"), (b"x-a", b"1"), (b"accept", b""), (b"x-a", b"2"), (b"x-b", b"\xe9 \t;")]
    assert sent(headers)[2:-2] == [b"traceparent: 00-a-b-01", b"x-a: 1", b"accept: ", b"x-a: 2", b"x-b: \xe9 \t;"]


def test_a_workers_own_key_replaces_the_clients() -> None:
    client = [(b"authorization", b"Bearer client"), (b"x-api-key", b"client")]
    assert {b"authorization: Bearer client", b"x-api-key: client"} <= set(sent(client))
    lines = sent(client, authorization=b"Bearer worker")
    assert [line for line in lines if line.startswith(b"authorization")] == [b"authorization: Bearer worker"]
    assert not any(line.startswith(b"x-api-key") for line in lines)


def test_a_request_without_a_body_declares_none() -> None:
    assert not any(line.startswith(b"content-length") for line in sent([(b"content-length", b"3")], length=None))
    assert b"content-length: 0" in sent([], length=0)


@pytest.mark.parametrize(
    "name",
    [
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"content-length",
        b"set-cookie",
        b"x-request-id",
        b"x-router-worker",
        b"x-router-decision",
        b"x-accel-redirect",
        b"x-accel-buffering",
    ],
)
def test_what_a_worker_may_not_say_to_a_client(name: bytes) -> None:
    for _ in range(2):  # what was learned of a name is the same the second time
        assert returned_lines([(name, b"x"), (b"retry-after", b"3")]) == b"retry-after: 3\r\n"


def test_answers_keep_the_rest_and_lose_what_connection_names() -> None:
    headers = [
        (b"content-type", b"text/event-stream"),
        (b"x-own", b"1"),
        (b"connection", b"X-Own"),
        (b"metadata", b"{}"),
    ]
    assert returned_lines(headers) == b"content-type: text/event-stream\r\nmetadata: {}\r\n"
    assert returned_lines([(b"x-own", b"1"), (b"connection", b"close")]) == b"x-own: 1\r\n"
    assert returned_lines([(b"connection", b"keep-alive"), (b"connection", b"x-own, close"), (b"x-own", b"1")]) == b""


def test_no_number_of_names_fills_the_memory() -> None:
    for number in range(5_000):
        assert returned_lines([(b"x-%d" % number, b"1")]) == b"x-%d: 1\r\n" % number
    assert returned_lines([(b"x-4999", b"2"), (b"te", b"x")]) == b"x-4999: 2\r\n"


def test_first_takes_the_first() -> None:
    headers = [(b"a", b"1"), (b"a", b"2")]
    assert first(headers, b"a") == b"1"
    assert first(headers, b"b") is None
