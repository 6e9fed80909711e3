"""Settings read again: asked for, or because a file is another one; taken over whole, or not at all."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from router import reload
from router.reload import Reloader, Sources
from router.settings import Settings, load

SECONDS = 10.0  # more than any wait here takes


@dataclass
class Follower:
    """A reloader of one file, and what it has taken over."""

    file: Path
    applied: list[Settings] = field(default_factory=list)
    reloader: Reloader = field(init=False)

    def __post_init__(self) -> None:
        sources = Sources(lambda: load(self.file), (self.file,))
        self.reloader = Reloader(sources, self.applied.append, load(self.file))

    @property
    def results(self) -> dict[str, int]:
        return {result: count for result, count in self.reloader.results.items() if count}


@asynccontextmanager
async def following(file: Path, *, late: bool = False) -> AsyncIterator[Follower]:
    follower = Follower(file)
    task = asyncio.create_task(follower.reloader.run(late=late))
    try:
        await asyncio.sleep(0)
        yield follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    for _ in iter(condition, True):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


def write(file: Path, text: str) -> None:
    file.write_text(text)


def read_and_remove(file: Path) -> str:
    text = file.read_text()
    file.unlink()
    return text


def lead_elsewhere(link: Path, target: Path) -> None:
    """Put another link in the place of one, as Kubernetes does."""
    fresh = link.with_name("fresh")
    fresh.symlink_to(target)
    fresh.replace(link)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "POLL_SECONDS", 0.02)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "router.yaml"
    write(file, "health: {fall: 3}\n")
    return file


async def test_a_file_that_changes_is_read_again(file: Path) -> None:
    async with following(file) as follower:
        write(file, "health: {fall: 4}\n")
        await until(lambda: bool(follower.applied))
        assert follower.applied[0].health.fall == 4
        write(file, "health: {fall: 5}\nport: 1\n")
        await until(lambda: len(follower.applied) == 2)
        assert (follower.applied[1].health.fall, follower.applied[1].port) == (5, 8080)
        assert follower.results == {"ok": 2}


async def test_a_link_that_leads_to_another_file_counts_as_a_change(file: Path, tmp_path: Path) -> None:
    link, other = tmp_path / "link.yaml", tmp_path / "other.yaml"
    lead_elsewhere(link, file)
    write(other, "health: {fall: 7}\n")
    async with following(link) as follower:
        lead_elsewhere(link, other)
        await until(lambda: bool(follower.applied))
        assert follower.applied[0].health.fall == 7


async def test_the_file_of_keys_is_followed_too_also_one_that_was_named_later(file: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    write(keys, "alpha canary-1\n")
    async with following(file) as follower:
        write(file, f"auth: {{keys_file: {keys}}}\n")
        await until(lambda: len(follower.applied) == 1)
        write(keys, "alpha canary-1\nbeta canary-2\n")
        await until(lambda: len(follower.applied) == 2)
        assert [tenant for tenant, _ in follower.applied[1].auth.client_keys] == ["alpha", "beta"]


@pytest.mark.parametrize("text", ["health: {fal: 4}\n", "health: {fall: [\n", "health: {fall: 0}\n"])
async def test_what_is_wrong_changes_nothing_and_is_logged_with_its_line(
    file: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(file) as follower:
        with caplog.at_level(logging.INFO, "router"):
            write(file, text)
            await until(lambda: bool(follower.results))
        assert follower.results == {"refused": 1}
        assert follower.applied == []
        [error] = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert "line " in error.getMessage()
        write(file, "health: {fall: 6}\n")
        await until(lambda: bool(follower.applied))
        assert follower.applied[0].health.fall == 6


async def test_a_file_that_is_gone_for_a_moment_is_no_reason_to_forget_anything(file: Path) -> None:
    async with following(file) as follower:
        text = read_and_remove(file)
        await until(lambda: follower.results == {"refused": 1})
        write(file, text)
        await until(lambda: follower.results == {"refused": 1, "unchanged": 1})
        assert follower.applied == []


async def test_it_is_read_when_asked_for_though_it_seems_the_same(file: Path) -> None:
    async with following(file) as follower:
        follower.reloader.ask()
        await until(lambda: follower.results == {"unchanged": 1})


async def test_what_waits_for_a_restart_is_said_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with following(file) as follower:
        with caplog.at_level(logging.INFO, "router"):
            write(file, "port: 1\nhealth: {fall: 3}\n")
            await until(lambda: follower.results == {"ok": 1})
            follower.reloader.ask()
            await until(lambda: follower.results == {"ok": 1, "unchanged": 1})
        [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert line == "changed, and in force after a restart: port"
        assert follower.applied[0].port == 8080


async def test_a_process_that_comes_late_looks_at_once_whether_it_was_told_what_is_true_now(file: Path) -> None:
    follower = Follower(file)
    write(file, "health: {fall: 8}\n")
    task = asyncio.create_task(follower.reloader.run(late=True))
    await until(lambda: bool(follower.applied))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert follower.applied[0].health.fall == 8
    assert follower.results == {}
