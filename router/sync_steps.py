"""What replicas tell of each request: start, first byte, end; and what each has under way, in full. Pure values.

The steps make the others' picture of the work at every worker exact within milliseconds. What is lost of them is made
good by the next full account, once a heartbeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from router.work import Key, Waiting

# Bounds of one message.
MAX_STEPS = 512
MAX_WAITING = 1_000
MAX_ANSWERED = 3_000
MAX_WORKERS = 512
# Kinds of steps.
STARTED, STARTED_SILENT, ANSWERED, ENDED = range(4)

Name = Annotated[str, msgspec.Meta(max_length=64)]
Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000_000)]
Permille = Annotated[int, msgspec.Meta(ge=0, le=1_000)]
Hash = Annotated[int, msgspec.Meta(ge=0)]


class Step(msgspec.Struct, array_like=True, frozen=True):
    """One step of the sender's request of this number.

    Of a start: the prompt tokens that the worker has to compute, how much lighter the request is than one that decodes
    (in thousandths), the hash of the whole prompt (0: none), the block before those that are new to the worker, and
    these, 8 little-endian bytes each.
    """

    worker: Name
    number: Number
    what: Annotated[int, msgspec.Meta(ge=STARTED, le=ENDED)]
    uncached: Tokens = 0
    lighter: Permille = 0
    whole: Hash = 0
    base: Hash | None = None
    new: bytes = b""


class Steps(msgspec.Struct, array_like=True, frozen=True):
    """Steps in the order in which they were made."""

    kind = "steps"

    steps: Annotated[list[Step], msgspec.Meta(max_length=MAX_STEPS)]


class Open(msgspec.Struct, array_like=True, frozen=True):
    """All that the sender has under way at one worker.

    What waits, as [number, tokens, lighter, silent, whole], and the numbers of those that are past their first byte.
    """

    worker: Name
    waiting: Annotated[list[tuple[Number, Tokens, Permille, bool, Hash]], msgspec.Meta(max_length=MAX_WAITING)]
    answered: Annotated[list[Number], msgspec.Meta(max_length=MAX_ANSWERED)]

    def as_of(self, sender: str) -> dict[Key, Waiting | None]:
        """As a queue takes it."""
        found: dict[Key, Waiting | None] = {(sender, number): None for number in self.answered}
        for number, uncached, lighter, silent, whole in self.waiting:
            found[sender, number] = Waiting(uncached, silent, whole, lighter / 1_000)
        return found


class Openings(msgspec.Struct, array_like=True, frozen=True):
    """Some workers' open requests."""

    kind = "open"

    workers: Annotated[list[Open], msgspec.Meta(max_length=MAX_WORKERS)]


def open_at(worker: str, found: Mapping[Key, Waiting | None]) -> Open:
    """The opposite of `Open.as_of`. Beyond the bound the rest is left out, and taken to have ended."""
    waiting = [
        (key[1], int(one.uncached), permille_of(one), one.silent, one.whole)
        for key, one in found.items()
        if one is not None
    ]
    answered = [key[1] for key, one in found.items() if one is None]
    return Open(worker, waiting[:MAX_WAITING], answered[:MAX_ANSWERED])


def permille_of(waiting: Waiting) -> int:
    """How much less work it is than one that decodes, as it is told: in thousandths."""
    return max(0, min(1_000, round(1_000 * waiting.lighter)))


# Upper bounds of the encoded sizes, in bytes.


def step_bytes(step: Step) -> int:
    return 4 * len(step.worker) + len(step.new) + 52


def open_bytes(one: Open) -> int:
    return 4 * len(one.worker) + 33 * len(one.waiting) + 9 * len(one.answered) + 16
