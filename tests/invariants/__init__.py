"""What must hold after every fault, whatever it was: ten invariants, by the numbers of the catalogue's page.

`parts` looks at parts of the router that a test made in its own process, `replicas` at processes of it, and
`tests/whole/invariants.py` at whole deployments. Each says which invariants it has looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

TITLES: Final = {
    1: "nothing in flight, in line, or held of a body: gauges are 0, and never below",
    2: "no connection, descriptor or task is left",
    3: "every request has ended in one way, and is counted once",
    4: "no request was at more than two workers",
    5: "an answer is complete, or visibly broken",
    6: "an answer belongs to its request",
    7: "the map is within its bounds, names workers of the fleet alone, and replicas agree",
    8: "memory and log are bounded",
    9: "no prompt, key, address or traceback is in the log or in an answer; errors have the API's form and an id",
    10: "all workers are back afterwards, and requests are served",
}
MEGABYTES: Final = 300  # more memory than any case may leave behind
LINES: Final = 500  # in the log, for a case that sends no requests

_looked: set[int] = set()


def looked_at(*numbers: int) -> None:
    """These invariants were looked at in the test that runs, and hold."""
    _looked.update(numbers)


def taken() -> set[int]:
    """What was looked at since the last call."""
    found = set(_looked)
    _looked.clear()
    return found


def require(number: int, broken: Iterable[str]) -> None:
    """Raises AssertionError with the invariant's number and what breaks it; otherwise it was looked at."""
    found = list(broken)
    assert not found, f"invariant {number} ({TITLES[number]}): {'; '.join(found[:5])}"
    looked_at(number)
