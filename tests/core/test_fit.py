"""Block sizes from public configs against those that engines printed, and what the printed figures say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from router.cachemodel import CacheProfile, Rule
from router.fit import Fit, ModelConfigError, Options, fit, main, shape_of
from router.fit.arithmetic import CHECKPOINTS, OPEN_BLOCK, PLAIN, reusable, share
from router.fit.trace import MAX_LINE, Request, read, tally

MODELS = Path(__file__).resolve().parents[1] / "data" / "models"
HYBRID = "qwen3.8-27b"


# Public configs, cut to the fields that count. Two name fewer layers than the model has: a page holds one layer's.
def config_of(name: str, **changes: object) -> dict[str, object]:
    config = cast(dict[str, object], json.loads((MODELS / f"{name}.json").read_text()))
    return config | changes


def fitted(name: str, **options: object) -> Fit:
    return fit(config_of(name), Options(**options))  # type: ignore[arg-type]


# -- sizes -----------------------------------------------------------------------------------------------------


def test_the_estimate_for_a_model_with_latent_attention() -> None:
    """34 layers of 64 heads of 128 x 128 in FP8, 11 layers of 512 + 64: 34 MiB, 6.3 KB, about 5,600 tokens."""
    figures = fitted("glm-like", kv_dtype="fp8", state_dtype="fp8", whole_model=True)
    assert (figures.shape.recurrent_layers, figures.shape.attention_layers) == (34, 11)
    assert figures.model_state_bytes == 34 << 20
    assert figures.model_token_bytes == 6336
    assert figures.block == figures.model_block == 5627
    assert figures.rules[OPEN_BLOCK].floor_tokens == 2 * 5627


@pytest.mark.parametrize("drafted", [2, 3])
@pytest.mark.parametrize(("kv_dtype", "block"), [("bf16", 800), ("fp8", 1600)])
def test_the_blocks_of_the_27b_hybrid(kv_dtype: str, block: int, drafted: int) -> None:
    """800 tokens, and 1,600 with FP8, with the multi-token prediction that those workers ran."""
    figures = fitted(HYBRID, kv_dtype=kv_dtype, speculative_tokens=drafted)
    assert (figures.shape.recurrent_layers, figures.shape.attention_layers) == (48, 16)
    assert figures.block == block
    assert figures.rules[OPEN_BLOCK].unit == block


@pytest.mark.parametrize(("kv_dtype", "block"), [("bf16", 784), ("fp8", 1568)])
def test_without_a_drafter_the_blocks_are_smaller(kv_dtype: str, block: int) -> None:
    figures = fitted(HYBRID, kv_dtype=kv_dtype)
    assert figures.block == block
    assert any("--speculative-tokens" in line for line in figures.assumptions)


@pytest.mark.parametrize(
    ("name", "options", "block", "padding_permille"),
    [
        # Block and padding that engines printed when they started with these settings.
        ("qwen3.5-4b", {}, 528, 7),
        (HYBRID, {"state_dtype": "bf16", "kv_dtype": "fp8", "speculative_tokens": 3}, 832, 4),
        (HYBRID, {"state_dtype": "bf16", "speculative_tokens": 7}, 448, 32),
        (HYBRID, {"state_dtype": "bf16", "speculative_tokens": 15}, 480, 12),
        ("nemotron-30b", {}, 2096, None),
        ("nemotron-9b", {}, 672, None),
        ("kimi-linear", {}, 1920, None),
    ],
)
def test_blocks_that_engines_printed(
    name: str, options: dict[str, object], block: int, padding_permille: int | None
) -> None:
    figures = fitted(name, **options)
    assert figures.block == block
    if padding_permille is not None:
        assert figures.padding_permille == padding_permille


def test_a_wider_state_over_narrow_attention() -> None:
    config = config_of("nemotron-30b", mamba_num_heads=128)
    assert fit(config, Options(kv_dtype="fp8")).block == 8320


def test_tensor_parallel_splits_state_and_heads_but_no_latent() -> None:
    one, two, eight = (fitted(HYBRID, tp=tp) for tp in (1, 2, 8))
    assert two.layer_state_bytes * 2 == one.layer_state_bytes
    assert two.layer_token_bytes * 2 == one.layer_token_bytes
    assert two.block == one.block
    assert eight.layer_token_bytes == 2 * 256 * 2  # one head, which two GPUs hold twice
    assert eight.block == 400
    assert fitted("kimi-linear", tp=4).layer_token_bytes == fitted("kimi-linear").layer_token_bytes
    # 8 groups over 16 GPUs: one each, so 16 in all.
    sixteen = fitted("nemotron-30b", tp=16)
    assert sixteen.layer_state_bytes == 4 * 64 * 128 * 4 + 3 * (4096 + 16 * 2 * 128) // 16 * 2


@pytest.mark.parametrize(("alignment", "block"), [(16, 784), (32, 800), (64, 832), (1024, 1024)])
def test_the_backend_may_want_a_wider_alignment(alignment: int, block: int) -> None:
    assert fitted(HYBRID, alignment=alignment).block == block


def test_a_latent_aligns_to_at_least_128() -> None:
    assert fitted("kimi-linear", alignment=16).block == 1920
    assert fitted("kimi-linear", alignment=256).block == 2048


def test_a_plain_model_keeps_the_default_block() -> None:
    figures = fitted("llama-8b")
    assert figures.layer_token_bytes == 2 * 8 * 128 * 2
    assert figures.model_token_bytes == 131_072
    assert (figures.block, figures.layer_state_bytes, figures.padding_permille) == (16, 0, 0)
    assert figures.rules == {PLAIN: CacheProfile()}


def test_the_match_unit_lowers_the_floor() -> None:
    fine = fitted(HYBRID, kv_dtype="fp8", speculative_tokens=3, match_unit=32)
    assert {rule.floor_tokens for rule in fine.rules.values()} == {33}
    odd = fitted(HYBRID, kv_dtype="fp8", speculative_tokens=3, match_unit=48)
    assert odd.rules[OPEN_BLOCK].floor_tokens == 3200


def test_reusable_share() -> None:
    rules = fitted(HYBRID, kv_dtype="fp8", speculative_tokens=3).rules
    assert [reusable(rules[OPEN_BLOCK], n) for n in (1200, 3100, 3200, 13_056)] == [0, 0, 1600, 11_200]
    assert [reusable(rules[CHECKPOINTS], n) for n in (1200, 3100, 3200, 13_056)] == [0, 1600, 1600, 12_800]
    assert share(rules[OPEN_BLOCK], [1200, 3200]) == 1600 / 4400
    assert share(rules[OPEN_BLOCK], []) == 0


# -- configs ---------------------------------------------------------------------------------------------------


def test_layers_are_found_however_the_config_names_them() -> None:
    by_interval = shape_of(config_of("qwen3.5-4b"))
    named = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 8
    assert shape_of(config_of("qwen3.5-4b", layer_types=named)) == by_interval
    assert shape_of({"text_config": config_of("qwen3.5-4b")}) == by_interval
    nemotron = shape_of(config_of("nemotron-30b"))
    assert (nemotron.recurrent_layers, nemotron.attention_layers) == (23, 6)
    both = shape_of(config_of("nemotron-9b", layers_block_type=["hybrid", "mamba"]))
    assert (both.recurrent_layers, both.attention_layers) == (2, 1)


def test_sliding_windows_set_no_floor() -> None:
    mixed = config_of("llama-8b", layer_types=["sliding_attention", "full_attention"])
    assert (shape_of(mixed).window_layers, shape_of(mixed).attention_layers) == (1, 1)
    assert any("sliding-window" in line for line in fit(mixed).assumptions)
    assert shape_of(config_of("llama-8b", sliding_window=4096)).window_layers == 32
    unused = config_of("llama-8b", sliding_window=4096, use_sliding_window=False)
    assert shape_of(unused).window_layers == 0


def test_the_type_of_the_state_is_the_models_where_nothing_says_otherwise() -> None:
    figures = fitted("nemotron-9b")
    assert figures.state_dtype == "bfloat16"
    assert any("--state-dtype" in line for line in figures.assumptions)
    kimi = fitted("kimi-linear")
    assert kimi.layer_state_bytes == 32 * 128 * 128 * 4 + 3 * 3 * 32 * 128 * 2
    assert kimi.state_dtype == "float32"
    assert fit(config_of("nemotron-9b", torch_dtype="torch.float16")).kv_dtype == "float16"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "num_hidden_layers"),
        (config_of("llama-8b", num_hidden_layers="32"), "num_hidden_layers must be a whole number"),
        (config_of("llama-8b", num_hidden_layers=True), "num_hidden_layers must be a whole number"),
        (config_of("llama-8b", num_hidden_layers=10**6), "names no layers"),
        (config_of("llama-8b", num_key_value_heads=0, num_attention_heads=0), "sizes of attention"),
        (config_of("llama-8b", torch_dtype="int3"), "unknown data type 'int3'"),
        (config_of("llama-8b", layer_types=["moe", "mlp"]), "no attention"),
        (config_of("qwen3.5-4b", layer_types=["linear_attention"]), "without attention layers"),
        (config_of("llama-8b", layer_types=["conv", "full_attention"]), "unknown form"),
        (config_of("qwen3.5-4b", full_attention_interval=None), "does not say which"),
        (config_of("qwen3.5-4b", linear_num_key_heads=None), "lacks linear_num_key_heads"),
        (config_of("nemotron-30b", n_groups=-1), "n_groups must be"),
        (config_of("kimi-linear", linear_attn_config={"kda_layers": [1], "full_attn_layers": [2]}), "lacks num_heads"),
    ],
)
def test_a_config_that_does_not_say_enough(config: dict[str, object], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        fit(config)


@pytest.mark.parametrize(("name", "tp"), [(HYBRID, 5), ("llama-8b", 3), ("glm-like", 7)])
def test_gpus_that_can_not_share_the_heads(name: str, tp: int) -> None:
    with pytest.raises(ModelConfigError, match=f"can't be split over {tp} GPUs"):
        fitted(name, tp=tp)


# -- traces ----------------------------------------------------------------------------------------------------


def line(tokens: int, *ids: int) -> str:
    return json.dumps({"timestamp": 0, "input_length": tokens, "output_length": 5, "hash_ids": ids})


def test_a_trace_without_ids_counts_every_prompt_as_repeated() -> None:
    found = tally(read(['{"input_length": 1200}', "", '{"input_length": 3200}']), {"a": CacheProfile(block_size=1600)})
    assert (found.requests, found.prompt_tokens, found.shared_tokens) == (2, 4400, 4400)
    assert found.resumed_tokens == {"a": 1600}


def test_a_trace_with_ids_is_replayed() -> None:
    rules = {"plain": CacheProfile(), "open": CacheProfile(block_size=512, rule=Rule.OPEN_BLOCK)}
    turns = [line(1100, 1, 2, 3), line(1700, 1, 2, 4, 5), line(1024, 1, 2), line(600, 9, 10)]
    found = tally(read(turns), rules)
    assert found.prompt_tokens == 4424
    assert found.shared_tokens == 1024 + 1024
    assert found.resumed_tokens == {"plain": 1024 + 1008, "open": 512 + 512}


def test_a_trace_knows_that_states_lie_only_at_ends_and_junctions() -> None:
    rules = {"kept": CacheProfile(block_size=512, rule=Rule.CHECKPOINTS, retention=0)}
    grown = [line(1100, 1, 2, 3), line(1700, 1, 2, 4, 5), line(2300, 1, 2, 4, 6, 7)]
    assert tally(read(grown), rules).resumed_tokens == {"kept": 1024 + 1536}
    # Three prompts part after 1,024 tokens from a longer one: the second finds nothing but leaves a state there.
    parted = [line(2100, 1, 2, 3, 4, 5), line(2100, 1, 2, 6, 7, 8), line(2100, 1, 2, 9, 10, 11)]
    assert tally(read(parted), rules).resumed_tokens == {"kept": 0 + 1024}
    assert tally(read(parted), {"all": CacheProfile(block_size=512)}).resumed_tokens == {"all": 2048}


@pytest.mark.parametrize(
    ("turns", "resumed"),
    [
        # The same prompt again: its state is known only to the last whole 512 tokens.
        ([line(1100, 1, 2, 3), line(1100, 1, 2, 3)], 1024),
        # A shorter one ends before the state of the longer.
        ([line(1100, 1, 2, 3), line(1024, 1, 2)], 0),
        # A state within the first 512 tokens counts too.
        ([line(600, 1, 2), line(1100, 1, 3, 4)], 512),
    ],
)
def test_a_match_unit_in_a_trace(turns: list[str], resumed: int) -> None:
    fine = CacheProfile(block_size=1600, match_unit=32, rule=Rule.CHECKPOINTS, retention=0)
    assert tally(read(turns), {"fine": fine}).resumed_tokens == {"fine": resumed}


def test_a_prompt_shares_no_more_than_its_own_tokens() -> None:
    assert tally(read([line(1100, 1, 2, 3)] * 2), {}).shared_tokens == 1100


@pytest.mark.parametrize(
    "bad",
    [
        "nonsense",
        "[1]",
        '{"output_length": 3}',
        '{"input_length": -1}',
        '{"input_length": true}',
        '{"input_length": 5, "hash_ids": "x"}',
        '{"input_length": 5, "hash_ids": [1.5]}',
        "[" * 100_000,
        " " * MAX_LINE + "{}",
    ],
)
def test_a_bad_line_is_named(bad: str) -> None:
    with pytest.raises(ModelConfigError, match="line 2 of the trace"):
        list(read([line(5), bad]))


def test_a_request_keeps_its_ids() -> None:
    assert list(read([line(600, 7, 8)])) == [Request(600, (7, 8))]


# -- command line ----------------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_text_shows_the_formulas(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys, "--model-config", str(MODELS / "glm-like.json"), "--kv-dtype", "fp8", "--state-dtype", "fp8",
        "--page", "model", "--prompt-tokens", "16000",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert "11 layers x latent 576 x 1 B = 6.3 KB" in out
    assert "64 heads x 128 x 128 x 1 B" in out
    assert "35.7 MB / 6.3 KB = 5,627 tokens" in out
    assert "(floor(shared / block) - 1) x block" in out
    assert "prompts under 11,254 tokens never hit" in out
    assert "5,627 (35 %)" in out
    assert "the convolution's state is not counted" in out


def test_json_has_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "--model-config", str(MODELS / f"{HYBRID}.json"), "--kv-dtype", "fp8", "--speculative-tokens", "3",
        "--tp", "2", "--prompt-tokens", "3100", "--prompt-tokens", "13056", "--json",
    )  # fmt: skip
    assert code == 0
    found = json.loads(out)
    assert found["block_tokens"] == 1600
    assert found["state_bytes"] == 48 * found["state_bytes_per_layer"] == 48 * 3_268_608 // 2
    assert found["rules"][OPEN_BLOCK]["floor_tokens"] == 3200
    assert found["rules"][OPEN_BLOCK]["reusable_tokens"] == {"3100": 0, "13056": 11_200}
    assert "trace" not in found


def test_a_match_unit_that_does_not_fit_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    base = ("--model-config", str(MODELS / f"{HYBRID}.json"), "--speculative-tokens", "3", "--prefix-match-unit")
    assert "the match unit of 48 is left out" in run(capsys, *base, "48")[1]
    fine = run(capsys, *base, "32")[1]
    assert "left out" not in fine
    assert "(floor(shared / block) - 1)" not in fine


def test_a_trace_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join([line(1100, 1, 2, 3), line(1700, 1, 2, 4, 5)]))
    base = ("--model-config", str(MODELS / "llama-8b.json"), "--trace", str(trace))
    out = run(capsys, *base)[1]
    assert "2 prompts, 2,800 tokens" in out
    assert "prompt tokens" not in out
    found = json.loads(run(capsys, *base, "--json")[1])["trace"]
    assert found == {"requests": 2, "prompt_tokens": 2800, "shared": 1024 / 2800, "reusable": {PLAIN: 1024 / 2800}}


def test_without_lengths_it_shows_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "--model-config", str(MODELS / "llama-8b.json"))[1]
    assert "128,000" in out
    assert "32 layers x 2 x 8 heads x 128 x 2 B" in out


@pytest.mark.parametrize("content", [None, b"nonsense", b"[]", b"\xff\xfe", b"{}", b"[" * 100_000])
def test_a_bad_config_file_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    code, out, err = run(capsys, "--model-config", str(path))
    assert (code, out) == (2, "")
    assert err.startswith("prefix-router fit: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [("--tp", "0"), ("--tp", "x"), ("--kv-dtype", "int3"), ("--prompt-tokens", "-5"), ("--page", "both")]
)
def test_bad_flags_are_refused(capsys: pytest.CaptureFixture[str], arguments: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--model-config", str(MODELS / "llama-8b.json"), *arguments])
    assert caught.value.code == 2
    assert arguments[0] in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["--model-config", "--trace"])
def test_a_file_that_is_not_there_is_one_line(missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"--model-config": str(MODELS / "llama-8b.json"), missing: str(tmp_path / "none")}
    code, out, err = run(capsys, *(word for pair in files.items() for word in pair))
    assert (code, out) == (2, "")
    assert err == f"prefix-router fit: {tmp_path / 'none'}: No such file or directory\n"
