"""What a client owes its connection, as numbers, for they are looked at for every header."""

from __future__ import annotations

from typing import Final

NOTHING: Final = 0  # between requests, and while an answer is under way
HEADER: Final = 1
BODY: Final = 2
END: Final = 3  # it has been told why, and is to end the connection

# A balancer may be writing into a kept connection while it is closed; so long such connections outlive the listener.
LINGER_SECONDS: Final = 1.0
