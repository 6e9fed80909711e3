"""What was compiled is what runs, where it is asked for, and it speaks with what was not."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from loadtest.fleet import ROOT, ROUTER, RedisProcess, RouterProcess, find_redis, until
from loadtest.simworker import SimConfig, SimProcess
from tests.whole.conftest import require

MODEL = "shared"
BODY: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": 'Where é ends, "so" begins.\n' * 200}],
    "max_tokens": 4,
}


def test_the_router_that_is_meant_is_the_one_that_runs() -> None:
    """PYTHONPATH names a package that scripts/compile made, or the source, or nothing."""
    first = Path((os.environ.get("PYTHONPATH") or str(ROOT)).split(os.pathsep)[0])
    made = (first / ".made-of").exists()
    said = subprocess.run([*ROUTER, "--version"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    assert said.stdout.startswith("prefix-router ")
    assert ("(compiled)" in said.stdout) is made


def test_a_replica_of_source_and_one_that_may_be_compiled_know_the_same(tmp_path: Path) -> None:
    require(find_redis(), "redis-server")
    with ExitStack() as stack:
        redis = stack.enter_context(RedisProcess(tmp_path))
        workers = [stack.enter_context(SimProcess(SimConfig(models=(MODEL,)))) for _ in range(2)]
        urls = [worker.url for worker in workers]
        first = stack.enter_context(RouterProcess(tmp_path, urls, name="one", redis_url=redis.url))
        other = stack.enter_context(RouterProcess(tmp_path, urls, name="other", redis_url=redis.url, package=ROOT))
        for replica in (first, other):
            replica.wait_ready(2)
        for told, asked in ((first, other), (other, first)):
            body = {**BODY, "user": told.url, "messages": [{"role": "system", "content": told.url}, *BODY["messages"]]}
            answer = httpx.post(f"{told.url}/v1/chat/completions", json=body, trust_env=False, timeout=20)
            assert answer.status_code == 200
            blocks = 0
            for _ in until(10, "the other replica's news"):
                explained = httpx.post(f"{asked.url}/router/explain", json=body, trust_env=False, timeout=20).json()
                blocks = explained["prompt"]["blocks"]
                if explained["matched_blocks"] == blocks:
                    break
            assert blocks > 10
