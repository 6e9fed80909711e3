"""What may be done after an attempt has failed before its first byte: one table, and the budget for doing it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from router import errors


class Outcome(enum.StrEnum):
    """How an attempt ended before the first byte of an answer that can be passed on; also the label of retries."""

    CONNECT = "connect"
    RESET = "reset"
    TIMEOUT = "timeout"  # also 504, which something in front of the worker says of it
    PROTOCOL = "protocol"
    OVERLOADED = "overloaded"  # 503
    LIMITED = "limited"  # 429
    GATEWAY = "gateway"  # 502: something in front of the worker failed
    FULL = "full"  # the pool's limit of connections
    ANSWERED = "answered"


@dataclass(frozen=True, slots=True)
class Rule:
    """What follows from an outcome.

    `retry`: another worker may be asked, `free`: at no cost to the budget. `strike`: the worker is to blame.
    `probe`: look at it at once. `spare`: leave it alone for a moment, if others are there.
    """

    retry: bool
    strike: bool
    free: bool = False
    probe: bool = False
    spare: bool = False


RULES: dict[Outcome, Rule] = {
    # Nothing was sent, so that nothing is computed twice.
    Outcome.CONNECT: Rule(retry=True, strike=True, free=True, probe=True),
    Outcome.RESET: Rule(retry=True, strike=True, probe=True),
    # A slow answer may still be computed; sending it again would double the load that made it slow.
    Outcome.TIMEOUT: Rule(retry=False, strike=True, probe=True),
    Outcome.PROTOCOL: Rule(retry=False, strike=True),
    # A full worker is not a broken one. It is blamed once another worker has answered what it refused.
    Outcome.OVERLOADED: Rule(retry=True, strike=False, spare=True),
    Outcome.LIMITED: Rule(retry=True, strike=False, spare=True),
    Outcome.GATEWAY: Rule(retry=True, strike=True),
    Outcome.FULL: Rule(retry=True, strike=False, free=True),
    Outcome.ANSWERED: Rule(retry=False, strike=False),
}

# How long a worker that refused a request for want of room is left alone, as long as others are there; seconds.
SPARE_SECONDS = 1.0

_STATUSES = {429: Outcome.LIMITED, 502: Outcome.GATEWAY, 503: Outcome.OVERLOADED, 504: Outcome.TIMEOUT}
_ERRORS: tuple[tuple[type[errors.RouterError], Outcome], ...] = (
    (errors.ConnectFailed, Outcome.CONNECT),
    (errors.UpstreamReset, Outcome.RESET),
    (errors.UpstreamTimeout, Outcome.TIMEOUT),
    (errors.UpstreamProtocolError, Outcome.PROTOCOL),
    (errors.Unavailable, Outcome.FULL),
)


def outcome_of_status(status: int) -> Outcome:
    """Whether a status is an answer or a reason to ask elsewhere."""
    return _STATUSES.get(status, Outcome.ANSWERED)


def outcome_of_error(error: errors.RouterError) -> Outcome:
    """The outcome that an error of the upstream client stands for."""
    for kind, outcome in _ERRORS:
        if isinstance(error, kind):
            return outcome
    return Outcome.PROTOCOL


class RetryBudget:
    """Retries at most a share of the requests of the last ten to twenty seconds, and always a few."""

    WINDOW = 10.0

    def __init__(self, share: float, least: int) -> None:
        self._share = share
        self._least = least
        self._began = float("-inf")
        self._requests = [0, 0]
        self._retries = [0, 0]

    def reconfigure(self, share: float, least: int) -> None:
        """Another share, of the same requests."""
        self._share = share
        self._least = least

    def request(self, now: float) -> None:
        """Count a request."""
        self._turn(now)
        self._requests[1] += 1

    def take(self, now: float) -> bool:
        """Spend one retry if the budget has it."""
        self._turn(now)
        if sum(self._retries) >= max(self._least, self._share * sum(self._requests)):
            return False
        self._retries[1] += 1
        return True

    def _turn(self, now: float) -> None:
        elapsed = now - self._began
        if elapsed < self.WINDOW:
            return
        recent = elapsed < 2 * self.WINDOW
        self._requests = [self._requests[1] if recent else 0, 0]
        self._retries = [self._retries[1] if recent else 0, 0]
        self._began = self._began + self.WINDOW if recent else now
