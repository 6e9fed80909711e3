"""The text of /metrics, with vLLM's names and labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from loadtest.simworker.config import ALIGN_BY_ITSELF
from loadtest.simworker.hybrid import HybridCache

if TYPE_CHECKING:
    from loadtest.simworker.worker import SimWorker

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_REASONS = ("stop", "length", "abort", "error", "repetition")
Sample = tuple[Mapping[str, str], float]


def render(worker: SimWorker) -> bytes:
    """All families of one worker."""
    lines: list[str] = []
    if worker.config.process_metrics:
        _family(lines, "process_start_time_seconds", "gauge", "", [({}, worker.started_at)])
    labels = {"model_name": worker.config.model, "engine": "0"}
    for name, text, value in _gauges(worker):
        _family(lines, name, "gauge", text, [(labels, value)])
    for name, text, value in _counters(worker):
        _family(lines, name, "counter", text, [(labels, value)])
    finished = worker.engine.totals.finished
    samples = [({**labels, "finished_reason": reason}, float(finished[reason])) for reason in _REASONS]
    _family(lines, "vllm:request_success", "counter", "Requests by how they ended.", samples)
    _lengths(lines, worker, labels)
    states = [({**labels, "sleep_state": state}, float(on)) for state, on in worker.sleep_states()]
    _family(lines, "vllm:engine_sleep_state", "gauge", "Sleep state of the engine.", states)
    rejected = {"model_name": worker.config.model, "reason": "max_num_queued_reqs"}
    _family(lines, "vllm:admission_rejections", "counter", "Requests refused.", [(rejected, worker.rejections)])
    cache = [({"engine": "0", **cache_labels(worker)}, 1.0)]
    _family(lines, "vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig.", cache)
    if isinstance(worker.engine.cache, HybridCache):
        _forms(lines, worker.engine.cache)
    return ("\n".join(lines) + "\n").encode()


def cache_labels(worker: SimWorker) -> dict[str, str]:
    """Every setting of the cache as text; what is not set reads None, as Python prints it."""
    config = worker.config
    tokens = config.num_gpu_blocks * config.block_size
    values: dict[str, object] = {
        "block_size": config.block_size,
        "num_gpu_blocks": config.num_gpu_blocks,
        "enable_prefix_caching": config.enable_prefix_caching,
        "prefix_caching_hash_algo": "sha256",
        "prefix_match_unit": config.prefix_match_unit,
        "mamba_cache_mode": config.cache_mode,
        "mamba_block_size": config.mamba_block_size or (config.block_size if config.recurrent else None),
        "kv_cache_size_tokens": tokens,
        "kv_cache_max_concurrency": tokens / config.window,
        "sliding_window": config.window_tokens,
        "hash_block_size": None,
        "cache_hit_alignment_tokens": None,
        "cache_dtype": "auto",
        "gpu_memory_utilization": 0.9,
    }
    if config.release >= ALIGN_BY_ITSELF:
        values["prefix_cache_retention_interval"] = config.retention_interval
    return {name: str(value) for name, value in values.items()}


def _gauges(worker: SimWorker) -> Iterable[tuple[str, str, float]]:
    engine = worker.engine
    yield "vllm:num_requests_running", "Requests in execution.", engine.running
    yield "vllm:num_requests_waiting", "Requests in the queue.", engine.waiting
    yield "vllm:kv_cache_usage_perc", "Share of the blocks in use; 1 is all.", engine.cache.usage


def _counters(worker: SimWorker) -> Iterable[tuple[str, str, float]]:
    totals = worker.engine.totals
    yield "vllm:prefix_cache_queries", "Prompt tokens looked up in the cache.", totals.queries
    yield "vllm:prefix_cache_hits", "Prompt tokens found in the cache.", totals.hits
    yield "vllm:prompt_tokens", "Prompt tokens processed.", totals.prompt_tokens
    yield "vllm:prompt_tokens_cached", "Prompt tokens taken from the cache.", totals.hits
    yield "vllm:generation_tokens", "Tokens generated.", totals.generation_tokens
    yield "vllm:num_preemptions", "Requests put back.", 0


def _forms(lines: list[str], cache: HybridCache) -> None:
    """What no engine tells: of each form what is there, what was evicted, and which hits it spoilt."""
    stores = cache.stores
    for name, kind, text, values in (
        ("sim:cache_objects", "gauge", "Objects in the cache.", {form: len(store) for form, store in stores.items()}),
        ("sim:evictions", "counter", "Objects evicted.", {form: store.evicted for form, store in stores.items()}),
        ("sim:fallbacks", "counter", "Hits promised that could not be read.", cache.fallbacks),
        ("sim:limited", "counter", "Hits that ended before what was shared.", cache.limited),
    ):
        samples: list[Sample] = [({"form": form.value}, float(values.get(form, 0))) for form in stores]
        _family(lines, name, kind, text, samples)


def _lengths(lines: list[str], worker: SimWorker, labels: Mapping[str, str]) -> None:
    """The histogram of prompt lengths, its bounds as vLLM makes them: 1, 2, 5, 10, ... up to the window."""
    totals, name = worker.engine.totals, "vllm:request_prompt_tokens"
    bounds = [factor * 10**power for power in range(8) for factor in (1, 2, 5)]
    lines += [f"# HELP {name} Prompt tokens of a request.", f"# TYPE {name} histogram"]
    series: list[tuple[str, dict[str, str], float]] = []
    for bound in bounds:
        if bound <= worker.config.window:
            count = sum(number for limit, number in totals.lengths.items() if limit <= bound)
            series.append(("_bucket", {"le": f"{bound}.0"}, count))
    count = totals.lengths.total()
    series += [("_bucket", {"le": "+Inf"}, count), ("_count", {}, count), ("_sum", {}, totals.length_sum)]
    for ending, extra, value in series:
        shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in {**labels, **extra}.items())
        lines.append(f"{name}{ending}{{{shown}}} {float(value)!r}")


def _family(lines: list[str], name: str, kind: str, text: str, samples: Iterable[Sample]) -> None:
    wire = f"{name}_total" if kind == "counter" else name
    lines += [f"# HELP {wire} {text}", f"# TYPE {wire} {kind}"]
    for labels, value in samples:
        shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"{wire}{{{shown}}} {float(value)!r}" if shown else f"{wire} {float(value)!r}")


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
