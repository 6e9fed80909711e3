"""One mutant against the tests that run its line, in a child of a process that has everything imported and collected.

Faults within functions are put into the running program, as the code of the function. Those in what runs at import need
a child that has imported nothing of the program yet, and are dearer by as much as imports cost.
"""

from __future__ import annotations

import ast
import gc
import importlib
import importlib.machinery
import inspect
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from tests.mutate.covering import PYTEST, ROOT

HEAVY = (
    "aiohttp", "concurrent.futures", "fastapi", "fastapi.testclient", "h11", "http.client", "http.server", "httptools",
    "httpx", "hypothesis", "msgspec", "numpy", "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk.trace", "prometheus_client", "pydantic_settings", "pytest_asyncio", "redis.asyncio",
    "redis.asyncio.cluster", "redis.asyncio.sentinel", "unittest.mock", "uvicorn", "uvloop", "xxhash", "yaml",
)  # fmt: skip


def prepare() -> None:
    """Import what every child would otherwise import again, and none of the code under test."""
    for name in HEAVY:
        with suppress(ImportError):
            importlib.import_module(name)
    os.environ["CI"] = "true"  # with which properties are tried with the same inputs each time
    sys.dont_write_bytecode = True
    assert not any(name.split(".")[0] in {"router", "loadtest"} for name in sys.modules)


class Trial:
    """A child at work: `work` returns its exit code, 0 if no test has noticed anything."""

    def __init__(self, work: Callable[[], int], seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._result: str | None = None
        self._pid = os.fork()
        if self._pid == 0:
            _live(work)

    def result(self) -> str | None:
        """`killed`, `survived`, `timeout`, or `broken` where the child itself failed; None while it runs."""
        if self._result is not None:
            return self._result
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            self._result = {0: "survived", 1: "killed"}.get(os.waitstatus_to_exitcode(status), "broken")
        elif time.monotonic() > self._end:
            os.killpg(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._result = "timeout"
        return self._result


def _live(work: Callable[[], int]) -> None:
    """A child's whole life; never returns."""
    result = 3
    try:
        os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        result = work()
    finally:
        os._exit(result)


# -- faults at import ----------------------------------------------------------------------------------------------


def run_anew(file: str, code: CodeType, tests: list[str]) -> int:
    """Import everything, this code in place of the file's, and run the tests."""
    usual = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, fullname: str) -> CodeType | None:
        return code if self.path == file else usual(self, fullname)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]
    return 1 if pytest.main([*PYTEST, "-x", "--no-header", "--tb=no", *tests]) else 0


# -- faults in functions -------------------------------------------------------------------------------------------


def functions(code: CodeType) -> Iterator[CodeType]:
    """The functions of a module and its classes; what is within functions belongs to them."""
    for const in code.co_consts:
        if isinstance(const, CodeType):
            if const.co_flags & inspect.CO_OPTIMIZED:
                yield const
            else:
                yield from functions(const)


def changed(tree: ast.Module, code: CodeType, file: str) -> CodeType | None:
    """The function that a mutant has otherwise than the module; None if the fault is in what runs at import."""
    before = {_name(function): function for function in functions(compile(tree, file, "exec"))}
    for function in functions(code):
        if before.get(_name(function)) != function:
            return function
    return None


def _name(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


class Program:
    """The functions that are loaded, and the tests that are collected."""

    def __init__(self, items: list[pytest.Item]) -> None:
        self._items = {item.nodeid: item for item in items}
        self._functions: dict[tuple[str, str, int], list[FunctionType]] = {}
        for thing in gc.get_objects():
            if isinstance(thing, FunctionType):
                self._functions.setdefault(_name(thing.__code__), []).append(thing)

    def run(self, tests: list[str], function: CodeType) -> int:
        """Put the function in place of the one that the program has, and run the tests up to the first failure."""
        for thing in self._functions[_name(function)]:
            thing.__code__ = function
        items = [self._items[test] for test in tests if test in self._items]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if item.session.testsfailed:
                return 1
        return 0


def file_of(module: str) -> str:
    """The name that a module's code has."""
    return str(Path(ROOT / module))
