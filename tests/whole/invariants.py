"""What must hold after every case, whatever it was, of a whole deployment."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator

from loadtest.fleet import until
from loadtest.simworker import SimProcess
from router.workers.registry import worker_id
from tests.invariants import looked_at, require
from tests.invariants.replicas import REPLICAS, samples
from tests.whole.rig import Rig

MOST_WORKERS = 2  # for one request
AGREE_SECONDS = 10.0
BACK_SECONDS = 30.0
# Two replicas count each other's news a moment later, and learn for themselves what an engine no longer holds.
SHARE, AMOUNT = 0.02, 8
_MADE_BY_THE_ROUTER = re.compile(r"[0-9a-f]{32}")


def check_invariants(rig: Rig) -> None:
    """Nothing in flight, every request accounted for once, and nothing said in the log that it must not say."""
    REPLICAS.check(rig.routers, {*rig.addresses, *rig.secrets})
    require(1, _busy_workers(rig))
    if rig.countable:
        require(3, _uncounted(rig))
    require(4, _asked_too_often(rig))
    if rig.redis is not None:
        require(7, _disagreement(rig))
    looked_at(10)  # by `check_recovery`, when the deployment ends


def check_recovery(rig: Rig) -> None:
    """The workers that live are back, wherever they are known."""
    require(10, _missing(rig))


def _busy_workers(rig: Rig) -> Iterator[str]:
    busy: object = None
    with contextlib.suppress(TimeoutError):
        for _ in until(5, "workers at rest"):
            busy = [(state["running"], state["waiting"]) for state in (worker.state() for worker in rig.workers)]
            if not any(any(counts) for counts in busy):
                return
    yield f"workers run and wait: {busy}"


def _uncounted(rig: Rig) -> Iterator[str]:
    expected, counted = rig.sent, -1.0
    with contextlib.suppress(TimeoutError):
        for _ in until(5, "all requests to be accounted for"):
            counted = rig.metric("router_outcomes_total")
            if counted >= expected:
                break
    rig.sent = int(counted)  # one case that does not add up is enough
    if counted != expected:
        yield f"{expected} requests, {list(samples(rig.routers[0].metrics(), 'router_outcomes_total'))}"


def _asked_too_often(rig: Rig) -> Iterator[str]:
    """A request that met a dying connection may come to the same worker again."""
    asked = {
        (name, worker.url)
        for worker in rig.workers
        for record in rig.records(worker)
        if (name := record.header("x-request-id")) is not None and _MADE_BY_THE_ROUTER.fullmatch(name)
    }
    workers = Counter(name for name, _ in asked)
    yield from (f"{count} workers were asked {name}" for name, count in workers.items() if count > MOST_WORKERS)


def _disagreement(rig: Rig) -> Iterator[str]:
    held: list[dict[str, float]] = []
    alive = [router for router in rig.routers if router.alive]
    if len(alive) < 2:
        return
    with contextlib.suppress(TimeoutError):
        for _ in until(AGREE_SECONDS, "maps that agree"):
            texts = [router.metrics() for router in alive]
            held = [{labels["worker"]: n for labels, n in samples(text, "router_index_blocks")} for text in texts]
            if all(_is_near(held[0], other) for other in held[1:]):
                return
    yield f"maps differ: {held}"


def _is_near(one: dict[str, float], other: dict[str, float]) -> bool:
    return all(
        abs(one.get(name, 0) - other.get(name, 0)) <= AMOUNT + SHARE * max(one.get(name, 0), other.get(name, 0))
        for name in {*one, *other}
    )


def _missing(rig: Rig) -> Iterator[str]:
    living = {worker_id(worker.url) for worker in rig.workers if _answers(worker)}
    for router in rig.routers:
        away = living if router.alive else set()
        with contextlib.suppress(TimeoutError):
            for _ in until(BACK_SECONDS, "workers that are back"):
                if not away:
                    break
                rows = router.get("/router/workers")["workers"]
                away = living & {row["id"] for row in rows if row["state"] != "ready"}
        if away:
            yield f"not back: {away}"


def _answers(worker: SimProcess) -> bool:
    try:
        worker.state()
    except OSError:
        return False
    return True
