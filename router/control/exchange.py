"""Bounded bodies in, answers and refusals out, in the same form as those of the data plane."""

from __future__ import annotations

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from router.errors import ClientGone, PayloadTooLarge, RouterError, UnsupportedMediaType
from router.wire import error_body, error_headers

ADMIN_BODY_BYTES = 64 * 1024
NO_STORE = {"cache-control": "no-store"}


def answer(content: object, status: int = 200) -> Response:
    """Plain values as JSON; numbers that JSON can't express become null."""
    return raw_answer(msgspec.json.encode(content), status)


def raw_answer(body: bytes, status: int = 200) -> Response:
    """JSON that is ready."""
    return Response(body, status, headers=NO_STORE, media_type="application/json")


def refusal(error: RouterError) -> Response:
    """The error in the OpenAI form."""
    response = Response(error_body(error), error.status, headers=NO_STORE)
    response.raw_headers.extend(error_headers(error))
    if isinstance(error, PayloadTooLarge | UnsupportedMediaType):
        # The rest of the body is not worth waiting for.
        response.raw_headers.append((b"connection", b"close"))
    return response


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body; raises PayloadTooLarge, UnsupportedMediaType, ClientGone."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedMediaType("Compressed request bodies are not accepted.")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise PayloadTooLarge(f"The body is larger than {limit} bytes.")
    pieces: list[bytes] = []
    size = 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > limit:
                raise PayloadTooLarge(f"The body is larger than {limit} bytes.")
            pieces.append(piece)
    except ClientDisconnect:
        raise ClientGone("The client left.") from None
    return b"".join(pieces)
