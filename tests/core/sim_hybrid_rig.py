"""Small hybrid caches for tests: shapes, prompts of numbers, and whole requests."""

from __future__ import annotations

from loadtest.simworker.hybrid import HybridCache
from loadtest.simworker.shape import HybridShape
from loadtest.simworker.stores import Form
from loadtest.simworker.tokens import Prompt, Tokenizer

BLOCK, UNIT = 8, 2
KV, TAIL, STATE = Form.COMPRESSED_KV, Form.UNCOMPRESSED_TAIL, Form.RECURRENT_STATE
WINDOW, INDEX, DISK = Form.SWA_WINDOW, Form.INDEXER_STATE, Form.ON_DISK_PREFIX
ROOMY = {KV: 100, TAIL: 100, STATE: 100}
FIVE = {KV: 100, TAIL: 100, WINDOW: 400, INDEX: 100, DISK: 100}


def hybrid(unit: int = UNIT, capacity: dict[Form, int] | None = None, **more: int) -> HybridCache:
    return HybridCache(HybridShape(BLOCK, unit, capacity or ROOMY, **more))


def prompt(ids: range | list[int], unit: int = UNIT) -> Prompt:
    return Tokenizer(unit).ids(ids, 0)


def serve(cache: HybridCache, asked: Prompt) -> int:
    """A whole request; returns the cached tokens."""
    hold = cache.reserve(asked, asked.tokens)
    assert hold is not None
    cache.commit(hold, asked.hashes)
    cache.release(hold)
    return hold.cached_tokens
