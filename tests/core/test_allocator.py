"""What is free goes back to the system, whatever lies above it."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from router.allocator import give_back

# Pieces of several sizes come and go, each with something small above it that stays, as in a server that goes on.
CHURN = """
import os, sys
from router.allocator import give_back

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

kept, piece, before = [], b"", resident()
for size in [6, 7, 8, 9, 10, 10, 10, 10]:
    following = b"x" * (size << 20)
    kept.append(b"y" * 100_000)
    piece = following
    assert "asked" not in sys.argv or give_back()
print((resident() - before) >> 20)
"""


def churn(*arguments: str) -> int:
    """MB that a process has after it, of which 10 are in use."""
    words = [sys.executable, "-c", CHURN, *arguments]
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not the GNU C library")
def test_what_a_large_piece_took_is_given_back() -> None:
    assert churn("asked") < 13
    assert churn() > 15


def test_other_allocators_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not give_back()
