"""The driver: reads a job a line, runs it alone, writes its result. Ends with its standard input.

A process of its own, so that neither the interpreter nor the loop of whoever plans the runs is in the way.
"""

from __future__ import annotations

import asyncio
import gc
import sys

import uvloop

from loadtest.bench.jobs import Closed, Open, Result, Streams, decode_job, encode
from loadtest.bench.loads import ClosedLoad, LoadFailed, OpenLoad, StreamLoad
from loadtest.bench.worker import PACE_SECONDS


async def run(job: Closed | Open | Streams) -> Result:
    """Run one job within its time; what goes wrong is told in the result."""
    load: ClosedLoad | OpenLoad | StreamLoad
    if isinstance(job, Closed):
        load = ClosedLoad(job)
    elif isinstance(job, Open):
        load = OpenLoad(job)
    else:
        load = StreamLoad(job, PACE_SECONDS)
    try:
        async with asyncio.timeout(job.limit_seconds):
            return await load.run()
    except (LoadFailed, TimeoutError, OSError) as error:
        reason = str(error) or type(error).__name__
        return Result(done=0, seconds=0, cpu_seconds=0, worker_seconds=0, driver_seconds=0, error=reason)


def main() -> int:
    """Serve jobs until standard input ends."""
    gc.disable()  # a collection in the middle of a job would be taken for latency
    for line in sys.stdin.buffer:
        result = uvloop.run(run(decode_job(line)))
        sys.stdout.buffer.write(encode(result) + b"\n")
        sys.stdout.buffer.flush()
        gc.collect()
    return 0


if __name__ == "__main__":
    sys.exit(main())
