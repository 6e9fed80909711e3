"""The command line of `prefix-router top`: the fleet, live."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Final, TextIO

from router.flags import Parser
from router.terminal.ask import DEFAULT_URL, KEY_VARIABLE, Refused, Replica, Trouble
from router.terminal.screen import View, decided, lines
from router.terminal.style import Style

MAX_REPLICAS: Final = 32
WIDE: Final = 200
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _LINE_END, _SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"
_REQUESTS: Final = re.compile(r"^router_affinity_decisions_total(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


def main(argv: Sequence[str] | None = None) -> int:
    """Show the fleet until it is interrupted, or once; 2 if no replica answers."""
    arguments = parser().parse_args(argv)
    urls = list(dict.fromkeys(arguments.url or [DEFAULT_URL]))[:MAX_REPLICAS]
    out = sys.stdout
    try:
        replicas = [Replica(url, arguments.admin_key) for url in urls]
    except Trouble as trouble:
        sys.stderr.write(f"prefix-router top: {trouble}\n")
        return 2
    style = Style(colour=out.isatty() and "NO_COLOR" not in os.environ)
    with ThreadPoolExecutor(len(replicas)) as pool:
        if arguments.once or not out.isatty():
            return _once(replicas, style, out, pool)
        with contextlib.suppress(KeyboardInterrupt):
            _live(replicas, style, out, pool, arguments.interval)
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = Parser(prog="prefix-router top", description="The fleet in a terminal, live.")
    add = made.add_argument
    add("--url", action="append", help=f"a replica; may be repeated (default {DEFAULT_URL})")
    add("--admin-key", metavar="KEY", help=f"where replicas have one (default: the variable {KEY_VARIABLE})")
    add("--interval", type=_interval, default=1.0, metavar="SECONDS", help="between two looks (default 1)")
    add("--once", action="store_true", help="print once and end; also where the output is no terminal")
    return made


def look(replica: Replica) -> View:
    """What a replica says of itself now; without the admin key that is the fleet alone."""
    try:
        return View(replica.url, replica.get("/router/state"))
    except Trouble as trouble:
        if not trouble.locked:
            return View(replica.url, trouble=str(trouble).removeprefix(f"{replica.url}: "))
        said = str(trouble).removeprefix(f"{replica.url}: ")
    except Refused as refused:
        return View(replica.url, trouble=str(refused))
    try:
        rows = replica.get("/router/workers")["workers"]
        requests = sum(float(found) for found in _REQUESTS.findall(replica.text("/metrics")))
    except (Trouble, Refused):
        return View(replica.url, trouble=said)
    return View(replica.url, trouble=said, workers=rows, requests=requests)


def _once(replicas: Sequence[Replica], style: Style, out: TextIO, pool: ThreadPoolExecutor) -> int:
    views = list(pool.map(look, replicas))
    width = shutil.get_terminal_size().columns if out.isatty() else WIDE
    out.write("\n".join(lines(views, style, width)) + "\n")
    return 0 if any(view.state is not None or view.workers for view in views) else 2


def _live(replicas: Sequence[Replica], style: Style, out: TextIO, pool: ThreadPoolExecutor, interval: float) -> None:
    before: dict[str, tuple[float, float]] = {}
    with _interrupts() as interrupted, _screen(out):
        while not interrupted.is_set():
            began = time.monotonic()
            views = [_with_rate(view, before, time.monotonic()) for view in pool.map(look, replicas)]
            size = shutil.get_terminal_size()
            made = lines(views, style, size.columns, size.lines)
            out.write(_HOME + (_LINE_END + "\r\n").join(made) + _LINE_END + _SCREEN_END)
            out.flush()
            time.sleep(max(0.05, interval - (time.monotonic() - began)))


def _with_rate(view: View, before: dict[str, tuple[float, float]], now: float) -> View:
    """The view with its decisions a second; a replica that has started anew begins from nothing."""
    count = decided(view)
    if count is None:
        before.pop(view.url, None)
        return view
    then = before.get(view.url)
    before[view.url] = (now, count)
    if then is None or count < then[1] or now <= then[0]:
        return view
    rate = (count - then[1]) / (now - then[0])
    return View(view.url, view.state, view.trouble, view.workers, view.requests, rate)


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Whether there was one: raised where Python runs a callback, as for what it collects, an interrupt is ignored."""
    interrupted = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _screen(out: TextIO) -> Iterator[None]:
    """A screen of our own, which leaves the terminal as it was."""
    out.write(_ENTER)
    try:
        yield
    finally:
        out.write(_LEAVE)
        out.flush()


def _interval(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 3_600:
        raise argparse.ArgumentTypeError("must be from 0.1 to 3600 seconds")
    return value
