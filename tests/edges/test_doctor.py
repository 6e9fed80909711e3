"""The doctor before live workers, each of them simulated with one thing to be found."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest.simworker import SimConfig, SimWorker
from router.doctor import main
from router.workers.registry import worker_id

GOOD = SimConfig(enable_prompt_tokens_details=True, time_scale=0.0)
HYBRID = dataclasses.replace(GOOD, cache="hybrid", block_size=1600, num_gpu_blocks=127)


async def run(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Any]]:
    """The exit code of a run, and what it printed."""
    code = await asyncio.to_thread(main, [*flags, "--json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert answer["exit_code"] == code
    return code, answer


async def examined(
    capsys: pytest.CaptureFixture[str], worker: SimWorker, *flags: str
) -> tuple[int, dict[str, str], dict[str, Any]]:
    """The exit code, the findings by code with their changes, and all that is said of one worker."""
    code, answer = await run(capsys, "--worker", worker.url, *flags)
    (one,) = answer["workers"]
    return code, {finding["code"]: finding["change"] or "" for finding in one["findings"]}, one


async def test_a_dense_worker_with_a_cache_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    async with SimWorker(GOOD) as worker:
        code, found, one = await examined(capsys, worker)
        sent = worker.calls
    assert code == 0
    assert {"probe_hit", "usage_details"} <= set(found)
    assert (one["probe"]["verdict"], one["probe"]["confidence"]) == ("hit", "certain")
    assert [prompt["cached_tokens"] > 0 for prompt in one["probe"]["prompts"]] == [False, True, True, False, True]
    assert len(sent) == 5
    assert {record.output_tokens for record in sent} == {1}


async def test_a_second_run_does_not_meet_the_prompts_of_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    async with SimWorker(GOOD) as worker:
        await examined(capsys, worker)
        _, _, one = await examined(capsys, worker)
    assert one["probe"]["prompts"][0]["cached_tokens"] == 0
    assert one["under_floor"] == {"prompts": 5, "share_least": 0.0, "share_most": 0.0}


async def test_caching_switched_off_is_found_with_the_argument(capsys: pytest.CaptureFixture[str]) -> None:
    config = SimConfig(enable_prefix_caching=False, enable_prompt_tokens_details=True, time_scale=0.0)
    async with SimWorker(config) as worker:
        code, found, one = await examined(capsys, worker)
    assert code == 1
    assert found["cache_disabled"].startswith("--enable-prefix-caching")
    assert one["probe"]["verdict"] == "flat"


async def test_a_hit_shows_in_the_times_alone_where_nothing_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    # Half a second for a new prompt, on a machine that may have other things to do.
    config = SimConfig(metrics=False, prefill_tokens_per_second=4_000.0)
    async with SimWorker(config) as worker:
        _, found, one = await examined(capsys, worker)
    assert {"cache_unknown", "no_usage_details", "probe_hit"} <= set(found)
    assert one["probe"]["confidence"] == "likely"
    assert one["cache"]["known"] is False


async def test_a_worker_without_the_key_is_told_from_one_with_a_wrong_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SimWorker(SimConfig(api_key="right", time_scale=0.0, enable_prompt_tokens_details=True)) as worker:
        code, found, _ = await examined(capsys, worker)
        assert (code, "key_missing" in found) == (1, True)
        monkeypatch.setenv("ROUTER_AUTH__WORKER_API_KEY", "wrong")
        code, found, _ = await examined(capsys, worker)
        assert (code, "key_refused" in found) == (1, True)
        monkeypatch.setenv("ROUTER_AUTH__WORKER_API_KEY", "right")
        code, found, _ = await examined(capsys, worker)
        assert (code, "probe_hit" in found) == (0, True)


async def test_an_unreachable_worker_makes_the_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with SimWorker(GOOD) as worker:
            code, answer = await run(capsys, "--worker", worker.url, "--worker", url)
    assert code == 2
    assert [one["reachable"] for one in answer["workers"]] == [True, False]
    assert [finding["code"] for finding in answer["workers"][1]["findings"]] == ["unreachable"]


async def test_a_hybrid_whose_prompts_are_under_its_floor_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    async with SimWorker(HYBRID) as worker, httpx.AsyncClient(trust_env=False) as client:
        for number in range(4):
            body = {"prompt": f"chat {number} " * 400, "max_tokens": 1}
            (await client.post(f"{worker.url}/v1/completions", json=body)).raise_for_status()
        code, found, one = await examined(capsys, worker)
    assert code == 1
    assert found["coarse_block"] == "--prefix-match-unit 32"
    assert "below_block_floor" in found
    assert one["under_floor"] == {"prompts": 4, "share_least": 1.0, "share_most": 1.0}
    assert one["probe"]["verdict"] == "hit"  # its prompts are longer


async def test_a_hybrid_of_an_older_release_is_told_both_arguments_then_the_match_unit_then_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = dataclasses.replace(HYBRID, version="0.20.1", held_back_units=1)
    async with SimWorker(before) as worker:
        code, found, one = await examined(capsys, worker)
    assert (code, one["probe"]["verdict"]) == (1, "flat")
    assert found["cache_disabled"] == "--enable-prefix-caching --mamba-cache-mode align"
    aligned = dataclasses.replace(before, mamba_cache_mode="align")
    async with SimWorker(aligned) as worker:
        code, found, one = await examined(capsys, worker)
    assert (code, one["probe"]["verdict"]) == (1, "hit")
    assert found["coarse_block"] == "--prefix-match-unit 32"
    assert one["cache"]["floor_tokens"] == 3_200
    async with SimWorker(dataclasses.replace(aligned, prefix_match_unit=32)) as worker:
        code, found, one = await examined(capsys, worker)
    assert (code, one["probe"]["verdict"]) == (0, "hit")
    assert one["cache"]["hit_unit"] == 32


async def test_a_server_without_health_and_metrics_is_looked_at_all_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with SimWorker(SimConfig(health=False, metrics=False, time_scale=0.0)) as worker:
        code, found, _ = await examined(capsys, worker, "--no-probe")
        assert not worker.calls
    assert code == 0
    assert {"no_health_route", "cache_unknown"} <= set(found)


async def test_a_probe_over_its_budget_is_not_begun(capsys: pytest.CaptureFixture[str]) -> None:
    async with SimWorker(HYBRID) as worker:
        _, found, one = await examined(capsys, worker, "--probe-tokens", "5000")
        assert not worker.calls
    assert "no_probe" in found
    assert one["probe"]["prompts"] == []


async def test_a_worker_that_fails_within_the_probe_has_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    async with SimWorker(GOOD) as worker:
        worker.faults.add({"nth": 3, "times": 1, "action": {"kind": "reset", "after": 0}})
        code, found, one = await examined(capsys, worker)
    assert code == 0
    assert "no_probe" in found
    assert one["probe"]["verdict"] is None
    assert len(one["probe"]["prompts"]) == 2


async def test_a_chat_only_server_is_probed_by_chat(capsys: pytest.CaptureFixture[str]) -> None:
    async with SimWorker(GOOD) as worker:
        action = {"kind": "status", "status": 404}
        worker.faults.add({"path": "/v1/completions", "times": None, "action": action})
        _, found, _ = await examined(capsys, worker)
        assert [record.path for record in worker.calls] == ["/v1/completions", *["/v1/chat/completions"] * 5]
    assert "probe_hit" in found


async def test_settings_name_workers_and_keys_and_the_text_is_for_people(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async with SimWorker(SimConfig(api_key="right", time_scale=0.0, enable_prompt_tokens_details=True)) as worker:
        file = tmp_path / "router.yaml"
        file.write_text(f"workers:\n  - url: {worker.url}\n    api_key: right\n")
        code = await asyncio.to_thread(main, ["--config", str(file)])
    text = capsys.readouterr().out
    assert code == 0
    assert text.startswith(f"{worker_id(worker.url)}  {worker.url}  vLLM 0.33.0  sim-model  blocks of 16 tokens")
    assert "the first again" in text
    assert "Repeated prompts hit the cache (certain:" in text
    assert "right" not in text


def test_wrong_flags_and_settings_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "no workers" in capsys.readouterr().err
    assert main(["--worker", "ftp://x"]) == 2
    assert "http" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--worker", "http://x", "--probe-tokens", "0"])
