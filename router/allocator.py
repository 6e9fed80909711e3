"""The C library's allocator, asked to give back what lies free in its heap."""

from __future__ import annotations

import ctypes


def give_back() -> bool:
    """Return free memory to the system; whether this allocator can be asked to, which is glibc's.

    It gives back the end of its heap by itself, but not what lies below something that is used; and pieces as large as
    one that was freed before come from the heap too. A table of 10 MB that is made anew leaves such a hole. Takes some
    milliseconds.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return False
    trim(0)
    return True
