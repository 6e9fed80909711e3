"""What the driver is told to do and what it tells: one JSON object a line, both ways."""

from __future__ import annotations

import msgspec


class Job(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """A load on one port; CPU time is taken of the processes `pids` and of the workers' process."""

    port: int
    pids: list[int]
    worker_pid: int
    limit_seconds: float = 60.0


class Closed(Job, frozen=True, kw_only=True):
    """So many connections, each sending its next request when it has its answer."""

    size: int
    seed: int
    connections: int
    warm: int
    requests: int


class Open(Job, frozen=True, kw_only=True):
    """Requests at random moments at a mean rate, whatever the answers do; latency counts from the planned moment."""

    size: int
    seed: int
    rate: float
    seconds: float


class Streams(Job, frozen=True, kw_only=True):
    """So many paced streams at once: a window for the cost of their chunks, then one with more requests among them.

    Streams begin within `ramp_seconds`; `probes` short ones follow one after the other in the second window, and what
    is measured of them is the time to their first byte.
    """

    streams: int
    ramp_seconds: float
    window_seconds: float
    probe_seconds: float
    probes: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a job came to; times in seconds, latencies of the requests in it as percentiles."""

    done: int  # requests, or chunks for streams
    seconds: float
    cpu_seconds: float  # of the system's processes
    worker_seconds: float  # CPU
    driver_seconds: float  # CPU
    p50: float = 0.0
    p99: float = 0.0
    failures: int = 0
    error: str = ""


decode_job = msgspec.json.Decoder(Closed | Open | Streams).decode
decode_result = msgspec.json.Decoder(Result).decode
encode = msgspec.json.encode
