"""One tree for every failure the router can name.

Each class carries what the edges need: the HTTP status, the OpenAI error `type`, a stable `code`, and
whether another worker may be tried. Nothing here knows about sockets or frameworks.
"""

from __future__ import annotations

from typing import ClassVar


class RouterError(Exception):
    """Base of all router errors; `message` is shown to the client and must not name workers, keys or prompts."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "internal_error"
    code: ClassVar[str] = "internal_error"
    try_another: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after


# -- the client's side ---------------------------------------------------------------------------------


class ClientError(RouterError):
    """The request can't be served as it was sent; no worker is to blame and none is asked."""

    status = 400
    type = "invalid_request_error"
    code = "bad_request"


class BadRequest(ClientError):
    """Malformed JSON, a field of the wrong type, or framing that can't be trusted."""


class Unauthorized(ClientError):
    """Missing or wrong API key."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class Forbidden(ClientError):
    """What nobody may do as the router is configured."""

    status = 403
    type = "permission_error"
    code = "forbidden"


class UnknownRoute(ClientError):
    """A path the router does not serve, including the engine's control routes."""

    status = 404
    type = "not_found_error"
    code = "unknown_route"


class ModelNotFound(ClientError):
    """No worker serves the model or adapter that was asked for."""

    status = 404
    type = "not_found_error"
    code = "model_not_found"


class NotFound(ClientError):
    """A control-plane object that does not exist."""

    status = 404
    type = "not_found_error"
    code = "not_found"


class MethodNotAllowed(ClientError):
    """A known path with another verb; `allow` lists the verbs that work."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class RequestTimeout(ClientError):
    """The client took too long to send its request."""

    status = 408
    code = "request_timeout"


class Conflict(ClientError):
    """The change contradicts what is there."""

    status = 409
    code = "conflict"


class PayloadTooLarge(ClientError):
    """The body exceeds its limit."""

    status = 413
    code = "payload_too_large"


class UnsupportedMediaType(ClientError):
    """A content type or content encoding that the route can't take."""

    status = 415
    code = "unsupported_media_type"


class HeadersTooLarge(ClientError):
    """Header bytes or header count exceed their limits."""

    status = 431
    code = "headers_too_large"


class ContextWindowExceeded(ClientError):
    """Every worker of the model has a window too small for the prompt and the tokens asked for."""

    code = "context_length_exceeded"


class ClientGone(RouterError):
    """The client closed its connection; nobody is left to answer (logged as 499)."""

    status = 499
    code = "client_closed_request"


# -- the fleet's side ----------------------------------------------------------------------------------


class Unavailable(RouterError):
    """Nothing can serve this now; worth trying again after `retry_after` seconds."""

    status = 503
    type = "service_unavailable"
    code = "no_worker_available"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message, retry_after=retry_after)


class QueueFull(Unavailable):
    """Every slot is taken and the waiting line is full, or the wait took too long."""

    code = "queue_full"


class TooManyConnections(Unavailable):
    """The router has as many connections as its descriptors allow."""

    code = "too_many_connections"


class TenantLimit(Unavailable):
    """The tenant has as many requests under way as it may have."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class Draining(Unavailable):
    """This replica is shutting down."""

    code = "draining"


class UpstreamError(RouterError):
    """A worker failed before it answered."""

    status = 502
    type = "upstream_error"
    code = "upstream_error"
    try_another = True


class ConnectFailed(UpstreamError):
    """The worker refused the connection or did not accept it in time."""

    code = "upstream_connect_failed"


class UpstreamReset(UpstreamError):
    """The worker closed or reset the connection before its answer was complete."""

    code = "upstream_reset"


class UpstreamProtocolError(UpstreamError):
    """The worker sent something that is not a well-formed HTTP/1.1 answer."""

    code = "upstream_protocol_error"
    try_another = False


class UpstreamTimeout(UpstreamError):
    """The worker stayed silent longer than a limit allows."""

    status = 504
    type = "timeout_error"
    code = "upstream_timeout"
    try_another = False


class SettingsError(Exception):
    """All problems of a configuration at once, one line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
