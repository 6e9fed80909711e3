"""The package; with PREFIX_ROUTER_COMPILE=1, modules of the request path also as machine code, made by mypyc.

Which modules, `tool.prefix-router.compiled` of pyproject.toml lists. They are the same source either way, and an
interpreter that finds both takes the compiled ones.
"""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

from setuptools import Extension, setup

# What one module calls in another need not be looked up through tables, since nobody else provides it.
BOUND = ["-fvisibility=hidden", "-fno-semantic-interposition", "-fno-plt"]


def compiled_modules() -> list[Extension]:
    """Extensions for the listed modules; none unless asked for, since they need a C compiler."""
    if os.environ.get("PREFIX_ROUTER_COMPILE") != "1":
        return []
    from mypyc.build import mypycify  # type: ignore[import-untyped, unused-ignore]

    project = tomllib.loads(Path("pyproject.toml").read_text())
    modules = project["tool"]["prefix-router"]["compiled"]
    extensions: list[Extension] = mypycify(modules, opt_level="3", debug_level="0")
    if sys.platform == "linux":
        for extension in extensions:
            extension.extra_compile_args += BOUND
    return extensions


setup(ext_modules=compiled_modules())
