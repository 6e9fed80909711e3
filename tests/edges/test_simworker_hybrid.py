"""A simulated hybrid worker over HTTP: what it declares, what it reuses, and that a broken hit costs time only."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.simworker import SimConfig, SimProcess, SimWorker
from loadtest.simworker.config import parse, to_arguments
from loadtest.simworker.hybrid import HybridCache
from loadtest.simworker.metrics import cache_labels
from loadtest.simworker.shape import shape_of
from loadtest.simworker.tokens import Tokenizer
from router.cachemodel import Rule, profile_from_labels, resumable

HYBRID = SimConfig(
    cache="hybrid", block_size=160, num_gpu_blocks=127, enable_prompt_tokens_details=True, time_scale=0.0
)
FORMS = SimConfig(cache="forms", block_size=32, num_gpu_blocks=8, enable_prompt_tokens_details=True, time_scale=0.0)


async def ask(client: httpx.AsyncClient, worker: SimWorker, words: str) -> tuple[int, int, str]:
    """Prompt tokens, cached tokens and text of an answer."""
    answer = await client.post(f"{worker.url}/v1/completions", json={"prompt": words, "max_tokens": 8})
    body: dict[str, Any] = answer.raise_for_status().json()
    usage = body["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], body["choices"][0]["text"]


async def samples(client: httpx.AsyncClient, worker: SimWorker, name: str) -> dict[str, float]:
    """The samples of one metric by their form."""
    page = (await client.get(f"{worker.url}/metrics")).text
    found = [line for line in page.splitlines() if line.startswith(f"{name}{{")]
    return {line.partition('form="')[2].partition('"')[0]: float(line.rpartition(" ")[2]) for line in found}


def words(count: int, name: str = "w") -> str:
    return " ".join(f"{name}{number}" for number in range(count))


@pytest.mark.parametrize(
    ("unit", "held_back", "cached"), [(None, 0, 160), (None, 1, 0), (32, 0, 288), (32, 1, 256)], ids=str
)
async def test_a_grown_prompt_resumes_at_the_last_boundary(unit: int | None, held_back: int, cached: int) -> None:
    config = SimConfig(
        cache="hybrid",
        block_size=160,
        num_gpu_blocks=127,
        prefix_match_unit=unit,
        held_back_units=held_back,
        enable_prompt_tokens_details=True,
        time_scale=0.0,
    )
    async with SimWorker(config) as worker, httpx.AsyncClient(trust_env=False) as client:
        assert (await ask(client, worker, words(310)))[:2] == (310, 0)
        assert (await ask(client, worker, words(350)))[:2] == (350, cached)


@pytest.mark.parametrize("kind", ["eviction_interrupted", "load_failure", "version_mismatch"])
async def test_a_broken_hit_is_computed_again_and_answered_the_same(kind: str) -> None:
    form = {
        "eviction_interrupted": "swa_window",
        "load_failure": "on_disk_prefix",
        "version_mismatch": "indexer_state",
    }[kind]
    async with SimWorker(FORMS) as worker, httpx.AsyncClient(trust_env=False) as client:
        _, _, right = await ask(client, worker, words(200))
        if kind == "load_failure":
            await ask(client, worker, words(230, "x"))  # pushes the blocks out to disk
        (await client.post(f"{worker.url}/sim/cache-faults?kind={kind}")).raise_for_status()
        _, cached, text = await ask(client, worker, words(200))
        fallbacks = await samples(client, worker, "sim:fallbacks_total")
        assert cached < 192
        assert text == right
        assert {name: count for name, count in fallbacks.items() if count} == {form: 1.0}
        assert (await ask(client, worker, words(200)))[1:] == (192, right)


async def test_a_load_from_disk_takes_its_time() -> None:
    async with SimWorker(FORMS) as worker, httpx.AsyncClient(trust_env=False) as client:
        await ask(client, worker, words(200))
        await ask(client, worker, words(230, "x"))
        await ask(client, worker, words(200))
        cold, _, loaded = worker.calls
    assert loaded.cached_tokens == 192
    assert cold.prefill_seconds == pytest.approx(0.1)
    assert loaded.prefill_seconds == pytest.approx(192 / 20_000 + 8 / 2_000)


async def test_a_fault_that_cannot_come_is_refused() -> None:
    async with SimWorker(HYBRID) as worker, httpx.AsyncClient(trust_env=False) as client:
        for query in ("kind=load_failure", "kind=x", "", "kind=eviction_interrupted&times=0"):
            assert (await client.post(f"{worker.url}/sim/cache-faults?{query}")).status_code == 400
    async with SimWorker(SimConfig()) as worker, httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(f"{worker.url}/sim/cache-faults?kind=eviction_interrupted")
        assert answer.status_code == 400


@pytest.mark.parametrize(
    ("more", "rule", "enabled", "unit"),
    [
        ({"cache": "hybrid"}, Rule.CHECKPOINTS, True, 160),
        ({"cache": "hybrid", "prefix_match_unit": 32}, Rule.CHECKPOINTS, True, 32),
        ({"cache": "hybrid", "version": "0.20.1"}, Rule.OPEN_BLOCK, False, 160),
        ({"cache": "hybrid", "version": "0.20.1", "mamba_cache_mode": "align"}, Rule.OPEN_BLOCK, True, 160),
        ({"cache": "forms"}, Rule.CHECKPOINTS, True, 160),
        ({}, Rule.BLOCKS, True, 160),
    ],
)
def test_the_router_reads_its_cache_from_its_labels(more: dict[str, Any], rule: Rule, enabled: bool, unit: int) -> None:
    profile = profile_from_labels(cache_labels(SimWorker(SimConfig(block_size=160, **more))))
    assert (profile.rule, profile.enabled, profile.unit) == (rule, enabled, unit)


@given(st.integers(1, 60), st.integers(1, 60), st.sampled_from([2, 4, 8]), st.booleans())
@settings(max_examples=60)
def test_what_the_router_predicts_of_a_grown_prompt_comes_true(first: int, growth: int, unit: int, older: bool) -> None:
    """With room for everything the labels alone tell what a conversation's next turn resumes."""
    release = {"version": "0.20.1", "mamba_cache_mode": "align", "held_back_units": 1} if older else {}
    if older:
        unit = 8  # the open block is a whole one
    config = SimConfig(cache="hybrid", block_size=8, num_gpu_blocks=100, prefix_match_unit=unit, **release)  # type: ignore[arg-type]
    cache = HybridCache(shape_of(config), enabled=config.caching)
    tokenizer = Tokenizer(config.unit)
    earlier, later = (tokenizer.ids(range(count), 0) for count in (first, first + growth))
    hold = cache.reserve(earlier, first)
    assert hold is not None
    cache.commit(hold, earlier.hashes)
    cache.release(hold)
    predicted = resumable(profile_from_labels(cache_labels(SimWorker(config))), first, first + growth)
    # The state lies before the last token of the first turn: a turn that ends on a boundary gives a unit less.
    assert cache.match(later) in (predicted.tokens, predicted.tokens - config.unit)
    if first % config.unit:
        assert cache.match(later) == predicted.tokens


def test_every_cache_setting_has_its_place_on_the_command_line() -> None:
    config = SimConfig(
        cache="forms",
        version="0.20.1",
        prefix_match_unit=4,
        state_blocks=1,
        tail_blocks=2,
        window_blocks=3,
        index_blocks=4,
        disk_blocks=5,
        retention_interval=16,
        held_back_units=1,
        step_tokens=8,
        load_tokens_per_second=9.0,
    )
    assert parse(to_arguments(config)) == config


def test_a_worker_process_takes_its_cache_and_its_faults() -> None:
    with SimProcess(HYBRID) as worker, httpx.Client(base_url=worker.url, trust_env=False) as client:

        def cached() -> int:
            answer = client.post("/v1/completions", json={"prompt": words(400), "max_tokens": 1}).json()
            tokens: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            return tokens

        assert [cached(), cached()] == [0, 320]
        worker.break_hits("eviction_interrupted")
        assert [cached(), cached()] == [0, 320]
        assert 'sim:fallbacks_total{form="recurrent_state"} 1.0' in client.get("/metrics").text
