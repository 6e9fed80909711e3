"""What the size of a cache depends on, read from a model's public `config.json`. Sizes are counts, never bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

Config = Mapping[str, object]

_LARGEST = 1 << 32  # no dimension of a model is larger


class ModelConfigError(ValueError):
    """The config lacks what the arithmetic needs, or says it in a form that is not known."""


@dataclass(frozen=True, slots=True)
class State:
    """The recurrent state of one layer: a matrix per head, and the last inputs of its short convolution."""

    form: str
    heads: int
    rows: int
    columns: int
    conv_rows: int = 0  # kernel - 1; 0: none, or the config does not say
    conv_channels: int = 0  # those that the heads share evenly
    conv_groups: int = 0  # Mamba-2 has these on top, each `group_channels` wide
    group_channels: int = 0


@dataclass(frozen=True, slots=True)
class Attention:
    """What one attention layer keeps of a token: keys and values per head, or one latent that all heads share."""

    heads: int
    width: int  # of a head, or of the latent
    latent: bool = False


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Layers and their sizes; data types are names as in the config, `state_dtype` None where it does not say."""

    name: str
    attention_layers: int
    recurrent_layers: int
    window_layers: int
    attention: Attention
    state: State | None
    dtype: str
    state_dtype: str | None


def shape_of(config: Config) -> ModelShape:
    """Read a config; a multi-modal one keeps the language model under `text_config`."""
    inner = config.get("text_config")
    text: Config = inner if isinstance(inner, Mapping) else config
    layers = _layers(text)
    if layers["attention"] == 0 and layers["recurrent"] == 0 and layers["window"] == 0:
        raise ModelConfigError("no attention and no recurrent layers found")
    if layers["recurrent"] and not layers["attention"]:
        raise ModelConfigError("a model without attention layers has no prefix cache to size")
    state = _state(text) if layers["recurrent"] else None
    return ModelShape(
        name=_text(text, "model_type") or "unknown",
        attention_layers=layers["attention"],
        recurrent_layers=layers["recurrent"],
        window_layers=layers["window"],
        attention=_attention(text),
        state=state,
        dtype=_text(text, "dtype", "torch_dtype") or _text(config, "dtype", "torch_dtype") or "bfloat16",
        state_dtype=_text(text, "mamba_ssm_dtype", "mamba_ssm_cache_dtype") or _fixed_state_dtype(state),
    )


def _fixed_state_dtype(state: State | None) -> str | None:
    """Kimi delta attention holds its state in float32 whatever the model's type (vLLM `kda_state_dtype`)."""
    return "float32" if state is not None and state.form == KDA else None


# -- layers ----------------------------------------------------------------------------------------------------

_PATTERN = {"M": "mamba", "*": "attention"}
_RECURRENT_WORDS = ("linear", "mamba", "recurrent", "delta", "conv", "ssm")
_WINDOW_WORDS = ("sliding", "chunked", "local")


def _layers(config: Config) -> Counter[str]:
    """How many layers of each kind; a layer of both kinds counts twice."""
    found: Counter[str] = Counter()
    for kind in _layer_names(config):
        word = kind.lower()
        if any(part in word for part in _RECURRENT_WORDS):
            found["recurrent"] += 1
        elif any(part in word for part in _WINDOW_WORDS):
            found["window"] += 1
        elif "attention" in word:
            found["attention"] += 1
        elif word == "hybrid":
            found["recurrent"] += 1
            found["attention"] += 1
    return found


def _layer_names(config: Config) -> list[str]:
    for key in ("layer_types", "layers_block_type"):
        value = config.get(key)
        if isinstance(value, list) and value:
            return [str(kind) for kind in value]
    pattern = _text(config, "hybrid_override_pattern")
    if pattern:
        return [_PATTERN.get(letter, "other") for letter in pattern]
    linear = config.get("linear_attn_config")
    if isinstance(linear, Mapping):
        recurrent, attention = linear.get("kda_layers"), linear.get("full_attn_layers")
        if isinstance(recurrent, list) and isinstance(attention, list):
            return ["linear"] * len(recurrent) + ["attention"] * len(attention)
    count = _number(config, "num_hidden_layers")
    if count is None or count > 10_000:
        raise ModelConfigError("the config names no layers: num_hidden_layers or layer_types is needed")
    every = _number(config, "full_attention_interval")
    if every:
        return ["attention" if (i + 1) % every == 0 else "linear" for i in range(count)]
    if _state_forms(config):
        raise ModelConfigError(
            "the config has recurrent layers but does not say which: layer_types, layers_block_type, "
            "hybrid_override_pattern or full_attention_interval is needed"
        )
    window = _number(config, "sliding_window") and config.get("use_sliding_window", True)
    return ["sliding" if window else "attention"] * count


