"""The printed form of a fit, for people and as JSON, and the command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from router.cachemodel import CacheProfile
from router.fit.arithmetic import BYTES, CHECKPOINTS, OPEN_BLOCK, PLAIN, Fit, Options, fit, reusable
from router.fit.model import ModelConfigError
from router.fit.trace import Tally, read, tally
from router.flags import Parser

DEFAULT_PROMPTS = (1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 128_000)
MAX_CONFIG_BYTES = 16 << 20

_WHOLE_UNITS = "floor(min(shared, prompt - 1) / unit) x unit"
_FORMULAS = {
    PLAIN: _WHOLE_UNITS,
    OPEN_BLOCK: "(floor(shared / block) - 1) x block: before vLLM 0.33, or where a drafter drops the last block",
    CHECKPOINTS: f"{_WHOLE_UNITS}, from a state kept there",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `prefix-router fit`; 0 if the figures were printed, 2 with one line on stderr if not."""
    arguments = _parser().parse_args(argv)
    try:
        figures = fit(_config(arguments.model_config), _options(arguments))
        found = None
        if arguments.trace is not None:
            with arguments.trace.open(encoding="utf-8") as lines:
                found = tally(read(lines), figures.rules)
    except OSError as error:
        sys.stderr.write(f"prefix-router fit: {error.filename or 'reading'}: {error.strerror}\n")
        return 2
    except (ModelConfigError, UnicodeDecodeError) as error:
        sys.stderr.write(f"prefix-router fit: {error}\n")
        return 2
    prompts = arguments.prompt_tokens or ([] if found else list(DEFAULT_PROMPTS))
    if arguments.json:
        sys.stdout.write(json.dumps(as_json(figures, prompts, found), indent=2) + "\n")
    else:
        sys.stdout.write(as_text(figures, prompts, found))
    return 0


def as_json(figures: Fit, prompts: Sequence[int], found: Tally | None = None) -> dict[str, object]:
    """All figures by name; bytes and tokens are whole numbers, shares lie in 0..1."""
    shape = figures.shape
    answer: dict[str, object] = {
        "model_type": shape.name,
        "layers": {
            "recurrent": shape.recurrent_layers,
            "attention": shape.attention_layers,
            "sliding_window": shape.window_layers,
        },
        "kv_dtype": figures.kv_dtype,
        "state_dtype": figures.state_dtype if shape.state else None,
        "tp": figures.options.tp,
        "state_bytes_per_layer": figures.layer_state_bytes,
        "state_bytes": figures.model_state_bytes,
        "token_bytes_per_layer": figures.layer_token_bytes,
        "token_bytes": figures.model_token_bytes,
        "block_tokens": figures.block,
        "block_tokens_by_page": {"layer": figures.layer_block, "model": figures.model_block},
        "padding_permille": figures.padding_permille,
        "rules": {
            name: {
                "formula": _formula(figures, name),
                "unit": profile.unit,
                "floor_tokens": profile.floor_tokens,
                "reusable_tokens": {str(length): reusable(profile, length) for length in prompts},
            }
            for name, profile in figures.rules.items()
        },
        "assumptions": list(figures.assumptions),
    }
    if found is not None:
        answer["trace"] = {
            "requests": found.requests,
            "prompt_tokens": found.prompt_tokens,
            "shared": found.share(found.shared_tokens),
            "reusable": {name: found.share(tokens) for name, tokens in found.resumed_tokens.items()},
        }
    return answer


def as_text(figures: Fit, prompts: Sequence[int], found: Tally | None = None) -> str:
    """The same for a terminal, with every formula written out."""
    lines = [*_size_lines(figures), "", *_rule_lines(figures)]
    if prompts:
        lines += ["", *_prompt_lines(figures.rules, prompts)]
    if found is not None:
        lines += ["", *_trace_lines(found)]
    if figures.assumptions:
        lines += ["", "assumed:", *(f"  - {one}" for one in figures.assumptions)]
    return "\n".join(lines) + "\n"


def _formula(figures: Fit, name: str) -> str:
    """A match unit lets hits land inside a block, where the open one no longer counts."""
    finer = name == OPEN_BLOCK and figures.rules[name].unit != figures.block
    return _WHOLE_UNITS if finer else _FORMULAS[name]


