"""Predicted against reported: did the hits come true, why not, and what that says about a worker's cache. Pure."""

from router.calibration.capacity import Capacity
from router.calibration.counters import CounterCheck, CounterFinding, Silent
from router.calibration.ledger import Ledger
from router.calibration.ratios import DEFAULT_RATIO, TokenRatios
from router.calibration.verdict import Belief, Cause, Circumstances, Usage, Verdict, cause_of, judge, verdict_of

__all__ = [
    "DEFAULT_RATIO",
    "Belief",
    "Capacity",
    "Cause",
    "Circumstances",
    "CounterCheck",
    "CounterFinding",
    "Ledger",
    "Silent",
    "TokenRatios",
    "Usage",
    "Verdict",
    "cause_of",
    "judge",
    "verdict_of",
]