# -- sizes -----------------------------------------------------------------------------------------------------

GDN = "gated delta net"
KDA = "kimi delta attention"
MAMBA2 = "mamba-2"


def _state_forms(config: Config) -> list[str]:
    """The recurrent forms that the config has fields of."""
    forms = []
    if isinstance(config.get("linear_attn_config"), Mapping):
        forms.append(KDA)
    if "linear_num_value_heads" in config:
        forms.append(GDN)
    if "mamba_num_heads" in config or "mamba_n_heads" in config:
        forms.append(MAMBA2)
    return forms


def _state(config: Config) -> State:
    """Sizes as in vLLM `MambaStateShapeCalculator`: gated_delta_net_, kda_ and mamba2_state_shape."""
    forms = _state_forms(config)
    if not forms:
        raise ModelConfigError(
            f"recurrent layers of an unknown form; known are {GDN} (linear_num_value_heads), "
            f"{KDA} (linear_attn_config) and {MAMBA2} (mamba_num_heads)"
        )
    if forms[0] == KDA:
        return _kda_state(config["linear_attn_config"])
    if forms[0] == GDN:
        key_heads, heads = _needed(config, "linear_num_key_heads"), _needed(config, "linear_num_value_heads")
        key, value = _needed(config, "linear_key_head_dim"), _needed(config, "linear_value_head_dim")
        kernel = _number(config, "linear_conv_kernel_dim") or 0
        return State(GDN, heads, value, key, max(0, kernel - 1), 2 * key_heads * key + heads * value)
    heads = _needed(config, "mamba_num_heads", "mamba_n_heads")
    width, size = _needed(config, "mamba_head_dim", "mamba_d_head"), _needed(config, "ssm_state_size", "mamba_d_state")
    kernel = _number(config, "conv_kernel", "mamba_d_conv") or 0
    groups = _needed(config, "n_groups", "mamba_n_groups")
    return State(MAMBA2, heads, width, size, max(0, kernel - 1), heads * width, groups, 2 * size)


def _kda_state(linear: object) -> State:
    if not isinstance(linear, Mapping):
        raise ModelConfigError("linear_attn_config must be an object")
    heads, width = _needed(linear, "num_heads"), _needed(linear, "head_dim")
    kernel = _number(linear, "short_conv_kernel_size") or 0
    return State(KDA, heads, width, width, max(0, kernel - 1), 3 * heads * width)


def _attention(config: Config) -> Attention:
    latent = _number(config, "kv_lora_rank")
    if latent:
        return Attention(1, latent + (_number(config, "qk_rope_head_dim") or 0), latent=True)
    query_heads = _number(config, "num_attention_heads")
    heads = _number(config, "num_key_value_heads") or query_heads
    width = _number(config, "head_dim", "attention_head_dim")
    if not width and query_heads:
        width = (_number(config, "hidden_size") or 0) // query_heads
    if not heads or not width:
        raise ModelConfigError("the config lacks the sizes of attention: num_key_value_heads and head_dim")
    return Attention(heads, width)


# -- fields ----------------------------------------------------------------------------------------------------


def _number(config: Config, *names: str) -> int | None:
    """The first of these fields that is there, as a whole number of 0 or more."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
            raise ModelConfigError(f"{name} must be a whole number of 0 or more, not {str(value)[:40]!r}")
        return value
    return None


def _needed(config: Config, *names: str) -> int:
    value = _number(config, *names)
    if not value:
        raise ModelConfigError(f"the config lacks {' or '.join(names)}")
    return value


def _text(config: Config, *names: str) -> str | None:
    for name in names:
        value = config.get(name)
        if isinstance(value, str) and value:
            return value
    return None
