"""What predicted hits are worth, scenario by scenario, with calibration on and off.

A real router before two simulated workers plays conversations whose turns come in a random order, some of them often
and most of them rarely. What was predicted is taken from the router's decisions, what was there from the workers' own
records, so it makes no difference whether answers report it. Times play no part: workers answer at once.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from loadtest.conversation import Shape, user_turns
from loadtest.fleet import RouterProcess, replicas
from loadtest.simworker import SimConfig, SimProcess
from loadtest.simworker.process import start_workers
from router.hashing import end_of

MODEL = "sim-model"
CHAT = "/v1/chat/completions"
# Predictions and counts are taken from the router's ring, which has room for a run.
DECISIONS = 1_000
# After so many, a conversation makes way for another.
TURNS = 30
# As the router: what is closer together is no difference.
TOLERANCE = 0.03
BYTES_PER_TOKEN = 5.5  # of these conversations, in the simulated workers' tokens
DENSE = SimConfig(
    models=(MODEL,), num_gpu_blocks=16_384, time_scale=0.0, enable_prompt_tokens_details=True, dev_mode=True
)
COARSE = dataclasses.replace(DENSE, cache="hybrid", block_size=1_600, num_gpu_blocks=200)
FINER = dataclasses.replace(COARSE, prefix_match_unit=32)
# Per worker, a tenth of what all conversations come to.
SMALL = dataclasses.replace(DENSE, num_gpu_blocks=500)

Event = Callable[["Play"], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """`events` happen between requests, by the share of them that came before."""

    name: str
    config: SimConfig
    first_tokens: int = 3_000
    shared_tokens: int = 0  # of a system prompt that all conversations have
    events: tuple[tuple[float, Event], ...] = ()
    pause: float = 0.0  # seconds before each request
    probe_seconds: float = 0.5


@dataclass(frozen=True, slots=True)
class Answer:
    """One request: tokens that were predicted and that were there, and the difference that is none."""

    predicted: int
    cached: int
    prompt_tokens: int
    step: int

    @property
    def short(self) -> bool:
        """Less was there than predicted."""
        return self.predicted - self.cached > max(self.step, TOLERANCE * self.prompt_tokens)

    @property
    def better(self) -> bool:
        """More was there than predicted."""
        return self.cached - self.predicted > max(self.step, TOLERANCE * self.prompt_tokens)


@dataclass(slots=True)
class Result:
    """What came of one run."""

    answers: list[Answer]
    causes: Counter[str] = field(default_factory=Counter)

    @property
    def precision(self) -> float | None:
        """Share of predicted tokens that were there."""
        return _share(self._confirmed, sum(answer.predicted for answer in self.answers))

    @property
    def recall(self) -> float | None:
        """Share of cached tokens that were predicted."""
        return _share(self._confirmed, sum(answer.cached for answer in self.answers))

    @property
    def _confirmed(self) -> int:
        return sum(min(answer.predicted, answer.cached) for answer in self.answers)

    @property
    def wrong(self) -> float:
        """Share of answers whose prediction was wrong, either way."""
        return sum(answer.short or answer.better for answer in self.answers) / len(self.answers)

    @property
    def short(self) -> float:
        """Share of answers that had less cached than predicted."""
        return sum(answer.short for answer in self.answers) / len(self.answers)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


class Play:
    """One run: a router, its workers, and the conversations."""

    def __init__(
        self, router: RouterProcess, workers: Sequence[SimProcess], scenario: Scenario, seed: int, talks: int
    ) -> None:
        self.router = router
        self.workers = list(workers)
        self._scenario = scenario
        self._rng = random.Random(seed)
        self._talks = [self._new_talk() for _ in range(talks)]
        # Records of workers that were restarted meanwhile.
        self._kept: list[dict[str, int]] = []
        self._client = httpx.Client(trust_env=False, timeout=30)

    def _new_talk(self) -> Generator[dict[str, Any], str, None]:
        """The bodies of a conversation's turns."""
        shape = Shape(turns=TURNS, first_tokens=self._scenario.first_tokens, growth_tokens=60, answer_tokens=8)
        messages: list[dict[str, str]] = []
        if self._scenario.shared_tokens:
            (system,) = user_turns(0, Shape(turns=1, first_tokens=self._scenario.shared_tokens))
            messages.append({"role": "system", "content": system})
        for text in user_turns(self._rng.getrandbits(32), shape):
            messages.append({"role": "user", "content": text})
            answer = yield {"model": MODEL, "max_tokens": 6, "messages": messages}
            messages.append({"role": "assistant", "content": answer})

    def run(self, requests: int) -> Result:
        """Play so many requests, and what happens in between."""
        events = sorted(self._scenario.events, key=lambda event: event[0])
        weights = [1.0 / (rank + 2) for rank in range(len(self._talks))]
        bodies = [next(talk) for talk in self._talks]
        for number in range(requests):
            while events and events[0][0] * requests <= number:
                events.pop(0)[1](self)
            (chosen,) = self._rng.choices(range(len(self._talks)), weights)
            time.sleep(self._scenario.pause)
            answer = self._client.post(self.router.url + CHAT, json=bodies[chosen])
            answer.raise_for_status()
            said = answer.json()["choices"][0]["message"]["content"]
            try:
                bodies[chosen] = self._talks[chosen].send(said)
            except StopIteration:
                self._talks[chosen] = self._new_talk()
                bodies[chosen] = next(self._talks[chosen])
        result = self._result(requests)
        self._client.close()
        return result

    def keep_records(self, worker: SimProcess) -> None:
        """Take over what a worker has recorded, before it is lost."""
        self._kept.append(_cached_by_request(worker))

    def _result(self, requests: int) -> Result:
        cached: dict[str, int] = {}
        for records in (*self._kept, *map(_cached_by_request, self.workers)):
            cached |= records
        unit = self._scenario.config.unit
        answers = []
        found = self._client.get(f"{self.router.url}/router/decisions?limit={DECISIONS}").json()["decisions"]
        for record in found[:requests]:
            if record["status"] != 200 or record["outcome"] != "ok":
                continue
            predicted = record["predicted_cached_tokens"]
            # Of a silent answer there is only what the decision counted on.
            told = record["resumable_tokens"] if predicted is None else predicted
            tokens = record["reported_prompt_tokens"] or record["prompt_tokens"]
            # What is shared ends anywhere before the next block of the map does, perhaps beyond one boundary more.
            width = end_of(record["matched_blocks"] + 1) - end_of(record["matched_blocks"])
            block = int(width / BYTES_PER_TOKEN) + 1
            step = block + unit if unit < block else unit
            answers.append(Answer(told, cached[record["request_id"]], tokens, step))
        return Result(answers, _causes(self.router.metrics()))


