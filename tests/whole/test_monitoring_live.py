"""The shipped dashboard and alerts against what loaded replicas expose, asked of a real Prometheus."""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from loadtest.fleet import Owned, RedisProcess, RouterProcess, find_redis, free_port, replicas, until, wait_for_port
from loadtest.simworker import SimConfig, SimProcess
from loadtest.simworker.faults import Action, Rule
from tests.shipped import CONFIG, needed
from tests.whole.conftest import QUICK_HEALTH, require

PANELS: list[dict[str, Any]] = json.loads((CONFIG / "grafana/dashboards/prefix-router.json").read_text())["panels"]
TARGETS = [
    pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")
    for panel in PANELS
    for target in panel.get("targets", [])
]
RULES: list[dict[str, Any]] = yaml.safe_load((CONFIG / "alerts.yml").read_text())["groups"][0]["rules"]
FAST = SimConfig(
    models=("plain",),
    prefill_tokens_per_second=200_000.0,
    decode_seconds_per_token=0.0005,
    enable_prompt_tokens_details=True,
    dev_mode=True,
)
FLEET = [
    FAST,
    FAST,
    # Its answers say nothing of its cache, so that its own counters are looked at.
    replace(FAST, models=("silent",), enable_prompt_tokens_details=False),
    replace(FAST, models=("fragile",)),
    replace(FAST, models=("fragile",)),
    replace(FAST, models=("gone",)),
]
TURN = "A beginning that is told again and again, and grows with each turn of the conversation. " * 50
PATIENCE = 40.0


