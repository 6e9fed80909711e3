"""What is wrong with a value, in words for whoever wrote it; the value, which may be secret, is not shown. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_WHOLE: Final = "must be a whole number"
_NUMBER: Final = "must be a number"
_TRUTH: Final = "must be true or false"
_TEXT: Final = "must be text"
_LIST: Final = "must be a list: [one, another], or one in each line behind a dash"
# By the validator's name for what is wrong; those that have a limit are below.
_SAID: Final[Mapping[str, str]] = {
    "int_parsing": _WHOLE,
    "int_parsing_size": _WHOLE,
    "int_type": _WHOLE,
    "int_from_float": _WHOLE,
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "finite_number": "must be a number that is not infinite",
    "bool_parsing": _TRUTH,
    "bool_type": _TRUTH,
    "string_type": _TEXT,
    "string_too_short": "must not be empty",
    "path_type": "must be the path of a file",
    "dataclass_type": "must be the path of a file",
    "tuple_type": _LIST,
    "dict_type": "must be a table: a name, a colon, and its settings below it",
    "invalid_key": "a name must be text: put it in quotes",
    "extra_forbidden": "there is no such field",
    "model_type": "must be an object",
}
_LIMITS: Final[Mapping[str, tuple[str, str]]] = {
    "greater_than": ("gt", "must be more than {:g}"),
    "greater_than_equal": ("ge", "must be at least {:g}"),
    "less_than": ("lt", "must be less than {:g}"),
    "less_than_equal": ("le", "must be at most {:g}"),
    "too_long": ("max_length", "must have {:g} values at most"),
}
_UNIT: Final = re.compile(r"\s*\d+(\.\d+)?\s*[A-Za-z]{1,8}\s*")


def reason(kind: str, message: str, limits: Mapping[str, Any], value: object, *, inside: bool = False) -> str:
    """The words for one of the validator's errors; `inside`: what is at fault is an element of a list."""
    if value is None and kind.endswith("_type"):
        return "has no value: write one, or leave the line out"
    if kind == "missing":
        return "a value is missing here" if inside else "is required"
    if kind == "literal_error":
        return f"must be {limits['expected']}"
    if kind in _LIMITS:
        name, words = _LIMITS[kind]
        return words.format(limits[name])
    return (_SAID.get(kind) or message.removeprefix("Value error, ")) + _hint(kind, value)


def _hint(kind: str, value: object) -> str:
    if kind == "string_type" and isinstance(value, int | float):
        return ": put it in quotes"
    if kind in ("int_parsing", "float_parsing") and isinstance(value, str) and _UNIT.fullmatch(value):
        return " without a unit: times are in seconds, sizes in bytes"
    return ""
