"""Chat requests for the requests of a trace: equal ids become equal bytes. Pure."""

from __future__ import annotations

import random
from functools import lru_cache

from loadtest.bench.bodies import MODEL
from loadtest.live.plan import CHUNK_TOKENS
from router.replay.trace import BYTES_PER_TOKEN, ID_TOKENS, Request

BLOCK_BYTES = ID_TOKENS * BYTES_PER_TOKEN
# A message behind the system text has so many blocks, so that prompts grow message by message.
MESSAGE_BLOCKS = 4
MOST_BLOCKS = 20_000  # kept in memory, 2 KB each

_LETTERS = bytes(ord("a") + value % 26 for value in range(256))
_ROLES = (b"user", b"assistant")


def body(request: Request) -> bytes:
    """The JSON of a streamed chat request."""
    blocks = [block_text(one) for one in request.ids]
    rest = request.prompt_tokens % ID_TOKENS
    if rest and blocks:
        blocks[-1] = blocks[-1][: rest * BYTES_PER_TOKEN]
    opening = min(request.opening, len(blocks))
    messages = [_message(b"system", blocks[:opening])] if opening else []
    for number, begin in enumerate(range(opening, len(blocks), MESSAGE_BLOCKS)):
        messages.append(_message(_ROLES[number % 2], blocks[begin : begin + MESSAGE_BLOCKS]))
    return (b'{"model":"%b","messages":[%b],"max_tokens":%d,"stream":true,"stream_options":{"include_usage":true}}') % (
        MODEL.encode(),
        b",".join(messages),
        chunks(request),
    )


def chunks(request: Request) -> int:
    """In how many pieces the answer comes."""
    return max(1, round(request.output_tokens / CHUNK_TOKENS))


@lru_cache(MOST_BLOCKS)
def block_text(name: int) -> bytes:
    """Words of three letters, each a token with the space behind it, that only this id has."""
    text = bytearray(random.Random(name).randbytes(BLOCK_BYTES).translate(_LETTERS))
    text[BYTES_PER_TOKEN - 1 :: BYTES_PER_TOKEN] = b" " * ID_TOKENS
    return bytes(text)


def _message(role: bytes, blocks: list[bytes]) -> bytes:
    return b'{"role":"%b","content":"%b"}' % (role, b"".join(blocks))
