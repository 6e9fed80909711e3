"""What this installation is: its version, and whether its request path was compiled."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from router import hashing


def compiled() -> bool:
    """Whether the modules of the request path run as machine code, which `scripts/compile` makes of them."""
    return not str(hashing.__file__).endswith(".py")


def described() -> str:
    """The version, and that it is compiled where it is."""
    try:
        number = version("prefix-router")
    except PackageNotFoundError:
        number = "of a source tree that is not installed"
    return f"{number} (compiled)" if compiled() else number
