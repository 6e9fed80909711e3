"""What was compiled is what runs, where it is asked for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from loadtest.fleet import ROOT, ROUTER


def test_the_router_that_is_meant_is_the_one_that_runs() -> None:
    """PYTHONPATH names a package that scripts/compile made, or the source, or nothing."""
    first = Path((os.environ.get("PYTHONPATH") or str(ROOT)).split(os.pathsep)[0])
    made = (first / ".made-of").exists()
    said = subprocess.run([*ROUTER, "--version"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    assert said.stdout.startswith("prefix-router ")
    assert ("(compiled)" in said.stdout) is made
