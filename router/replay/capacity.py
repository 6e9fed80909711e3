"""What a fleet can carry of a trace: the pace at which even perfect knowledge begins to fall behind.

Capacity is where the mean TTFT under perfect knowledge is `KNEE` times that of a fleet with nothing else to do. Beyond
it queues grow for as long as the trace goes on, so the knee is sharp and its height matters little.
"""

from __future__ import annotations

import math
from dataclasses import replace

from router.replay.fleet import Fleet, Scenario
from router.replay.perfect import PerfectKnowledge
from router.replay.trace import Trace

KNEE = 4.0
# A fleet that has a quarter of what it can carry is taken for idle.
IDLE = 8.0
PRECISION = 1.02
# Requests that wait so many times the idle mean say that the fleet is beyond its capacity.
HOPELESS = 100.0


def window(trace: Trace, pace: float, warmup: float) -> tuple[float, float]:
    """The time in which requests are measured: after the warm-up, and while new ones still come."""
    end = trace.seconds * pace
    return warmup * end, end


def capacity_pace(trace: Trace, scenario: Scenario, warmup: float) -> float:
    """The pace (multiplier of recorded times) at capacity, by bisection to 2 %."""
    base = replace(scenario, replicas=1, estimate_error=0.0, silent=0.0)
    start = _first_guess(trace, base)
    idle = _mean_ttft(trace, replace(base, pace=start * IDLE), warmup, math.inf)
    limit = KNEE * idle
    slow = fast = start
    while _mean_ttft(trace, replace(base, pace=slow), warmup, idle) > limit:
        fast, slow = slow, slow * 1.5
    while fast == slow or _mean_ttft(trace, replace(base, pace=fast), warmup, idle) <= limit:
        slow, fast = fast, fast / 1.5
    while slow / fast > PRECISION:
        middle = math.sqrt(slow * fast)
        if _mean_ttft(trace, replace(base, pace=middle), warmup, idle) > limit:
            fast = middle
        else:
            slow = middle
    return math.sqrt(slow * fast)


def _first_guess(trace: Trace, scenario: Scenario) -> float:
    """The pace at which distinct prompt tokens come at the fleet's prefill rate."""
    distinct = len({block for request in trace.requests for block in request.ids})
    seconds = distinct * 512 / (scenario.engine.prefill_rate * scenario.workers)
    return max(seconds / max(trace.seconds, 1e-9), 1e-6)


def _mean_ttft(trace: Trace, scenario: Scenario, warmup: float, idle: float) -> float:
    fleet = Fleet(trace, PerfectKnowledge, scenario, patience=HOPELESS * idle)
    jobs = fleet.run()
    if fleet.overrun:
        return math.inf
    begin, end = window(trace, scenario.pace, warmup)
    waits = [job.first - job.arrived for job in jobs if begin <= job.arrived <= end]
    return sum(waits) / max(1, len(waits))
