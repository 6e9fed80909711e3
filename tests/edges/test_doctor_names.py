"""The doctor looks at workers that settings name by a name, as it does at those that they list."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.simworker import SimConfig
from loadtest.simworker.process import SimProcess
from router.doctor import main
from router.workers.registry import worker_id
from tests.dns_server import DnsServer

NAME = "vllm.example"


@pytest.fixture(scope="module")
def worker() -> Iterator[SimProcess]:
    with SimProcess(SimConfig(prefill_tokens_per_second=500_000.0)) as running:
        yield running


@pytest.fixture
def config(worker: SimProcess, tmp_path: Path) -> Iterator[tuple[DnsServer, str]]:
    with DnsServer() as server:
        file = tmp_path / "router.yaml"
        file.write_text(f"workers_dns: {NAME}:{worker.port}\ndns: {{server: '{server.address}', timeout: 2}}\n")
        yield server, str(file)


def test_the_addresses_of_a_name_are_looked_at(
    config: tuple[DnsServer, str], worker: SimProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    server, file = config
    server.records[NAME] = ["127.0.0.1"]
    assert main(["--config", file, "--no-probe"]) in (0, 1)
    assert worker_id(worker.url) in capsys.readouterr().out


def test_workers_that_are_named_are_the_ones_that_are_meant(
    config: tuple[DnsServer, str], worker: SimProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    server, file = config
    assert main(["--config", file, "--no-probe", "--worker", worker.url]) in (0, 1)
    assert worker_id(worker.url) in capsys.readouterr().out
    assert server.asked == []


def test_a_name_without_addresses_and_a_server_that_fails_are_told_apart(
    config: tuple[DnsServer, str], capsys: pytest.CaptureFixture[str]
) -> None:
    server, file = config
    assert main(["--config", file]) == 2
    assert "no workers: the names in workers_dns have no addresses" in capsys.readouterr().err
    server.code = 2
    assert main(["--config", file]) == 2
    assert "workers_dns: the name server answered with code 2" in capsys.readouterr().err
