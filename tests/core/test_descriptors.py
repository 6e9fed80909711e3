"""How many connections a number of descriptors is good for."""

from __future__ import annotations

import resource

import pytest

from router.__main__ import main
from router.descriptors import connections_for, descriptor_warnings, enough_for, raise_limit


@pytest.mark.parametrize(
    ("limit", "connections"), [(10, 1), (41, 1), (64, 12), (256, 108), (1_024, 448), (8_192, 3_840), (65_536, 32_512)]
)
def test_each_client_may_need_a_descriptor_at_a_worker_too(limit: int, connections: int) -> None:
    assert connections_for(limit) == connections
    assert connections == 1 or 2 * connections < limit


def test_a_low_limit_is_worth_a_line() -> None:
    assert descriptor_warnings(8_192) == []
    [line] = descriptor_warnings(64)
    assert "64 file descriptors" in line
    assert "12 clients" in line


@pytest.mark.parametrize(("connections", "wanted"), [(None, 8_192), (1, 514), (4_000, 8_512)])
def test_what_is_enough_follows_from_the_clients_that_are_to_have_room(connections: int | None, wanted: int) -> None:
    assert enough_for(connections) == wanted
    assert connections is None or connections_for(wanted) >= connections


@pytest.mark.parametrize("command", ["serve", "check-config"])
def test_k8_a_strict_replica_does_not_start_with_too_few(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("router.__main__.raise_limit", lambda: 1_024)
    monkeypatch.setenv("ROUTER_LIMITS__STRICT_DESCRIPTORS", "true")
    assert main([command, "--worker", "http://a"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "1024 file descriptors (ulimit -n), and limits.strict_descriptors wants 8192" in line
    monkeypatch.setenv("ROUTER_LIMITS__CLIENT_CONNECTIONS", "256")
    assert main(["check-config", "--worker", "http://a"]) == 0


@pytest.mark.parametrize(
    ("limits", "asked", "effect"),
    [
        ((64, 4_096), (4_096, 4_096), 4_096),
        ((64, resource.RLIM_INFINITY), (65_536, resource.RLIM_INFINITY), 65_536),
        ((1_024, 1_048_576), (65_536, 1_048_576), 65_536),
        ((4_096, 4_096), None, 4_096),
        ((100_000, 200_000), None, 100_000),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None, 65_536),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_the_hard_one_allows(
    limits: tuple[int, int], asked: tuple[int, int] | None, effect: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, wanted: calls.append(wanted))
    assert raise_limit() == effect
    assert calls == ([asked] if asked else [])


def test_a_system_that_refuses_leaves_the_limit_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(kind: int, wanted: tuple[int, int]) -> None:
        raise ValueError

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, 4_096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_limit() == 64
