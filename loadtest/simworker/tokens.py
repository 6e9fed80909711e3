"""A deterministic stand-in for a tokenizer, and the chained block hashes the prefix cache keys on.

One token is a word of at most 12 bytes with the white space before it; a control byte (see `render`) is a token of
its own, so that a boundary between messages never moves when text follows it. English comes to about 6 bytes a token.
Whole blocks are cut by one regular expression: a prompt of 5,600 tokens costs hundreds of C calls, not thousands.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

# Atomic: without it the engine would re-split the last words to reach a full block.
_TOKEN = rb"(?>[\x00-\x08]|\s{0,12}[^\s\x00-\x08]{1,12}|\s{1,12})"
_ONE = re.compile(_TOKEN)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenised prompt: the chained hash of every full block of `unit` tokens, and the bytes after the last one."""

    hashes: tuple[int, ...]
    tokens: int
    unit: int
    tail: bytes = b""
    is_ids: bool = False


class Tokenizer:
    """Cuts text and token ids into blocks of `block_size` tokens."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._block = re.compile(rb"(?>%b){%d}" % (_TOKEN, block_size))

    def text(self, data: bytes, start: int) -> Prompt:
        """`start` is where the hash chain begins: it stands for the adapter and the cache salt."""
        hashes, end = self._chain(data, start)
        tail = data[end:]
        return Prompt(hashes, len(hashes) * self.block_size + len(_ONE.findall(tail)), self.block_size, tail)

    def ids(self, token_ids: Sequence[int], start: int) -> Prompt:
        """A prompt given as token ids; ids and text never share blocks."""
        width = self.block_size * 8
        data = struct.pack(f"<{len(token_ids)}Q", *token_ids)
        whole = len(token_ids) // self.block_size
        hashes: list[int] = []
        link = start
        for at in range(0, whole * width, width):
            link = xxhash.xxh3_64_intdigest(data[at : at + width], link)
            hashes.append(link)
        return Prompt(tuple(hashes), len(token_ids), self.block_size, is_ids=True)

    def extended(self, prompt: Prompt, text: bytes, start: int) -> tuple[int, ...]:
        """The full blocks of the prompt followed by generated text."""
        if prompt.is_ids:
            return prompt.hashes
        more, _ = self._chain(prompt.tail + text, prompt.hashes[-1] if prompt.hashes else start)
        return prompt.hashes + more

    def count(self, data: bytes) -> int:
        return len(_ONE.findall(data))

    def _chain(self, data: bytes, link: int) -> tuple[tuple[int, ...], int]:
        digest = xxhash.xxh3_64_intdigest
        hashes: list[int] = []
        end = 0
        match = self._block.match(data, end)
        while match is not None:
            link = digest(match.group(), link)
            hashes.append(link)
            end = match.end()
            match = self._block.match(data, end)
        return tuple(hashes), end


def split(data: bytes) -> list[bytes]:
    """The tokens one by one, for the tokenize route."""
    return _ONE.findall(data)


def chain_start(adapter: str, salt: str) -> int:
    """The seed of a hash chain; prompts under another adapter or salt share nothing."""
    if not adapter and not salt:
        return 0
    return xxhash.xxh3_64_intdigest(f"{adapter}\0{salt}".encode())
