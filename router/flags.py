"""Command lines that say which flag was probably meant."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Sequence
from typing import Any

# By which flag a command takes addresses, the first that it has.
_ADDRESSES = ("--worker", "--url")


class Parser(argparse.ArgumentParser):
    """Refuses what it does not know with the usage of the command that was given, and a hint."""

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As the base class, but nothing is left over; ends the process with code 2."""
        parsed, extra = super().parse_known_args(args, namespace)
        if extra:
            self.error(self._unknown(extra))
        return parsed, []

    def _unknown(self, extra: Sequence[str]) -> str:
        flag = next((word.partition("=")[0] for word in extra if word.startswith("-")), None)
        address = next((name for name in _ADDRESSES if name in self._option_string_actions), None)
        if flag is not None:
            meant = self._meant(flag)
            if meant is None and any("://" in word for word in extra):
                meant = address
            return f"there is no {flag}" + (f" (did you mean {meant}?)" if meant else "")
        if "://" in extra[0] and address is not None:
            return f"{extra[0]} stands alone: each address needs a flag, {address} {extra[0]}"
        return f"too much: {' '.join(extra)}"

    def _meant(self, flag: str) -> str | None:
        """The flag that is closest, or the only one that begins with the letter."""
        names = [name for name in self._option_string_actions if name.startswith("--")]
        close = difflib.get_close_matches(flag, names, n=1) or [name for name in names if name.startswith(f"-{flag}")]
        return close[0] if len(close) == 1 else None


def misplaced(arguments: Sequence[str], commands: Sequence[str]) -> str | None:
    """What is wrong with the place where a command's name should be; None if nothing is."""
    if not arguments or arguments[0] in (*commands, "-h", "--help", "--version"):
        return None
    first = arguments[0]
    if first.startswith("-"):
        command = next((word for word in arguments if word in commands), None)
        return f"the command comes first: {command} {first} …" if command else f"there is no command before {first}"
    close = difflib.get_close_matches(first, commands, n=1)
    return f"there is no command {first}" + (f" (did you mean {close[0]}?)" if close else f": {', '.join(commands)}")
