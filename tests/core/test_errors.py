"""The error tree: what each class means to the client, and whether another worker may be asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from router import errors
from router.errors import (
    BadRequest,
    ClientError,
    ClientGone,
    Conflict,
    ConnectFailed,
    ContextWindowExceeded,
    Draining,
    Forbidden,
    HeadersTooLarge,
    MethodNotAllowed,
    ModelNotFound,
    NotFound,
    PayloadTooLarge,
    QueueFull,
    RequestTimeout,
    RouterError,
    SettingsError,
    TenantLimit,
    TooManyConnections,
    Unauthorized,
    Unavailable,
    UnknownRoute,
    UnsupportedMediaType,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamReset,
    UpstreamTimeout,
)

# status, OpenAI type, code, another worker may be asked
TREE: dict[type[RouterError], tuple[int, str, str, bool]] = {
    ClientError: (400, "invalid_request_error", "bad_request", False),
    BadRequest: (400, "invalid_request_error", "bad_request", False),
    ContextWindowExceeded: (400, "invalid_request_error", "context_length_exceeded", False),
    Unauthorized: (401, "authentication_error", "invalid_api_key", False),
    Forbidden: (403, "permission_error", "forbidden", False),
    UnknownRoute: (404, "not_found_error", "unknown_route", False),
    ModelNotFound: (404, "not_found_error", "model_not_found", False),
    NotFound: (404, "not_found_error", "not_found", False),
    MethodNotAllowed: (405, "invalid_request_error", "method_not_allowed", False),
    RequestTimeout: (408, "invalid_request_error", "request_timeout", False),
    Conflict: (409, "invalid_request_error", "conflict", False),
    PayloadTooLarge: (413, "invalid_request_error", "payload_too_large", False),
    UnsupportedMediaType: (415, "invalid_request_error", "unsupported_media_type", False),
    HeadersTooLarge: (431, "invalid_request_error", "headers_too_large", False),
    ClientGone: (499, "internal_error", "client_closed_request", False),
    Unavailable: (503, "service_unavailable", "no_worker_available", False),
    QueueFull: (503, "service_unavailable", "queue_full", False),
    Draining: (503, "service_unavailable", "draining", False),
    TooManyConnections: (503, "service_unavailable", "too_many_connections", False),
    TenantLimit: (429, "rate_limit_error", "rate_limit_exceeded", False),
    UpstreamError: (502, "upstream_error", "upstream_error", True),
    ConnectFailed: (502, "upstream_error", "upstream_connect_failed", True),
    UpstreamReset: (502, "upstream_error", "upstream_reset", True),
    UpstreamProtocolError: (502, "upstream_error", "upstream_protocol_error", False),
    UpstreamTimeout: (504, "timeout_error", "upstream_timeout", False),
}


def below(kind: type[RouterError]) -> Iterator[type[RouterError]]:
    for child in kind.__subclasses__():
        yield child
        yield from below(child)


def make(kind: type[RouterError]) -> RouterError:
    if kind is MethodNotAllowed:
        return MethodNotAllowed("no", allow="GET, HEAD")
    return kind("no")


def test_the_table_names_every_error() -> None:
    assert {kind for kind in below(RouterError) if kind.__module__ == errors.__name__} == set(TREE)


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_what_a_client_sees(kind: type[RouterError]) -> None:
    error = make(kind)
    assert (error.status, error.type, error.code, error.try_another) == TREE[kind]
    assert error.message == str(error) == "no"


def test_a_client_can_tell_errors_apart_by_their_code() -> None:
    codes = [code for kind, (_, _, code, _) in TREE.items() if kind is not ClientError]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_no_worker_is_blamed_or_asked_again_for_the_clients_errors(kind: type[RouterError]) -> None:
    if issubclass(kind, ClientError | ClientGone):
        assert 400 <= kind.status < 500
        assert not kind.try_another
    elif kind is TenantLimit:
        assert not kind.try_another
    else:
        assert kind.status >= 500


@pytest.mark.parametrize("kind", [Unavailable, QueueFull, Draining, TooManyConnections, TenantLimit])
def test_whoever_is_turned_away_learns_when_to_come_back(kind: type[Unavailable]) -> None:
    assert kind("full").retry_after == 1
    assert kind("full", retry_after=7).retry_after == 7


def test_an_error_names_the_field_at_fault() -> None:
    error = BadRequest("no such thing", param="model")
    assert (error.param, error.retry_after) == ("model", None)


def test_a_wrong_verb_is_told_the_right_ones() -> None:
    assert MethodNotAllowed("no", allow="POST").allow == "POST"


def test_settings_errors_keep_every_problem_on_its_line() -> None:
    error = SettingsError(["port: too large", "workers: listed twice"])
    assert error.problems == ["port: too large", "workers: listed twice"]
    assert str(error).splitlines() == error.problems
    assert not isinstance(error, RouterError)
