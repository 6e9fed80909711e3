"""Request bodies: conversations that grow turn by turn and share nothing with one another. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count

MODEL = "bench"
TURNS = 4
LINE_BYTES = 64
POOL_LINES = 8192
# A conversation grows from 70 % to 130 % of its class, so that the mean body has the size that the class is named for.
FIRST_SHARE = 0.7
LAST_SHARE = 1.3

_WORDS = ("river", "stone", "mountain", "evening", "through", "a", "of", "which", "answer", r"\"so\"", "é", "über")
_OPEN = b'{"role":"%b","content":"'
_CLOSE = b'"}'


def text_pool(seed: int = 0) -> bytes:
    """Lines of JSON-escaped prose, each of the same length in bytes and ending in an escaped line break."""
    rng = random.Random(seed)
    lines = []
    for _ in range(POOL_LINES):
        line = b""
        while len(line) < LINE_BYTES - 2:
            line += rng.choice(_WORDS).encode() + b" "
        lines.append(_cut(line) + rb"\n")
    return b"".join(lines)


def _cut(line: bytes) -> bytes:
    """The line's first bytes, filled with full stops in place of a word that does not fit."""
    room = LINE_BYTES - 2
    whole = line[:room]
    if len(line) > room:
        whole = whole[: whole.rfind(b" ") + 1]
    return whole.ljust(room, b".")


class Conversations:
    """Bodies of one size class in the order in which a client would send them; size and seed make the bytes.

    No two sizes share a conversation: a router that has served one would know the beginning of the other.
    """

    def __init__(self, size: int, seed: int, pool: bytes) -> None:
        self._size = size
        self._seed = seed
        self._pool = pool + pool
        self._lines = len(pool) // LINE_BYTES

    def bodies(self, client: int) -> Iterator[bytes]:
        """What one client sends: a conversation to its last turn, then the next one."""
        for number in count():
            yield from self._conversation(f"{self._size}-{self._seed}-{client}-{number}")

    def _conversation(self, name: str) -> Iterator[bytes]:
        at = random.Random(name).randrange(self._lines)
        messages = _OPEN % b"system" + f"Conversation {name}.".encode() + _CLOSE
        for turn in range(TURNS):
            goal = self._size * (FIRST_SHARE + (LAST_SHARE - FIRST_SHARE) * turn / (TURNS - 1))
            if turn:
                messages += b"," + _OPEN % b"assistant" + b"Let me see." + _CLOSE
            envelope = len(_body(messages + b"," + _OPEN % b"user" + _CLOSE))
            text = self._text(at, max(16, int(goal) - envelope))
            at = (at + len(text) // LINE_BYTES + 1) % self._lines
            messages += b"," + _OPEN % b"user" + text + _CLOSE
            yield _body(messages)

    def _text(self, line: int, length: int) -> bytes:
        """About this many bytes from the pool, beginning at a line; whole lines, then a filled rest."""
        whole, rest = divmod(length, LINE_BYTES)
        pieces = []
        while whole > 0:
            take = min(whole, self._lines)
            pieces.append(self._pool[line * LINE_BYTES : (line + take) * LINE_BYTES])
            whole -= take
        pieces.append(b"." * rest)
        return b"".join(pieces)


def _body(messages: bytes) -> bytes:
    return b'{"model":"%b","messages":[%b],"max_tokens":16,"temperature":0.5}' % (MODEL.encode(), messages)


def stream_body(chunks: int, name: str) -> bytes:
    """A short request whose answer streams in so many chunks."""
    return (
        b'{"model":"%b","messages":[{"role":"user","content":"%b: stream, please, and take your time about it."}],'
        b'"max_tokens":%d,"stream":true,"stream_options":{"include_usage":true}}'
    ) % (MODEL.encode(), name.encode(), chunks)