class Prometheus(Owned):
    """A Prometheus that scrapes the replicas and the workers every second."""

    def __init__(self, directory: Path, replicas: list[str], workers: list[str]) -> None:
        super().__init__()
        self.port = free_port()
        self._directory = directory
        jobs = {"prefix-router": replicas, "vllm": workers}
        self._config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": [url.removeprefix("http://") for url in urls]}]}
                for name, urls in jobs.items()
            ],
        }

    def start(self) -> None:
        config = self._directory / "prometheus.yml"
        config.write_text(yaml.safe_dump(self._config))
        words = [needed("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={self._directory / 'data'}"]
        words.append(f"--web.listen-address=127.0.0.1:{self.port}")
        with (self._directory / "prometheus.log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log)
        wait_for_port(self.port, PATIENCE)

    def ask(self, expression: str) -> list[float]:
        """The values of an instant query."""
        url = f"http://127.0.0.1:{self.port}/api/v1/query"
        answer = httpx.get(url, params={"query": expression}, trust_env=False, timeout=10).json()
        assert answer["status"] == "success", answer
        return [float(sample["value"][1]) for sample in answer["data"]["result"]]

    def wait_for(self, expression: str) -> None:
        """Until there is a value above 0."""
        for _ in until(PATIENCE, expression):
            if any(value > 0 for value in self.ask(expression)):
                return


class Load:
    """Requests of every kind, so that every metric has something to say."""

    def __init__(self, routers: list[RouterProcess], workers: list[SimProcess]) -> None:
        self.routers = routers
        self.workers = workers
        self._client = httpx.Client(trust_env=False, timeout=30)
        # By turns they would fall in step with the workers, which are taken by turns too while all are equal.
        self._random = random.Random(1)

    def close(self) -> None:
        self._client.close()

    def say(self, model: str, number: int = 0, turns: int = 1) -> int:
        """One request of a conversation; its status."""
        messages = [{"role": "user", "content": f"Conversation {number}. " + TURN * turns}]
        body = {"model": model, "max_tokens": 4, "messages": messages}
        router = self.routers[0] if model == "plain" else self._random.choice(self.routers)
        return self._client.post(f"{router.url}/v1/chat/completions", json=body).status_code

    def leave(self) -> None:
        """A client that ends its stream early."""
        body = {"model": "plain", "max_tokens": 2_000, "stream": True, "messages": [{"role": "user", "content": TURN}]}
        url = f"{self.routers[0].url}/v1/chat/completions"
        with self._client.stream("POST", url, json=body) as answer:
            next(answer.iter_raw())

    def empty_caches(self) -> None:
        for worker in self.workers[:2]:
            self._client.post(f"{worker.url}/reset_prefix_cache").raise_for_status()

    def play(self) -> None:
        """Conversations that hit; a cache that is emptied; failures, retries, ejections, refusals, lost clients."""
        for turns in (1, 2, 3):
            for number in range(8):
                assert self.say("plain", number, turns) == 200
                self.say("silent", number, turns)
        self.empty_caches()
        # Three in a row that one replica sees fall short tell it that a cache was emptied.
        for number in range(8):
            assert self.say("plain", number, 4) == 200
        for number in range(40):
            self.say("fragile", number)
        self.leave()
        assert self.say("gone") == 503


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    require(find_redis(), "redis-server")
    needed("prometheus")
    directory = tmp_path_factory.mktemp("monitored")
    with ExitStack() as stack:
        workers = [SimProcess(config) for config in FLEET]
        for worker in workers:
            worker.launch()
            stack.callback(worker.stop)
        for worker in workers:
            worker.wait_ready()
        redis = stack.enter_context(RedisProcess(directory))
        urls = [worker.url for worker in workers]
        settings = {"redis_url": redis.url, "environment": QUICK_HEALTH}
        routers = stack.enter_context(replicas(directory, 2, urls, **settings))
        workers[3].add_faults(Rule(action=Action(kind="reset"), path="/v1/chat/completions", times=None))
        workers[5].kill()
        made = Load(routers, workers)
        stack.callback(made.close)
        yield made


@pytest.fixture(scope="module")
def prometheus(load: Load, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """After two rounds of the load, so that counters have grown between two scrapes."""
    directory = tmp_path_factory.mktemp("prometheus")
    urls = [router.url for router in load.routers]
    with Prometheus(directory, urls, [worker.url for worker in load.workers]) as started:
        assert isinstance(started, Prometheus)
        started.wait_for('count(up{job="prefix-router"} == 1) == 2')
        load.play()
        for name in ("shed", "counter_checks", "ejections", "emptied_caches"):
            started.wait_for(f"sum(router_{name}_total)")
        load.play()
        started.wait_for("sum(router_shed_total) >= 2")
        # One more scrape, so that all of what it saw belongs to one moment.
        at = max(started.ask("timestamp(router_active_requests)"))
        started.wait_for(f"min(timestamp(router_active_requests)) > {at}")
        yield started


def asked(expression: str) -> str:
    """An expression with Grafana's variables filled in."""
    return expression.replace("$__rate_interval", "5m").replace("$model", ".*")


@pytest.mark.parametrize("expression", TARGETS)
def test_no_panel_is_without_data(prometheus: Prometheus, expression: str) -> None:
    values = prometheus.ask(asked(expression))
    assert values
    assert any(math.isfinite(value) for value in values)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_series_that_exist(prometheus: Prometheus, rule: dict[str, Any]) -> None:
    assert isinstance(prometheus.ask(rule["expr"]), list)
    selectors = re.findall(r"\b((?:router_\w+|up)(?:\{[^}]*\})?)", rule["expr"])
    assert selectors
    for selector in selectors:
        # Which replica is down, or what went wrong, is what the alert waits for: only the metric must be there.
        name, _, _ = selector.partition("{")
        assert prometheus.ask(name), selector


# This one counts looks at the workers' counters, which promtool takes for a slip.
LINT = {"router_counter_checks_total metric name should not include type 'counter'"}


def test_promtool_accepts_the_exposition(prometheus: Prometheus, load: Load) -> None:
    for router in load.routers:
        words = [needed("promtool"), "check", "metrics"]
        done = subprocess.run(words, input=router.metrics(), capture_output=True, text=True, timeout=30, check=False)
        assert set(done.stderr.splitlines()) | set(done.stdout.splitlines()) <= LINT
