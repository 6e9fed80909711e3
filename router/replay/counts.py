"""What rules that are not the product's keep count of: requests and tokens in flight at every worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from router.replay.rules import News, Open, Setting
from router.replay.worker import Job

NOTHING: Sequence[tuple[Job, bool]] = ()


class Counted(ABC):
    """One replica's tallies, own requests and others'; a rule says only how to `choose`, and what a use teaches it.

    `load`: requests in flight; `waiting`: those before their first byte; `prefill`: tokens that those have to compute
    as believed when they were placed; `prompts`: prompt tokens in flight; `uncached`: the part of them to compute.
    """

    def __init__(self, setting: Setting) -> None:
        count = setting.workers
        self.setting = setting
        self.rng = setting.rng
        self.all = range(count)
        self.load = [0] * count
        self.waiting = [0] * count
        self.prefill = [0] * count
        self.prompts = [0] * count
        self.uncached = [0] * count
        self._open: list[dict[int, tuple[Job, bool]]] = [{} for _ in self.all]

    @abstractmethod
    def choose(self, job: Job, now: float) -> int:
        """The worker for a request; sets what the rule believes it to compute there."""

    def place(self, job: Job, now: float) -> int:
        job.believed = job.estimate
        worker = self.choose(job, now)
        self.start(job, worker, now)
        return worker

    def answered(self, job: Job, now: float) -> object:
        self.answer(job, job.worker)
        return None

    def ended(self, job: Job, now: float) -> None:
        self.end(job, job.worker)

    def hear(self, news: News, now: float) -> None:
        job = news.job
        if news.event == "started":
            self.start(job, job.worker, now)
        elif news.event == "answered":
            self.answer(job, job.worker)
        else:
            self.end(job, job.worker)

    def hear_open(self, replica: int, open_: Open, now: float) -> None:
        for worker in self.all:
            told = {job.number: (job, heard) for job, heard in open_.get(worker, NOTHING)}
            for job, _ in list(self._open[worker].values()):
                if job.replica == replica and job.number not in told:
                    self.end(job, worker)
            for job, heard in told.values():
                self.start(job, worker, now)
                if heard:
                    self.answer(job, worker)

    def least(self, values: Sequence[float], among: Sequence[int] | None = None) -> int:
        """One of the workers with the smallest value, at random."""
        numbers = self.all if among is None else among
        smallest = min(values[number] for number in numbers)
        return self.rng.choice([number for number in numbers if values[number] == smallest])

    def start(self, job: Job, worker: int, now: float) -> bool:
        """A request was sent to a worker, by whichever replica; False if that was known."""
        if job.number in self._open[worker]:
            return False
        self._open[worker][job.number] = (job, False)
        self.load[worker] += 1
        self.waiting[worker] += 1
        self.prefill[worker] += job.believed
        self.prompts[worker] += job.estimate
        self.uncached[worker] += job.believed
        return True

    def answer(self, job: Job, worker: int) -> bool:
        """It had its first byte; False if that was known, or the request was not."""
        if self._open[worker].get(job.number) != (job, False):
            return False
        self._open[worker][job.number] = (job, True)
        self.waiting[worker] -= 1
        self.prefill[worker] -= job.believed
        return True

    def end(self, job: Job, worker: int) -> bool:
        """It is over; False if the request was not known."""
        if job.number not in self._open[worker]:
            return False
        self.answer(job, worker)
        del self._open[worker][job.number]
        self.load[worker] -= 1
        self.prompts[worker] -= job.estimate
        self.uncached[worker] -= job.believed
        return True
