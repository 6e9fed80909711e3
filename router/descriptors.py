"""File descriptors: as many as the system gives, and how many connections that is good for."""

from __future__ import annotations

import resource

# More are of no use to one process on one core.
WANTED = 65_536
# For workers' probes, Redis, files, and connections that are taken in only to be told that there is no room.
MOST_KEPT, LEAST_KEPT = 512, 40
# Below this many the operator should know.
ENOUGH = 8_192


def raise_limit() -> int:
    """Raise the soft limit as far as the hard one allows; returns what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return WANTED if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return soft
    return wanted


def connections_for(descriptors: int) -> int:
    """How many clients may be connected at a time: each needs a descriptor of its own and one to its worker."""
    kept = min(MOST_KEPT, max(LEAST_KEPT, descriptors // 8))
    return max(1, (descriptors - kept) // 2)


def enough_for(connections: int | None) -> int:
    """How many descriptors the clients that were asked for need, or most deployments, where none were."""
    return ENOUGH if connections is None else 2 * connections + MOST_KEPT


def descriptor_warnings(descriptors: int) -> list[str]:
    """What the operator should know about a limit this low, in one line, or nothing."""
    if descriptors >= ENOUGH:
        return []
    return [
        f"only {descriptors} file descriptors (ulimit -n): no more than {connections_for(descriptors)} clients can be "
        f"connected at a time; {ENOUGH} are enough for most"
    ]
