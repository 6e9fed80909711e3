"""What the log says of a Redis that can't be used."""

from __future__ import annotations

import errno
import socket
import ssl

import pytest
from redis import exceptions
from redis.exceptions import AuthenticationError, InvalidResponse, NoPermissionError, RedisError, ResponseError

from router.sync_places import LinkDown, in_words


def wrapped(cause: Exception) -> Exception:
    """As the client library raises what the system said."""
    try:
        try:
            raise cause
        except Exception:
            raise exceptions.ConnectionError("Error connecting to 10.0.0.1:6379.")  # noqa: B904
    except exceptions.ConnectionError as error:
        return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (AuthenticationError("invalid username-password pair or user is disabled."), "it refused the password"),
        (AuthenticationError("Authentication required."), "it asks for a password"),
        (NoPermissionError("this user has no permissions"), "its user may not use the channel"),
        (InvalidResponse("Protocol Error: b'HTTP/1.1 400'"), "it does not speak Redis"),
        (ResponseError("DB index is out of range"), "no such database"),
        (ResponseError("unknown command"), "it refused a command"),
        (wrapped(ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed")), "connection refused"),
        (wrapped(ConnectionResetError(errno.ECONNRESET, "reset")), "connection reset by peer"),
        (wrapped(socket.gaierror(socket.EAI_NONAME, "Name or service not known")), "name not found"),
        (wrapped(ssl.SSLCertVerificationError(1, "self-signed")), "its certificate is not trusted"),
        (wrapped(ssl.SSLError(1, "wrong version number")), "no TLS with it"),
        (
            FileNotFoundError(errno.ENOENT, "No such file", "/run/secrets/x"),
            "the password file can't be read: no such file or directory",
        ),
        (wrapped(TimeoutError()), "timed out"),
        (TimeoutError(), "timed out"),
        (RedisError("whatever 10.0.0.1"), "the connection broke"),
        (LinkDown("it is a Sentinel: use redis+sentinel://"), "it is a Sentinel: use redis+sentinel://"),
    ],
)
def test_what_is_wrong_with_redis_is_said_in_words(error: Exception, words: str) -> None:
    assert in_words(error) == words
