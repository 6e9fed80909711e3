"""How the cache of a hybrid engine is cut, and how much of each form it has room for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadtest.simworker.config import SimConfig
from loadtest.simworker.stores import Form


@dataclass(frozen=True, slots=True)
class HybridShape:
    """How the cache is cut, in tokens, and how many objects each form has room for; a form not named is not needed."""

    block: int
    unit: int
    capacity: Mapping[Form, int]
    window: int = 0
    held_back: int = 0  # units that speculative decoding drops from the end of every hit
    retention: int = 0
    step: int = 0
    load_tokens_per_second: float = 20_000.0

    def __post_init__(self) -> None:
        if self.block % self.unit:
            raise ValueError(f"the match unit must divide the block of {self.block} tokens: {self.unit}")
        if self.retention % self.block:
            raise ValueError(f"the retention interval must be a multiple of the block: {self.retention}")
        if Form.COMPRESSED_KV not in self.capacity:
            raise ValueError("a cache has blocks")
        if Form.SWA_WINDOW in self.capacity and self.window < 2:
            raise ValueError(f"a sliding window must be of two tokens or more: {self.window}")


def shape_of(config: SimConfig) -> HybridShape:
    """The shape a configuration asks for: a form has as much room as the blocks unless it is given its own.

    The index covers what lies on disk too.
    """
    blocks = config.num_gpu_blocks
    five = config.cache == "forms"
    capacity = {Form.COMPRESSED_KV: blocks}
    if config.unit < config.block_size:
        capacity[Form.UNCOMPRESSED_TAIL] = config.tail_blocks or blocks
    if five:
        capacity[Form.SWA_WINDOW] = config.window_blocks or blocks * config.block_size // config.unit
        capacity[Form.INDEXER_STATE] = config.index_blocks or blocks + (config.disk_blocks or blocks)
    if five or config.disk_blocks:
        capacity[Form.ON_DISK_PREFIX] = config.disk_blocks or blocks
    if config.recurrent:
        capacity[Form.RECURRENT_STATE] = config.state_blocks or blocks
    return HybridShape(
        config.block_size,
        config.unit,
        capacity,
        window=(config.window_tokens or 0) if five else 0,
        held_back=config.held_back_units,
        retention=config.retention_interval,
        step=config.step_tokens,
        load_tokens_per_second=config.load_tokens_per_second,
    )
