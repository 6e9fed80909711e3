"""What is played to whom, and how fast. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from loadtest.bench.bodies import MODEL
from loadtest.simworker import SimConfig
from router.replay.generate import generate
from router.replay.trace import Request, Trace

BLOCK_TOKENS = 256
# Tokens of an answer that come in one chunk: chunks cost every process on the way, and say nothing about placement.
CHUNK_TOKENS = 8
WARM_SHARE = 0.35
# What starting and ending a system, and waiting for its last answers, takes beside the load itself.
OVERHEAD_SECONDS = 12.0
LEAST_SECONDS = 4.0
# More rounds than fit into any time that is asked for.
UNLIMITED = 1_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    """One comparison. Times and rates are the modelled ones unless named `wall`: those pass `speed` times as fast."""

    kind: str = "agent"
    rate: float = 11.0  # requests a second
    speed: float = 4.0
    turns: int = 6  # of a session at most, so that a short run sees whole ones
    wall_seconds: float = 20.0  # in which requests come
    drain_wall_seconds: float = 20.0  # in which those that are under way may end
    rounds: int = 2
    minutes: float = 5.0
    seed: int = 1
    workers: int = 8
    prefill_tokens_per_second: float = 4_000.0
    decode_seconds_per_token: float = 0.02
    cache_tokens: int = 400_000  # of each worker

    @property
    def warm_wall_seconds(self) -> float:
        """Until when requests are played but not measured."""
        return WARM_SHARE * self.wall_seconds

    def fitted(self, systems: int) -> Plan:
        """The same plan with as long a load for each system as its minutes allow; raises ValueError if too few."""
        each = self.minutes * 60 / (self.rounds * systems) - OVERHEAD_SECONDS
        if each < LEAST_SECONDS:
            least = math.ceil((LEAST_SECONDS + OVERHEAD_SECONDS) * self.rounds * systems / 6) / 10
            raise ValueError(
                f"--minutes {self.minutes:g} is too little for {self.rounds} rounds of {systems} systems: "
                f"at least {least:g}"
            )
        return replace(self, wall_seconds=each)

    def repeated(self, seconds: float) -> Plan:
        """The same plan with so long a load for each system and as many rounds as its minutes allow.

        Raises ValueError for a load that is too short to mean anything.
        """
        if seconds < LEAST_SECONDS:
            raise ValueError(f"--seconds {seconds:g} is too little: at least {LEAST_SECONDS:g}")
        return replace(self, wall_seconds=seconds, rounds=UNLIMITED)

    def worker(self) -> SimConfig:
        """One simulated worker."""
        return SimConfig(
            models=(MODEL,),
            max_model_len=262_144,
            block_size=BLOCK_TOKENS,
            num_gpu_blocks=max(1, self.cache_tokens // BLOCK_TOKENS),
            prefill_tokens_per_second=self.prefill_tokens_per_second,
            decode_seconds_per_token=self.decode_seconds_per_token * CHUNK_TOKENS,
            time_scale=1.0 / self.speed,
            max_num_seqs=64,
            enable_prompt_tokens_details=True,
            responses_store=False,
            keep_alive_seconds=75.0,
            record_bodies=False,
        )


def traffic(plan: Plan, number: int, trace: Trace | None = None) -> list[Request]:
    """What comes in a round, in wall seconds: every system of a round gets the same, every round another one.

    Of a recorded trace a round takes the piece behind the one before.
    """
    wanted = max(1, round(plan.rate * plan.wall_seconds * plan.speed))
    if trace is None:
        # Whole sessions are cut short, which leaves fewer requests than were generated.
        found = shortened(generate(plan.kind, 10 * wanted, plan.seed + number).requests, plan.turns)
    else:
        begin = number * wanted % max(1, len(trace.requests) - wanted + 1)
        found = list(trace.requests[begin : begin + wanted])
    roots = [request.at for request in found if request.after is None]
    begin_at, span = min(roots), max(roots) - min(roots)
    stretch = len(found) / plan.rate / span if span else 0.0
    return [
        replace(request, at=(request.at - begin_at) * stretch / plan.speed)
        if request.after is None
        else replace(request, at=request.at / plan.speed)
        for request in found
    ]


def shortened(requests: tuple[Request, ...], turns: int) -> list[Request]:
    """The first turns of each session; requests that follow one another lie in order."""
    kept: list[Request] = []
    places: dict[int, tuple[int, int]] = {}  # of what is kept: its new place, and which turn it is
    for position, request in enumerate(requests):
        if request.after is None:
            after, turn = None, 1
        elif request.after in places:
            after, before = places[request.after]
            turn = before + 1
        else:
            continue
        if turn <= turns:
            places[position] = (len(kept), turn)
            kept.append(replace(request, after=after))
    return kept
