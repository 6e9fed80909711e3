"""From a model's sizes to the block of its cache, the floor under it, and what is left of a prompt.

A prefix can be resumed only where a recurrent state was kept, and states are kept at the ends of blocks. A page of
the cache holds either: so the block is as many tokens as make a page of attention as large as one of state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router.cachemodel import CacheProfile, Rule, resumable
from router.fit.model import Config, ModelConfigError, ModelShape, State, shape_of

BYTES = {
    "float32": 4, "fp32": 4, "bfloat16": 2, "bf16": 2, "float16": 2, "fp16": 2, "half": 2,
    "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "float8_e4m3fn": 1,
}  # fmt: skip

PLAIN_BLOCK = 16
LATENT_ALIGNMENT = 128

OPEN_BLOCK = "last block open"
CHECKPOINTS = "vLLM 0.33"
PLAIN = "plain attention"


@dataclass(frozen=True, slots=True)
class Options:
    """How the model is served. None: as the model's config says, or the engine's default."""

    kv_dtype: str | None = None
    state_dtype: str | None = None
    tp: int = 1
    match_unit: int | None = None
    alignment: int | None = None
    speculative_tokens: int = 0
    whole_model: bool = False  # size the block by all layers at once instead of one page per layer


@dataclass(frozen=True, slots=True)
class Fit:
    """The figures. Bytes are those of one GPU; `layer_` is one layer, `model_` all layers of the kind."""

    shape: ModelShape
    options: Options
    kv_dtype: str
    state_dtype: str
    alignment: int
    layer_state_bytes: int
    layer_token_bytes: int
    layer_block: int
    model_block: int
    rules: dict[str, CacheProfile]
    assumptions: tuple[str, ...]

    @property
    def model_state_bytes(self) -> int:
        return self.layer_state_bytes * self.shape.recurrent_layers

    @property
    def model_token_bytes(self) -> int:
        return self.layer_token_bytes * self.shape.attention_layers

    @property
    def block(self) -> int:
        """Tokens of one block, by the page that was asked for."""
        return self.model_block if self.options.whole_model else self.layer_block

    @property
    def padding_permille(self) -> int:
        """What a page of state wastes to be as large as one of attention; engines print it at their start."""
        if not self.layer_state_bytes:
            return 0
        return (self.layer_block * self.layer_token_bytes - self.layer_state_bytes) * 1000 // self.layer_state_bytes


def fit(config: Config, options: Options | None = None) -> Fit:
    """All figures of one parsed config; raises ModelConfigError where it does not say enough."""
    options = options or Options()
    shape = shape_of(config)
    kv_dtype = _known(options.kv_dtype or shape.dtype)
    state_dtype = _known(options.state_dtype or shape.state_dtype or shape.dtype)
    token_bytes = _token_bytes(shape, options.tp) * BYTES[kv_dtype]
    state_bytes = 0
    if shape.state is not None:
        state_bytes = _state_bytes(shape.state, options, BYTES[state_dtype], BYTES[_known(shape.dtype)])
    alignment = _alignment(shape, options)
    layer_block = model_block = PLAIN_BLOCK
    if state_bytes:
        layer_block = aligned_block(state_bytes, token_bytes, alignment)
        model_block = -(-state_bytes * shape.recurrent_layers // (token_bytes * shape.attention_layers))
    return Fit(
        shape=shape,
        options=options,
        kv_dtype=kv_dtype,
        state_dtype=state_dtype,
        alignment=alignment,
        layer_state_bytes=state_bytes,
        layer_token_bytes=token_bytes,
        layer_block=layer_block,
        model_block=model_block,
        rules=_rules(bool(state_bytes), model_block if options.whole_model else layer_block, options.match_unit),
        assumptions=tuple(_assumptions(shape, options, kv_dtype, state_dtype)),
    )


def aligned_block(state_bytes: int, token_bytes: int, alignment: int) -> int:
    """Tokens of a block (vLLM `_align_hybrid_block_size`): alignment x ceil(state / (alignment x bytes per token))."""
    return alignment * -(-state_bytes // (alignment * token_bytes))


def reusable(profile: CacheProfile, prompt_tokens: int) -> int:
    """Tokens that a request gets back of a prompt of this length, which it repeats or goes on from."""
    return resumable(profile, prompt_tokens, prompt_tokens).tokens


def share(profile: CacheProfile, lengths: Sequence[int]) -> float:
    """The reusable part of all these prompts' tokens, if each is repeated or gone on from."""
    total = sum(lengths)
    return sum(reusable(profile, length) for length in lengths) / total if total else 0.0