def _size_lines(figures: Fit) -> list[str]:
    shape, tp = figures.shape, figures.options.tp
    gpu = f" on each of {tp} GPUs" if tp > 1 else ""
    attention, state = shape.attention, shape.state
    kind = "latent" if attention.latent else f"2 x {max(1, attention.heads // tp)} heads x"
    per_token = f"{shape.attention_layers} layers x {kind} {attention.width} x {BYTES[figures.kv_dtype]} B"
    lines = [
        f"model    {shape.name}: {shape.recurrent_layers} recurrent, {shape.attention_layers} attention, "
        f"{shape.window_layers} sliding-window layers",
        f"token    {per_token} = {_bytes(figures.model_token_bytes)}{gpu}",
    ]
    if state is None:
        return [*lines, f"block    {figures.block:,} tokens"]
    conv = figures.layer_state_bytes - state.heads // tp * state.rows * state.columns * BYTES[figures.state_dtype]
    matrix = f"{state.heads // tp} heads x {state.rows} x {state.columns} x {BYTES[figures.state_dtype]} B"
    page = figures.layer_state_bytes / figures.layer_token_bytes
    return [
        *lines,
        f"state    {shape.recurrent_layers} layers x ({matrix} + {conv:,} B convolution)"
        f" = {_bytes(figures.model_state_bytes)} per request{gpu} ({state.form})",
        f"block    one layer a page: {figures.alignment} x ceil({figures.layer_state_bytes:,} B / ({figures.alignment}"
        f" x {figures.layer_token_bytes:,} B)) = {figures.layer_block:,} tokens"
        f" (at least {page:,.0f}; the state's page is padded by {figures.padding_permille / 10:.1f} %)",
        f"         all layers a page: {_bytes(figures.model_state_bytes)} / {_bytes(figures.model_token_bytes)}"
        f" = {figures.model_block:,} tokens",
        f"         used below: {figures.block:,} tokens",
    ]


def _rule_lines(figures: Fit) -> list[str]:
    unit = figures.options.match_unit
    lines = []
    for name, profile in figures.rules.items():
        lines.append(f"{name}: {_formula(figures, name)}")
        lines.append(f"  unit {profile.unit:,}; prompts under {profile.floor_tokens:,} tokens never hit")
        if unit is not None and profile.unit != unit:
            lines.append(f"  the match unit of {unit} is left out: it must be smaller than the block and divide it")
    return lines


def _prompt_lines(rules: dict[str, CacheProfile], prompts: Sequence[int]) -> list[str]:
    lines = ["prompt tokens" + "".join(f"{name:>24}" for name in rules)]
    for length in prompts:
        cells = []
        for profile in rules.values():
            tokens = reusable(profile, length)
            cells.append(f"{tokens:,} ({100 * tokens / length:.0f} %)")
        lines.append(f"{length:>13,}" + "".join(f"{cell:>24}" for cell in cells))
    return lines


def _trace_lines(found: Tally) -> list[str]:
    lines = [
        f"trace    {found.requests:,} prompts, {found.prompt_tokens:,} tokens; with one cache that forgets nothing:",
        f"  {'shared with an earlier prompt':<32}{100 * found.share(found.shared_tokens):>6.1f} %",
    ]
    for name, tokens in found.resumed_tokens.items():
        lines.append(f"  {'reusable, ' + name:<32}{100 * found.share(tokens):>6.1f} %")
    return lines


def _bytes(count: int) -> str:
    for limit, unit in ((1_000_000_000, "GB"), (1_000_000, "MB"), (1000, "KB")):
        if count >= limit:
            return f"{count / limit:,.1f} {unit}"
    return f"{count} B"


# -- command line ----------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="prefix-router fit",
        description="Whether a model's prefix cache fits the prompts it gets: block, floor and reusable share.",
    )
    add = parser.add_argument
    add("--model-config", type=Path, required=True, metavar="FILE", help="the model's config.json")
    add("--kv-dtype", choices=sorted(BYTES), help="of keys and values (default: the model's)")
    add("--state-dtype", choices=sorted(BYTES), help="of the recurrent state (default: as the config says)")
    add("--tp", type=_positive, default=1, metavar="N", help="tensor-parallel GPUs (default: 1)")
    add("--prefix-match-unit", type=_positive, metavar="N", help="tokens, as given to the engine")
    add("--alignment", type=_positive, metavar="N", help="tokens a block is a multiple of (default: 16; latent: 128)")
    add("--speculative-tokens", type=_natural, default=0, metavar="N", help="drafted tokens per step (default: 0)")
    add("--page", choices=("layer", "model"), default="layer", help="what one page must hold (default: layer)")
    add("--prompt-tokens", type=_positive, action="append", metavar="N", help="a prompt's length; repeatable")
    add("--trace", type=Path, metavar="FILE", help="JSON lines with input_length and, if there, hash_ids")
    add("--json", action="store_true", help="print JSON")
    return parser


def _options(arguments: argparse.Namespace) -> Options:
    return Options(
        kv_dtype=arguments.kv_dtype,
        state_dtype=arguments.state_dtype,
        tp=arguments.tp,
        match_unit=arguments.prefix_match_unit,
        alignment=arguments.alignment,
        speculative_tokens=arguments.speculative_tokens,
        whole_model=arguments.page == "model",
    )


def _config(path: Path) -> dict[str, object]:
    with path.open("rb") as source:
        data = source.read(MAX_CONFIG_BYTES + 1)
    if len(data) > MAX_CONFIG_BYTES:
        raise ModelConfigError(f"{path} is larger than {MAX_CONFIG_BYTES >> 20} MiB")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise ModelConfigError(f"{path} is no JSON") from None
    if not isinstance(value, dict):
        raise ModelConfigError(f"{path} holds no JSON object")
    return value


def _natural(text: str) -> int:
    value = int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 0 or more")
    return value


def _positive(text: str) -> int:
    value = _natural(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return value
