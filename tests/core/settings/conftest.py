"""Settings from nowhere but the test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.core.settings.rig import Write


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("ROUTER_"):
            monkeypatch.delenv(name)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the settings file and name it."""

    def written(text: str | bytes) -> Path:
        file = tmp_path / "router.yaml"
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return file

    return written
