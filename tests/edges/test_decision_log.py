"""Decision lines reach the log in its own form, in batches, and a full disk costs nothing but lines."""

from __future__ import annotations

import asyncio
import io
import logging
import re
from collections.abc import Iterator
from typing import TextIO

import pytest

from router.dataplane.decision_log import FLUSH_SECONDS, MAX_BATCH, MAX_FAILURES, NAME, DecisionLog, _formatted
from router.decisions import DecisionRecord
from router.errors import ConnectFailed

LINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO router\.decisions: "
    r"\[PREFIX\] hit: 905487f1 keeps 64/64 blocks \(slots=0 min=0 slack=3, ~12952 tokens\) request=r1\n"
)


def record() -> DecisionRecord:
    return DecisionRecord(
        "r1", 1.0, "/v1/completions", "m", "905487f1", "hit", 64, 64, 12_800, 12_952, 0, 0, 3, None, attempt=1
    )


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """The root logger writes here, at level info."""
    written = io.StringIO()
    with root_handler(written):
        yield written


class root_handler:  # noqa: N801
    """The root logger with one handler, for a while."""

    def __init__(self, stream: TextIO) -> None:
        self._root = logging.getLogger()
        self._mine = logging.StreamHandler(stream)
        self._before = (self._root.handlers[:], self._root.level)

    def __enter__(self) -> None:
        self._root.handlers[:] = [self._mine]
        self._root.setLevel(logging.INFO)

    def __exit__(self, *_: object) -> None:
        self._root.handlers[:], level = self._before
        self._root.setLevel(level)


async def test_a_line_is_written_a_moment_later(stream: io.StringIO) -> None:
    log = DecisionLog()
    log.add(record())
    assert stream.getvalue() == ""
    await asyncio.sleep(2 * FLUSH_SECONDS)
    assert LINE.fullmatch(stream.getvalue())


async def test_a_full_batch_and_the_end_are_written_at_once(stream: io.StringIO) -> None:
    log = DecisionLog()
    for _ in range(MAX_BATCH):
        log.add(record())
    assert stream.getvalue().count("\n") == MAX_BATCH
    log.add(record())
    log.flush()
    assert stream.getvalue().count("\n") == MAX_BATCH + 1


async def test_above_level_info_nothing_is_kept_or_written(stream: io.StringIO) -> None:
    logging.getLogger(NAME).setLevel(logging.WARNING)
    try:
        log = DecisionLog()
        log.add(record())
        log.flush()
    finally:
        logging.getLogger(NAME).setLevel(logging.NOTSET)
    assert stream.getvalue() == ""


async def test_above_level_info_a_failure_brings_no_decisions_along(stream: io.StringIO) -> None:
    logging.getLogger(NAME).setLevel(logging.WARNING)
    try:
        log = DecisionLog()
        log.failed(b"r", ConnectFailed("nobody there"))
        log.add(record())
        log.flush()
    finally:
        logging.getLogger(NAME).setLevel(logging.NOTSET)
    assert [line.split(" ")[2] for line in stream.getvalue().splitlines()] == ["WARNING"]


async def test_a_level_that_changes_counts_from_the_next_batch_on(stream: io.StringIO) -> None:
    log = DecisionLog()
    log.add(record())
    logging.getLogger(NAME).setLevel(logging.WARNING)
    try:
        log.flush()
        log.add(record())
        log.flush()
    finally:
        logging.getLogger(NAME).setLevel(logging.NOTSET)
    assert stream.getvalue().count("\n") == 1


class FullDisk(io.StringIO):
    """A file whose writes reach the disk, which is full."""

    tried = 0

    def flush(self) -> None:
        self.tried += 1
        raise OSError(28, "No space left on device")


async def test_a_full_disk_fails_nobody() -> None:
    full = FullDisk()
    with root_handler(full):
        log = DecisionLog()
        for _ in range(2):
            log.add(record())
            log.flush()
    assert full.tried == 2


async def test_a_retry_says_so_and_failures_come_counted(stream: io.StringIO) -> None:
    log = DecisionLog()
    second = record()
    second.attempt = 2
    log.add(second)
    for number in range(MAX_FAILURES + 7):
        log.failed(b"r%d" % number, ConnectFailed("nobody there"))
    log.flush()
    first, *failures, rest = stream.getvalue().splitlines()
    assert first.endswith("request=r1 attempt=2")
    assert len(failures) == MAX_FAILURES
    assert failures[0].endswith("WARNING router.decisions: failed: 502 upstream_connect_failed request=r0")
    assert rest.endswith("failed: 7 more requests")


async def test_clients_that_left_before_a_decision_are_named_and_crowds_of_them_counted(stream: io.StringIO) -> None:
    log = DecisionLog()
    for number in range(MAX_FAILURES + 3):
        log.left(b"r%d" % number, "body")
    log.failed(b"f", ConnectFailed("nobody there"))
    log.flush()
    log.left(b"later", "queue")
    log.flush()
    *lines, failed, rest, later = stream.getvalue().splitlines()
    assert len(lines) == MAX_FAILURES
    assert lines[0].endswith("INFO router.decisions: left: stage=body request=r0")
    assert failed.endswith("request=f")
    assert rest.endswith("INFO router.decisions: left: 3 more requests")
    assert later.endswith("left: stage=queue request=later")


def test_each_line_has_its_own_moment() -> None:
    at = 1_700_000_000.0
    lines = _formatted(
        [(at + 0.25, "INFO", "a"), (at + 0.5, "INFO", "b"), (at + 1.125, "INFO", "c"), (at, "INFO", "d")]
    )
    named = logging.makeLogRecord({"name": NAME, "levelname": "INFO"})
    honest = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    for line, (moment, text) in zip(lines, [(0.25, "a"), (0.5, "b"), (1.125, "c"), (0.0, "d")], strict=True):
        named.created, named.msecs, named.msg = at + moment, moment % 1 * 1000, text
        assert line == honest.format(named) + "\n"
