"""Takes the usage out of a stream again that the router, and not the client, has asked for.

The client gets what it would have got without that, byte for byte: one event less, and nothing changed. Only an event
that is cut in two is held back until the rest of it is there.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from router.dataplane.client import Client
    from router.dataplane.upstream import UpstreamResponse

# The event of the usage is far smaller; a longer piece of one is another.
HELD_BYTES = 16 * 1024
# The end of an event: two ends of lines. A carriage return may be half of one, so what follows it has to be known.
_END = re.compile(rb"(?:\r\n|\n|\r(?=[^\n]))(?:\r\n|\n|\r(?=[^\n]))")
_LAST_END = re.compile(rb"(?:\r\n|\n|\r)(?:\r\n|\n|\r)\Z")
_LINES = re.compile(rb"\r\n|\n|\r")
_USAGE = b'"usage"'


class Unasked:
    """Feed it the worker's stream piece by piece; it gives back what is the client's."""

    __slots__ = ("_done", "_held", "_long")

    def __init__(self) -> None:
        self._held = b""
        self._done = False  # the event is out, or none is to be taken out
        self._long = False  # within an event that is too long to be the one

    def feed(self, piece: bytes) -> bytes:
        """More of the stream."""
        if self._done:
            return piece
        if not self._held and not self._long and piece.endswith(b"\n\n") and _USAGE not in piece:
            return piece
        data, self._held = self._held + piece, b""
        out = []
        at = 0
        while not self._done and (end := _END.search(data, at)) is not None:
            event = data[at : end.end()]
            at = end.end()
            if self._long or not self._is_it(event):
                out.append(event)
            self._long = False
        rest = data[at:]
        if self._done or self._long or len(rest) > HELD_BYTES:
            self._long = not self._done
            # Of an end that is cut in two, the first half stays here.
            keep = 0 if self._done else len(rest) - len(rest.rstrip(b"\r\n"))
            out.append(rest[: len(rest) - keep])
            rest = rest[len(rest) - keep :]
        self._held = rest
        return b"".join(out)

    def end(self) -> bytes:
        """What was held back; the stream is over."""
        held, self._held = self._held, b""
        if not self._done and not self._long and _LAST_END.search(held) and self._is_it(held):
            return b""
        return held

    def _is_it(self, event: bytes) -> bool:
        """Whether this is the one that the client would not have got."""
        if _USAGE not in event:
            return False
        said = _data_of(event)
        if said is None or not isinstance(said.get("usage"), dict):
            return False
        # Usage along with text means that the worker reports it to everybody: then the client gets all of it.
        self._done = True
        return said.get("choices") == []


def _data_of(event: bytes) -> dict[str, Any] | None:
    """The JSON object that an event carries."""
    lines = [line[5:] for line in _LINES.split(event) if line.startswith(b"data:")]
    try:
        said = json.loads(b"\n".join(lines))
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


class UnaskedClient:
    """Stands in for a client while its answer passes: what it writes, the client gets without that event."""

    __slots__ = ("_client", "_filter")
    # Chunks pass piece by piece, for they may be cut anywhere.
    chunked = False

    def __init__(self, client: Client) -> None:
        self._client = client
        self._filter = Unasked()

    @property
    def upstream(self) -> UpstreamResponse | None:
        """Where the answer comes from; it is paused while the client does not read."""
        return self._client.upstream

    @upstream.setter
    def upstream(self, response: UpstreamResponse | None) -> None:
        self._client.upstream = response

    @property
    def gone(self) -> bool:
        """The client has left."""
        return self._client.gone

    @property
    def paused(self) -> bool:
        """The client reads more slowly than it is written to."""
        return self._client.paused

    def write_chunk(self, data: bytes) -> None:
        """Not for a client of whole chunks."""
        raise NotImplementedError

    def write(self, data: bytes, *, more: bool) -> None:
        """Pass on what is the client's."""
        data = self._filter.feed(data) if data else b""
        self._client.write(data if more else data + self._filter.end(), more=more)
