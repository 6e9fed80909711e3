"""`python -m loadtest.simworker`: serve until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import os
import signal
import sys

import uvloop

from loadtest.simworker.config import SimConfig, build_parser, from_arguments
from loadtest.simworker.vocabulary import Vocabulary
from loadtest.simworker.worker import SimWorker


async def serve(config: SimConfig, count: int, *, exit_with_parent: bool) -> None:
    """Serve `count` workers and print one line for each."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    if exit_with_parent:
        _watch_parent(loop, ended)
    vocabulary = Vocabulary()
    async with contextlib.AsyncExitStack() as stack:
        for index in range(count):
            port = config.port + index if config.port else 0
            worker = await stack.enter_async_context(SimWorker(dataclasses.replace(config, port=port), vocabulary))
            print(f"listening {worker.url}", flush=True)
        await ended.wait()


def _watch_parent(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    """Standard input closes when whoever started this process dies."""

    def read() -> None:
        if not os.read(0, 1024):
            loop.remove_reader(0)
            ended.set()

    loop.add_reader(0, read)


def main() -> int:
    arguments = build_parser().parse_args()
    try:
        config = from_arguments(arguments)
    except ValueError as error:
        print(f"simworker: {error}", file=sys.stderr)
        return 2
    # What is loaded by now stays: the collector need not walk through it again and again.
    gc.freeze()
    try:
        uvloop.run(serve(config, arguments.count, exit_with_parent=arguments.exit_with_parent))
    except OSError as error:
        print(f"simworker: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
