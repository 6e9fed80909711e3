"""Colours and widths of a terminal. Text without colour is complete: nothing is said by colour alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_MARK: Final = re.compile("\x1b\\[[0-9;]*m")
# What a worker or model is called comes from elsewhere and must not steer the terminal.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
STATES: Final = {
    "ready": "green",
    "starting": "yellow",
    "probation": "yellow",
    "draining": "yellow",
    "unready": "red",
    "ejected": "red",
}


class Style:
    """Paints, or does not."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour

    def paint(self, text: str, *kinds: str) -> str:
        """The text in these colours."""
        codes = ";".join(_CODES[kind] for kind in kinds)
        return f"\x1b[{codes}m{text}\x1b[0m" if self._colour and codes else text

    def state(self, state: str) -> str:
        """A worker's state."""
        kind = STATES.get(state)
        return self.paint(plain(state), kind) if kind else plain(state)


def plain(text: object, width: int | None = None) -> str:
    """Text from elsewhere as it may be shown, cut to a width."""
    shown = _CONTROL.sub("?", str(text))
    return shown if width is None or len(shown) <= width else shown[: max(0, width - 3)] + "..."


def length(text: str) -> int:
    """Columns of a text, its colours left out."""
    return len(_MARK.sub("", text))


def cut(text: str, width: int) -> str:
    """No more columns than fit; colours that are cut off end there."""
    if length(text) <= width:
        return text
    shown, at, columns = "", 0, 0
    while at < len(text) and columns < width:
        mark = _MARK.match(text, at)
        if mark:
            shown += mark[0]
            at = mark.end()
        else:
            shown += text[at]
            at += 1
            columns += 1
    return shown + ("\x1b[0m" if "\x1b[" in shown else "")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], style: Style, right: Iterable[int] = ()) -> list[str]:
    """Columns as wide as they need to be; those in `right` are numbers."""
    cells = [list(row) for row in rows]
    numbers = set(right)
    widths = [max(length(row[column]) for row in [list(head), *cells]) for column in range(len(head))]

    def line(row: Sequence[str]) -> str:
        parts = []
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - length(cell))
            parts.append(space + cell if column in numbers else cell + space)
        return "  ".join(parts).rstrip()

    return [style.paint(line(head), "dim"), *map(line, cells)]
