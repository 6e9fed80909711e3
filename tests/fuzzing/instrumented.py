"""One target in a process of its own: TARGET SECONDS KEEP PLACE. The router is instrumented as it is imported."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["router"]):
    from tests.fuzzing.guided import run_one

if __name__ == "__main__":
    name, seconds, keep, place = sys.argv[1:]
    run_one(atheris, name, int(seconds), Path(keep), Path(place))
