"""The simulated worker's routes, over real sockets: what it says of itself."""

from __future__ import annotations

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadtest.simworker import SimConfig, SimWorker
from tests.edges.simworker.routes_rig import TEXT, chat


async def test_models_lists_aliases_and_adapters(client: httpx.AsyncClient) -> None:
    first = (await client.get("/v1/models")).json()["data"]
    assert [(card["id"], card["root"], card["parent"], card["max_model_len"]) for card in first] == [
        ("base", "base", None, 32768),
        ("alias", "base", None, 32768),
        ("tuned", "/adapters/tuned", "base", None),
    ]
    second = (await client.get("/v1/models")).json()["data"]
    assert first[0]["permission"][0]["id"] != second[0]["permission"][0]["id"]


async def test_health_version_load(client: httpx.AsyncClient) -> None:
    for path in ("/health", "/ping"):
        answer = await client.get(path)
        assert (answer.status_code, answer.content) == (200, b"")
    assert (await client.post("/ping")).status_code == 200
    assert (await client.get("/version")).json() == {"version": "0.33.0"}
    assert (await client.get("/load")).json() == {"server_load": 0}


async def test_unknown_routes_and_methods(client: httpx.AsyncClient) -> None:
    answer = await client.get("/nope")
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})
    answer = await client.get("/v1/completions")
    assert (answer.status_code, answer.json()) == (405, {"detail": "Method Not Allowed"})
    assert answer.headers["allow"] == "POST"
    answer = await client.post("/v1/completions/", json={})
    assert (answer.status_code, answer.headers["location"]) == (307, "/v1/completions")


async def test_a_head_answer_has_no_body(client: httpx.AsyncClient) -> None:
    answer = await client.head("/health")
    assert (answer.status_code, answer.content) == (405, b"")
    assert (await client.get("/health")).status_code == 200


async def test_metrics_are_prometheus_text(client: httpx.AsyncClient) -> None:
    for _ in range(2):
        await client.post("/v1/chat/completions", json=chat(TEXT * 10))
    families = {f.name: f for f in text_string_to_metric_families((await client.get("/metrics")).text)}
    samples = {s.name: s for family in families.values() for s in family.samples}
    assert samples["vllm:prefix_cache_queries_total"].labels == {"model_name": "base", "engine": "0"}
    hits, queries = samples["vllm:prefix_cache_hits_total"].value, samples["vllm:prefix_cache_queries_total"].value
    assert queries / 2 - 16 <= hits < queries / 2
    assert samples["vllm:prompt_tokens_total"].value == queries
    assert samples["vllm:generation_tokens_total"].value == 8
    assert samples["vllm:num_requests_running"].value == samples["vllm:num_requests_waiting"].value == 0
    assert samples["process_start_time_seconds"].value > 1e9
    info = samples["vllm:cache_config_info"].labels
    assert (info["block_size"], info["num_gpu_blocks"], info["enable_prefix_caching"]) == ("16", "8192", "True")
    assert (info["prefix_match_unit"], info["kv_cache_size_tokens"]) == ("None", "131072")
    ended = {s.labels["finished_reason"]: s.value for s in families["vllm:request_success"].samples}
    assert ended["length"] == 2


async def test_a_restart_is_a_new_life(worker: SimWorker) -> None:
    born = worker.started_at
    for _ in range(2):
        async with httpx.AsyncClient(base_url=worker.url) as client:
            answer = await client.post("/v1/chat/completions", json=chat(TEXT * 10))
            assert answer.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
            worker.restart()
            with pytest.raises(httpx.ReadError):
                await client.get("/health")
    assert worker.started_at > born


@pytest.mark.parametrize(
    ("config", "path"),
    [
        (SimConfig(metrics=False), "/metrics"),
        (SimConfig(health=False), "/health"),
        (SimConfig(), "/reset_prefix_cache"),
        (SimConfig(), "/is_sleeping"),
    ],
)
async def test_routes_that_are_switched_off(config: SimConfig, path: str) -> None:
    async with SimWorker(config) as worker, httpx.AsyncClient(base_url=worker.url) as client:
        assert (await client.get(path)).status_code == 404


async def test_several_api_processes_hide_the_start_time() -> None:
    async with SimWorker(SimConfig(process_metrics=False)) as worker, httpx.AsyncClient(base_url=worker.url) as client:
        assert "process_start_time" not in (await client.get("/metrics")).text


async def test_reset_and_sleep_empty_the_cache(client: httpx.AsyncClient) -> None:
    async def cached() -> int:
        usage = (await client.post("/v1/chat/completions", json=chat(TEXT * 10))).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert await cached() == 0
    assert await cached() > 0
    assert (await client.post("/reset_prefix_cache")).json() == {"success": True}
    assert await cached() == 0
    assert (await client.post("/sleep?level=1")).status_code == 200
    assert (await client.get("/is_sleeping")).json() == {"is_sleeping": True}
    assert 'sleep_state="weights_offloaded"} 1.0' in (await client.get("/metrics")).text
    assert (await client.post("/wake_up")).status_code == 200
    assert await cached() == 0
    info = (await client.get("/server_info?config_format=json")).json()
    assert info["vllm_config"]["cache_config"]["block_size"] == "16"
