"""A tenant's own cache salt, put into a body without writing the rest of it anew.

Engines share a prefix among requests of equal salt alone, so a salt that no client can guess keeps tenants from
learning each other's prompts by the time that an answer takes. Pure.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable

import msgspec

from router.errors import BadRequest
from router.prompt.fields import inserted, places_of

FIELD = "cache_salt"


def tenant_salt(secret: bytes, tenant: str, own: str | None) -> str:
    """64 hex digits: HMAC-SHA256 of the tenant and, if there is one, the client's own salt."""
    name = tenant.encode()
    message = len(name).to_bytes(4, "big") + name
    if own is not None:
        message += b"\x01" + own.encode("utf-8", "surrogatepass")
    return hmac.new(secret, message, "sha256").hexdigest()


def with_salt(body: bytes, salt_for: Callable[[str | None], str]) -> tuple[bytes, str]:
    """The body of a JSON object with another `cache_salt` at its top, and that salt; all other bytes are as before.

    `salt_for` is given the client's own salt, the last one where there are several, as engines take it; each of them
    is replaced. Raises BadRequest for a salt that is no text and for an object of too many fields.
    """
    places = places_of(body, FIELD)
    if not places:
        salt = salt_for(None)
        return inserted(body, FIELD, b'"' + salt.encode() + b'"'), salt
    start, end = places[-1]
    salt = salt_for(_own(body[start:end]))
    pieces = []
    at = 0
    for start, end in places:
        pieces += [body[at:start], b'"', salt.encode(), b'"']
        at = end
    pieces.append(body[at:])
    return b"".join(pieces), salt


def _own(raw: bytes) -> str | None:
    if raw == b"null":
        return None
    try:
        own = msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        own = ""
    if not own:
        raise BadRequest("cache_salt must be a string that is not empty, or null.", param=FIELD)
    return own