def _known(dtype: str) -> str:
    """The name without what a framework puts before it; one whose size is known."""
    name = dtype.removeprefix("torch.").lower()
    if name not in BYTES:
        raise ModelConfigError(f"unknown data type {dtype[:40]!r}; known are {', '.join(BYTES)}")
    return name


def _token_bytes(shape: ModelShape, tp: int) -> int:
    """Values that one attention layer keeps of a token on one GPU: a latent is not split, nor less than one head."""
    attention = shape.attention
    if attention.latent:
        return attention.width
    heads = max(1, attention.heads // tp)
    if attention.heads % tp and tp % attention.heads:
        raise ModelConfigError(f"{attention.heads} key-value heads can't be split over {tp} GPUs")
    return 2 * heads * attention.width


def _state_bytes(state: State, options: Options, matrix_bytes: int, conv_bytes: int) -> int:
    """One layer's state on one GPU; every drafted token adds a row to the convolution's."""
    tp = options.tp
    if state.heads % tp:
        raise ModelConfigError(f"{state.heads} recurrent heads can't be split over {tp} GPUs")
    matrix = state.heads // tp * state.rows * state.columns * matrix_bytes
    if not state.conv_rows:
        return matrix
    # Groups that can't be split evenly are repeated, one for each GPU (vLLM `extra_groups_for_head_shards`).
    groups = state.conv_groups if state.conv_groups % tp == 0 else tp
    channels = (state.conv_channels + groups * state.group_channels) // tp
    return matrix + (state.conv_rows + options.speculative_tokens) * channels * conv_bytes


def _alignment(shape: ModelShape, options: Options) -> int:
    alignment = options.alignment or PLAIN_BLOCK
    return max(alignment, LATENT_ALIGNMENT) if shape.attention.latent else alignment


def _rules(hybrid: bool, block: int, match_unit: int | None) -> dict[str, CacheProfile]:
    if not hybrid:
        return {PLAIN: CacheProfile(block_size=block)}
    return {
        OPEN_BLOCK: CacheProfile(block_size=block, match_unit=match_unit, rule=Rule.OPEN_BLOCK),
        CHECKPOINTS: CacheProfile(block_size=block, match_unit=match_unit, rule=Rule.CHECKPOINTS, retention=0),
    }


def _assumptions(shape: ModelShape, options: Options, kv_dtype: str, state_dtype: str) -> list[str]:
    """What neither the config nor a flag said."""
    said = []
    if options.kv_dtype is None:
        said.append(f"the cache holds keys and values in the model's {kv_dtype}; --kv-dtype says otherwise")
    if shape.window_layers:
        said.append(f"{shape.window_layers} sliding-window layers are left out: they set no floor")
    if shape.state is None:
        said.append(f"no recurrent layers: the engine's default block of {PLAIN_BLOCK} tokens")
        return said
    if options.state_dtype is None and shape.state_dtype is None:
        said.append(f"the state is held in the model's {state_dtype}; --state-dtype says otherwise")
    if options.alignment is None:
        said.append("blocks are multiples of 16 tokens, of 128 over a latent; --alignment if the backend wants more")
    if not shape.state.conv_rows:
        said.append("the convolution's state is not counted: the config gives no kernel size")
    elif not options.speculative_tokens:
        said.append("no speculative decoding; each of --speculative-tokens adds a row to the convolution's state")
    if options.whole_model:
        said.append("one page holds all layers' states; vLLM gives each layer its own and needs a smaller block")
    return said