def _cached_by_request(worker: SimProcess) -> dict[str, int]:
    records = worker.requests(path=CHAT)
    return {dict(record.headers)[b"x-request-id"].decode(): record.cached_tokens or 0 for record in records}


def _causes(metrics: str) -> Counter[str]:
    causes: Counter[str] = Counter()
    for line in metrics.splitlines():
        if line.startswith("router_post_hit_fallbacks_total{"):
            labels, _, value = line.rpartition(" ")
            causes[labels.partition('cause="')[2].partition('"')[0]] += int(float(value))
    return causes


# -- what happens ----------------------------------------------------------------------------------------------


def reset(play: Play) -> None:
    """Every worker's cache is emptied, as an operator or a training loop does it."""
    for worker in play.workers:
        httpx.post(worker.url + "/reset_prefix_cache", trust_env=False, timeout=10).raise_for_status()


def restart(play: Play) -> None:
    """One worker is killed and begins anew."""
    worker = play.workers[0]
    play.keep_records(worker)
    worker.restart()


SILENT = dataclasses.replace(DENSE, enable_prompt_tokens_details=False)
SCENARIOS = (
    Scenario("dense", DENSE),
    Scenario("hybrid, blocks of 1,600", COARSE, 6_000),
    Scenario("hybrid, match unit 32", FINER, 6_000),
    Scenario("hybrid, a beginning that all share", FINER, 1_000, shared_tokens=3_000),
    Scenario("cache emptied by a reset", DENSE, events=((0.5, reset),)),
    Scenario("the same, answers report nothing", SILENT, events=((0.5, reset),)),
    Scenario("the same, two probes to a request", SILENT, events=((0.5, reset),), pause=0.1, probe_seconds=0.05),
    Scenario("capacity overrun ten times", SMALL),
    Scenario("the same, capacity not declared", dataclasses.replace(SMALL, metrics=False)),
    Scenario("one of two workers restarted", DENSE, events=((0.5, restart),)),
)


@contextlib.contextmanager
def playing(scenario: Scenario, *, correct: bool, seed: int, talks: int) -> Iterator[Play]:
    """A router and its workers for one run."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prefix-router-")))
        workers = stack.enter_context(start_workers(2, scenario.config))
        environment = {
            "ROUTER_CALIBRATION__CORRECT": str(correct).lower(),
            "ROUTER_HEALTH__INTERVAL": str(scenario.probe_seconds),
            "ROUTER_LIMITS__DECISIONS": str(DECISIONS),
        }
        urls = [worker.url for worker in workers]
        (router,) = stack.enter_context(replicas(directory, 1, urls, environment=environment))
        yield Play(router, workers, scenario, seed, talks)


def measure(scenario: Scenario, *, correct: bool, seed: int = 1, talks: int = 50, requests: int = 900) -> Result:
    """One run of a scenario."""
    if requests > DECISIONS:
        raise ValueError(f"at most {DECISIONS} requests")
    with playing(scenario, correct=correct, seed=seed, talks=talks) as play:
        return play.run(requests)


# -- the printed form ------------------------------------------------------------------------------------------

_HEAD = ("scenario", "calibration", "precision", "recall", "wrong", "fell short", "causes")


def as_text(rows: Sequence[tuple[str, bool, Result]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(_HEAD)} |", "|" + " --- |" * len(_HEAD)]
    for name, correct, result in rows:
        causes = ", ".join(f"{cause} {count}" for cause, count in result.causes.most_common()) or "-"
        shares = [_percent(share) for share in (result.precision, result.recall, result.wrong, result.short)]
        lines.append(f"| {name} | {'on' if correct else 'off'} | {' | '.join(shares)} | {causes} |")
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.calibration", description=__doc__)
    parser.add_argument("--requests", type=int, default=900, help="per run, at most 1,000 (900)")
    parser.add_argument("--talks", type=int, default=50, help="conversations (50)")
    parser.add_argument("--seed", type=int, default=1, help="of texts and order (1)")
    parser.add_argument("--only", metavar="WORD", default="", help="scenarios with this in their name")
    options = parser.parse_args(argv)
    chosen = [scenario for scenario in SCENARIOS if options.only in scenario.name]
    head = True
    for scenario, correct in itertools.product(chosen, (False, True)):
        result = measure(scenario, correct=correct, seed=options.seed, talks=options.talks, requests=options.requests)
        lines = as_text([(scenario.name, correct, result)]).splitlines()
        print("\n".join(lines if head else lines[2:]), flush=True)
        head = False
    return 0


if __name__ == "__main__":
    sys.exit(main())
