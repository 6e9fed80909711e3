"""What is wrong with settings, as tests compare it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from router.errors import SettingsError
from router.settings import load

Write = Callable[[str | bytes], Path]


def problems(file: Path | None = None, flags: Mapping[str, Any] | None = None) -> list[str]:
    """What is wrong, one line each, without the name of the directory."""
    with pytest.raises(SettingsError) as caught:
        load(file, flags)
    assert caught.value.problems
    assert all("\n" not in problem for problem in caught.value.problems)
    return [problem.replace(f"{file}", "FILE") for problem in caught.value.problems]
