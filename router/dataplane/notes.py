"""From a request that has ended to its entry in the decision file."""

from __future__ import annotations

from collections.abc import Callable

from router.dataplane.job import Job
from router.decision_file import DecisionFile, Entry


def noting_in(file: DecisionFile) -> Callable[[Job], None]:
    """A hook that puts down every request for which something was decided."""

    def note(job: Job) -> None:
        if job.record is not None:
            inquiry = job.inquiry
            file.add(Entry((*job.earlier, job.record), inquiry.hashes, inquiry.prompt.size))

    return note
