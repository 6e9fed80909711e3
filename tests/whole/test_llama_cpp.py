"""The main job on a real engine: llama.cpp servers, whose prefix reuse nobody here wrote."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.conversation import Player, Shape, TurnResult, format_table, play, user_turns
from loadtest.engines.llama_cpp import (
    MODEL_NAME,
    EngineError,
    LlamaServer,
    free_port,
    installed,
    start_llama_workers,
    write_model,
)

pytestmark = [
    pytest.mark.llama_cpp,
    pytest.mark.skipif(not installed(), reason="the extra is not installed: pip install 'prefix-router[llama-cpp]'"),
    # Prefill is the point of these tests, and it is slow beside other work.
    pytest.mark.timeout(180),
]

# One token per byte; long enough that a prefill takes seconds, short enough that a few of them do not take minutes.
SHAPE = Shape(turns=5, first_tokens=4_000, growth_tokens=60, answer_tokens=4, bytes_per_token=1.0)

# A proxy set for the outside world has no business on the loopback.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("llama")


@pytest.fixture(scope="module")
def workers(directory: Path) -> Iterator[list[LlamaServer]]:
    with start_llama_workers(2, directory) as servers:
        yield servers


@contextlib.contextmanager
def router(workers: list[LlamaServer], log_path: Path) -> Iterator[str]:
    """The URL of a router process in front of the workers, ready."""
    port = free_port()
    flags = [flag for worker in workers for flag in ("--worker", worker.url)]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "router", "serve", *flags, "--host", "127.0.0.1", "--port", str(port)],
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_ready(process, url, log_path)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


def wait_ready(process: subprocess.Popen[bytes], url: str, log_path: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), DIRECT.open(f"{url}/ready", timeout=2):
            return
        time.sleep(0.05)
    pytest.fail(f"the router did not become ready:\n{log_path.read_text(errors='replace')[-2_000:]}")


def typical_follow_up(results: list[TurnResult]) -> float:
    """Seconds; the median, since one turn may be slowed by other work on the machine."""
    return statistics.median(result.seconds for result in results[1:])


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_conversation_keeps_its_worker_and_its_cache(
    workers: list[LlamaServer], tmp_path: Path, stream: bool
) -> None:
    turns = user_turns(31 + stream, SHAPE)
    with router(workers, tmp_path / "router.log") as url:
        results = play([url], turns, MODEL_NAME, max_tokens=SHAPE.answer_tokens, stream=stream)
    table = format_table(results)
    assert len({result.worker for result in results}) == 1, table
    assert results[0].worker is not None, table
    assert [result.reason for result in results] == ["miss", "hit", "hit", "hit", "hit"], table
    assert typical_follow_up(results) < results[0].seconds / 5, table
    assert {result.finish_reason for result in results} == {"length"}, table


def test_switching_workers_pays_the_whole_prefill(workers: list[LlamaServer]) -> None:
    turns = user_turns(7, SHAPE)
    here, there = (worker.url for worker in workers)
    # Whoever asks in order finds turns 1 to 3 here and turn 4 there.
    with Player([here, here, here, there], MODEL_NAME, max_tokens=SHAPE.answer_tokens, stream=False) as player:
        results = [player.say(text) for text in turns[:4]]
    table = format_table(results)
    assert results[0].prompt_tokens == pytest.approx(SHAPE.first_tokens, abs=50), table
    assert max(results[1].seconds, results[2].seconds) < results[3].seconds / 2, table
    assert results[3].seconds > results[0].seconds / 2, table


def test_the_model_is_the_same_file_each_time(tmp_path: Path) -> None:
    write_model(tmp_path / "one.gguf")
    write_model(tmp_path / "two.gguf")
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "two.gguf").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.gguf", "two.gguf"]


def test_a_server_ends_with_its_block(directory: Path) -> None:
    with LlamaServer(directory) as server:
        os.kill(server.pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)
    with pytest.raises(urllib.error.URLError):
        DIRECT.open(f"{server.url}/v1/models", timeout=2)


def test_a_server_that_cannot_start_says_so_at_once(directory: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(EngineError, match="ended while starting"), LlamaServer(directory, python=_failing_program()):
        pass
    assert time.monotonic() - begun < 10


def _failing_program() -> str:
    path = shutil.which("false")
    assert path is not None
    return path
