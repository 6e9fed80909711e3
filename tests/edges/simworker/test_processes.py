"""The simulated worker's command line, and workers as processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest.simworker import Adapter, SimConfig, SimProcess, SimWorker, start_workers
from loadtest.simworker.config import parse, to_arguments
from tests.edges.simworker.life_rig import FAST, chat

ROOT = Path(__file__).resolve().parents[3]


def test_the_command_line_says_all_there_is_to_say() -> None:
    config = SimConfig(
        models=("a", "b"),
        adapters=(Adapter("l", "a"),),
        api_key="k",
        max_model_len=1000,
        time_scale=0.5,
        enable_prefix_caching=False,
        enable_prompt_tokens_details=True,
        metrics=False,
        max_num_queued_reqs=3,
        mamba_cache_mode="align",
        prefix_match_unit=32,
    )
    assert parse(to_arguments(config)) == config
    assert parse([]) == SimConfig()


@pytest.mark.parametrize("words", [["--block-size", "0"], ["--time-scale", "-1"], ["--lora", "x"], ["--nope"]])
def test_settings_that_cannot_work(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.simworker", *words], capture_output=True, cwd=ROOT, timeout=20, check=False
    )
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr


# -- processes


def call(worker: SimProcess, **fields: Any) -> dict[str, Any]:
    body = chat(200, **fields)
    shown: dict[str, Any] = httpx.post(f"{worker.url}/v1/chat/completions", json=body, timeout=10).json()
    return shown


def test_processes_start_and_end_together() -> None:
    config = SimConfig(time_scale=0.0, enable_prompt_tokens_details=True)
    with start_workers(2, config) as workers:
        assert len({worker.port for worker in workers}) == 2
        assert call(workers[0])["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert call(workers[0])["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert call(workers[1])["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert [len(worker.requests(path="/v1/chat/completions")) for worker in workers] == [2, 1]
        pids = [worker.pid for worker in workers]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_one_process_can_be_several_workers() -> None:
    with SimProcess(SimConfig(time_scale=0.0), count=3) as fleet:
        assert len(set(fleet.urls)) == 3
        assert fleet.urls[0] == fleet.url
        assert all(httpx.get(f"{url}/health").status_code == 200 for url in fleet.urls)


async def test_waiting_for_what_does_not_come() -> None:
    async with SimWorker(FAST) as worker:
        with pytest.raises(TimeoutError):
            await worker.until(lambda: worker.aborted > 0, 0.01)


def test_a_killed_process_comes_back_empty_at_the_same_address() -> None:
    with SimProcess(SimConfig(time_scale=0.0, enable_prompt_tokens_details=True)) as worker:
        url = worker.url
        born = worker.state()["started_at"]
        call(worker)
        worker.restart()
        assert worker.url == url
        assert worker.state()["started_at"] > born
        assert call(worker)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_paused_process_takes_connections_and_does_not_answer() -> None:
    with SimProcess(SimConfig(time_scale=0.0)) as worker:
        worker.pause()
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(f"{worker.url}/health", timeout=0.2)
        worker.resume()
        assert httpx.get(f"{worker.url}/health", timeout=10).status_code == 200


def test_scripting_a_process() -> None:
    with SimProcess(SimConfig(time_scale=0.0)) as worker:
        worker.add_faults({"action": {"kind": "status", "status": 500}})
        worker.clear_faults()
        assert "choices" in call(worker)
        worker.reset()
        assert worker.requests() == []
        worker.refuse(30)
        with pytest.raises(httpx.ConnectError):
            call(worker)


def test_sigterm_and_the_parents_end_both_end_it() -> None:
    command = [sys.executable, "-m", "loadtest.simworker", "--exit-with-parent", "--count", "2"]
    for end in ("signal", "stdin"):
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            lines = [process.stdout.readline() for _ in range(2)]
            assert all(line.startswith(b"listening http://127.0.0.1:") for line in lines)
            assert lines[0] != lines[1]
            if end == "signal":
                process.send_signal(signal.SIGTERM)
            else:
                process.stdin.close()
            assert process.wait(10) == 0


def test_a_process_that_cannot_start_says_so() -> None:
    with SimProcess(SimConfig()) as worker, pytest.raises(RuntimeError, match="did not start"):
        SimProcess(SimConfig(port=worker.port)).start()
