"""The ids of the tokenize route, and back.

A router may ask every worker to tokenize every prompt, and simulated workers share a machine. So a text is cut into
segments where a token ends for sure, and a segment that was seen before costs a look-up: what a prompt shares with
earlier ones is not cut again.
"""

from __future__ import annotations

import re

import msgspec
import xxhash

from loadtest.simworker.tokens import split

# No token holds a byte that is no white space and, behind it, white space or a control byte (see `tokens`). Where a
# segment ends depends on nothing behind it, so equal beginnings have equal segments.
_SEGMENT = re.compile(rb"(?s).{1024}.*?\S(?=[\s\x00-\x08])|.+")
_KEPT_BYTES = 65536  # of one segment at most: text without white space is a single one


class Vocabulary:
    """Gives tokens their ids, the same in every process. Forgets everything it has seen once that is too much.

    `pieces` and `segments` bound what it remembers, but for the last text.
    """

    def __init__(self, pieces: int = 65536, segments: int = 8192) -> None:
        self._most_pieces = pieces
        self._most_segments = segments
        self._ids: dict[bytes, int] = {}
        self._pieces: dict[int, bytes] = {}
        self._segments: dict[bytes, tuple[int, bytes]] = {}

    def encoded(self, text: bytes) -> tuple[int, msgspec.Raw]:
        """How many tokens the text has, and the JSON list of their ids."""
        if len(self._ids) > self._most_pieces or len(self._segments) > self._most_segments:
            # Both at once: whoever is given an id shall be told its text.
            self._ids.clear()
            self._pieces.clear()
            self._segments.clear()
        known = self._segments
        found = [known.get(segment) or self._learnt(segment) for segment in _SEGMENT.findall(text)]
        return sum(count for count, _ in found), msgspec.Raw(b"[%b]" % b",".join(ids for _, ids in found))

    def text(self, ids: list[int]) -> bytes:
        """What has these ids; a number in angle brackets for those that are not remembered."""
        return b"".join(self._pieces.get(number, b"<%d>" % number) for number in ids)

    def _learnt(self, segment: bytes) -> tuple[int, bytes]:
        known = self._ids
        ids = [known.get(piece) or self._named(piece) for piece in split(segment)]
        found = len(ids), msgspec.json.encode(ids)[1:-1]
        if len(segment) <= _KEPT_BYTES:
            self._segments[segment] = found
        return found

    def _named(self, piece: bytes) -> int:
        number = (xxhash.xxh32_intdigest(piece) >> 1) or 1
        self._ids[piece] = number
        self._pieces[number] = piece
        return number
