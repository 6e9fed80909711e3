"""What one simulated worker is told to be, and its command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields

VERSION = "0.33.0"
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter served beside its base model."""

    name: str
    parent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SimConfig:
    """All settings of a worker. Times in seconds, sizes in bytes unless named otherwise."""

    host: str = "127.0.0.1"
    port: int = 0
    models: tuple[str, ...] = ("sim-model",)
    adapters: tuple[Adapter, ...] = ()
    max_model_len: int = 32768
    api_key: str | None = None

    block_size: int = 16
    num_gpu_blocks: int = 8192
    enable_prefix_caching: bool = True
    enable_prompt_tokens_details: bool = False
    prefill_tokens_per_second: float = 2000.0
    decode_seconds_per_token: float = 0.02
    time_scale: float = 1.0
    max_num_seqs: int = 256
    max_num_queued_reqs: int | None = None
    default_output_tokens: int = 16
    fixed_cost: bool = False
    prefix_match_unit: int | None = None
    mamba_cache_mode: str = "none"
    mamba_block_size: int | None = None
    sliding_window: int | None = None

    # Which cache there is: of plain attention, of a hybrid with recurrent state, or of five forms and more.
    cache: str = "attention"
    version: str = VERSION
    state_blocks: int | None = None
    tail_blocks: int | None = None
    window_blocks: int | None = None
    index_blocks: int | None = None
    disk_blocks: int | None = None
    retention_interval: int = 0
    held_back_units: int = 0
    step_tokens: int = 0
    load_tokens_per_second: float = 20_000.0

    metrics: bool = True
    process_metrics: bool = True
    health: bool = True
    dev_mode: bool = False
    request_id_headers: bool = False
    server_load_tracking: bool = False
    responses_store: bool = True

    keep_alive_seconds: float = 5.0
    max_body_bytes: int = 64 * MIB
    allow_fault_headers: bool = False
    max_records: int = 10_000
    record_bodies: bool = True
    max_record_bytes: int = 256 * MIB

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("a worker serves at least one model name")
        for name in ("block_size", "num_gpu_blocks", "max_model_len", "max_num_seqs", *_RATES):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")
        for name in (*_NOT_NEGATIVE, "time_scale", "decode_seconds_per_token", "keep_alive_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        for name in _SIZES:
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ValueError(f"{name} must be above 0")
        if self.cache not in CACHES:
            raise ValueError(f"cache must be one of {', '.join(CACHES)}")
        if self.cache != "attention" and self.block_size % self.unit:
            raise ValueError(f"prefix_match_unit must divide the block of {self.block_size} tokens")

    @property
    def window(self) -> int:
        """The context window in tokens, fitted to the cache so that every admitted prompt has room."""
        return min(self.max_model_len, self.num_gpu_blocks * self.block_size)

    @property
    def unit(self) -> int:
        """Tokens between two boundaries at which a hit may land."""
        return self.block_size if self.cache == "attention" else self.prefix_match_unit or self.block_size

    @property
    def window_tokens(self) -> int | None:
        """The sliding window, of which the five forms always have one."""
        return self.sliding_window or (self.block_size if self.cache == "forms" else None)

    @property
    def release(self) -> tuple[int, ...]:
        """Major and minor number of the engine's version."""
        return tuple(int(part) for part in self.version.split(".")[:2])

    @property
    def cache_mode(self) -> str:
        """How recurrent state is kept; releases before 0.33 keep none unless they are told to."""
        if not self.recurrent or self.release < ALIGN_BY_ITSELF:
            return self.mamba_cache_mode
        return "align" if self.enable_prefix_caching else "none"

    @property
    def caching(self) -> bool:
        """Whether prompts are reused at all."""
        return self.enable_prefix_caching and (not self.recurrent or self.cache_mode == "align")

    @property
    def recurrent(self) -> bool:
        """Whether the model has recurrent layers, whose state is one of the forms."""
        return self.cache == "hybrid" or (self.cache == "forms" and self.state_blocks is not None)

    @property
    def model(self) -> str:
        """The name answers carry, whichever alias was asked for."""
        return self.models[0]


CACHES = ("attention", "hybrid", "forms")
ALIGN_BY_ITSELF = (0, 33)
_SIZES = ("prefix_match_unit", "state_blocks", "tail_blocks", "window_blocks", "index_blocks", "disk_blocks")
_RATES = ("prefill_tokens_per_second", "load_tokens_per_second")
_NOT_NEGATIVE = ("retention_interval", "held_back_units", "step_tokens")

# Name on the command line, field, kind, help.
_VALUES: tuple[tuple[str, type, str], ...] = (
    ("host", str, "address to listen on"),
    ("port", int, "port to listen on; 0 lets the system choose"),
    ("max-model-len", int, "context window in tokens (fitted to the cache)"),
    ("api-key", str, "key that paths under /v1 and /v2 ask for"),
    ("block-size", int, "tokens per cache block"),
    ("num-gpu-blocks", int, "cache size in blocks"),
    ("prefill-tokens-per-second", float, "speed of prefill for tokens that are not cached"),
    ("decode-seconds-per-token", float, "time between two tokens of one request"),
    ("time-scale", float, "factor on every engine time; 0 answers at once"),
    ("max-num-seqs", int, "requests past the queue at one time"),
    ("max-num-queued-reqs", int, "waiting requests beyond which new ones get 503 (default: no limit)"),
    ("default-output-tokens", int, "tokens generated when a request sets no limit"),
    ("cache", str, "attention (default), hybrid (recurrent state too) or forms (five forms of objects)"),
    ("version", str, "release to pose as; hybrids before 0.33 need --mamba-cache-mode align"),
    ("prefix-match-unit", int, "finest boundary of a hit of hybrid and forms; shown in the cache metrics"),
    ("state-blocks", int, "recurrent states there is room for, one of them for each running request"),
    ("tail-blocks", int, "tails behind the last whole block there is room for"),
    ("window-blocks", int, "match units of sliding windows there is room for"),
    ("index-blocks", int, "blocks whose index there is room for"),
    ("disk-blocks", int, "blocks there is room for on disk"),
    ("retention-interval", int, "tokens between states that are kept besides the last; 0 keeps no others"),
    ("held-back-units", int, "units that speculative decoding drops from every hit"),
    ("step-tokens", int, "tokens of a scheduler step, at whose end state is kept; 0 keeps none"),
    ("load-tokens-per-second", float, "speed of reading back from disk"),
    ("mamba-cache-mode", str, "shown in the cache metrics"),
    ("mamba-block-size", int, "shown in the cache metrics"),
    ("sliding-window", int, "shown in the cache metrics"),
    ("keep-alive-seconds", float, "idle connections are closed after this time"),
    ("max-body-bytes", int, "largest request body"),
    ("max-records", int, "requests remembered for /sim/requests"),
    ("max-record-bytes", int, "bytes of bodies remembered for /sim/requests"),
)
_SWITCHES: tuple[tuple[str, str], ...] = (
    ("enable-prefix-caching", "keep computed blocks"),
    ("enable-prompt-tokens-details", "report cached tokens in chat, completions and messages"),
    ("fixed-cost", "skip the tokenizer and the engine and answer at once, for benchmarks"),
    ("metrics", "serve /metrics"),
    ("process-metrics", "show the process start time in /metrics (several API processes do not)"),
    ("health", "serve /health and /ping"),
    ("dev-mode", "serve cache, sleep and server_info routes"),
    ("request-id-headers", "answer with X-Request-Id"),
    ("server-load-tracking", "count requests in /load"),
    ("responses-store", "keep answers of /v1/responses"),
    ("allow-fault-headers", "obey the x-sim-fault request header"),
    ("record-bodies", "keep request bodies for /sim/requests"),
)


def _adapter(text: str) -> Adapter:
    name, separator, parent = text.partition(":")
    if not name or not separator or not parent:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:parent")
    return Adapter(name, parent)


def build_parser() -> argparse.ArgumentParser:
    """The command line; its defaults are those of `SimConfig`."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.simworker", description="A simulated vLLM worker.")
    defaults = SimConfig()
    parser.add_argument("--model", dest="models", nargs="+", action="extend", metavar="NAME", help="served names")
    parser.add_argument("--lora", dest="adapters", action="append", type=_adapter, metavar="NAME:parent")
    for name, kind, text in _VALUES:
        parser.add_argument(f"--{name}", type=kind, default=getattr(defaults, name.replace("-", "_")), help=text)
    for name, text in _SWITCHES:
        default = getattr(defaults, name.replace("-", "_"))
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=default, help=text)
    parser.add_argument("--count", type=int, default=1, help="workers in this process, each on its own port")
    parser.add_argument("--exit-with-parent", action="store_true", help="end when standard input closes")
    return parser


def from_arguments(arguments: argparse.Namespace) -> SimConfig:
    """Raises ValueError for settings that cannot work."""
    values = {key: value for key, value in vars(arguments).items() if key in _FIELDS and value is not None}
    for name in ("models", "adapters"):
        if name in values:
            values[name] = tuple(values[name])
    return SimConfig(**values)


def to_arguments(config: SimConfig) -> list[str]:
    """The command line that gives this configuration."""
    defaults = SimConfig()
    words = ["--model", *config.models]
    for adapter in config.adapters:
        words += ["--lora", f"{adapter.name}:{adapter.parent}"]
    for name, _, _ in _VALUES:
        value = getattr(config, name.replace("-", "_"))
        if value is not None and value != getattr(defaults, name.replace("-", "_")):
            words += [f"--{name}", str(value)]
    for name, _ in _SWITCHES:
        value = getattr(config, name.replace("-", "_"))
        if value != getattr(defaults, name.replace("-", "_")):
            words.append(f"--{name}" if value else f"--no-{name}")
    return words


def parse(words: Sequence[str] | None = None) -> SimConfig:
    return from_arguments(build_parser().parse_args(words))


_FIELDS = frozenset(field.name for field in fields(SimConfig))
