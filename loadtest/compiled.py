"""Which router a measurement takes: compiled, as `scripts/bench` has it, unless it is told otherwise.

Tools that start the router as a process hand the directory to it; tools that import it begin anew with the directory
before the source tree.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtest.fleet import ROOT
from router import affinity

MADE = ROOT / ".run" / "compiled-bench"


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--compiled DIRECTORY` and `--source`."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--compiled", type=Path, help="the router as scripts/compile made it (default: made if need be)")
    which.add_argument("--source", action="store_true", help="measure the source")


def chosen(options: argparse.Namespace) -> Path | None:
    """The directory of the compiled router, made for this interpreter if need be; None for the source.

    Where it can't be made, for lack of a C compiler, that is said and the source is taken.
    """
    if options.source:
        return None
    if options.compiled is not None:
        package: Path = options.compiled.resolve()
        if not (package / "router").is_dir():
            raise SystemExit(f"There is no router in {package}.")
        return package
    made = subprocess.run(
        [ROOT / "scripts" / "compile", MADE], env={**os.environ, "PREFIX_ROUTER_VENV": sys.prefix}, check=False
    )
    if made.returncode == 0:
        return MADE
    print("The router is measured as source.", file=sys.stderr)
    return None


def import_chosen(options: argparse.Namespace, module: str, argv: Sequence[str]) -> None:
    """Have this process import the router that the options choose.

    Returns if it does, or if they choose none and PYTHONPATH has a compiled one; else the module begins anew.
    """
    here = Path(affinity.__file__)
    if here.suffix != ".py" and options.compiled is None and not options.source:
        return
    package = chosen(options) or ROOT
    if here.resolve().parents[1] == package:
        return
    os.environ["PYTHONPATH"] = f"{package}{os.pathsep}{ROOT}"
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *argv])


def description() -> str:
    """Which router this process imports, in a word."""
    return "source" if affinity.__file__.endswith(".py") else "compiled"
