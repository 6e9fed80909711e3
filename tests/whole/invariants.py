"""What must hold after every case, whatever it was."""

from __future__ import annotations

import contextlib

from loadtest.fleet import until
from tests.whole.rig import ADMIN_KEY, CANARY, Rig, open_descriptors, samples, total

AT_REST = (
    "router_in_flight",
    "router_worker_load",
    "router_queue_depth",
    "router_active_requests",
    "router_body_bytes",
)


def check_invariants(rig: Rig) -> None:
    """Nothing in flight, every request accounted for once, and nothing said in the log that it must not say."""
    check_rest(rig)
    if rig.countable:
        check_outcomes(rig)
    for router in rig.routers:
        check_log(rig, router.log.read_text(errors="replace"))


def check_outcomes(rig: Rig) -> None:
    """Every request that was sent has ended in one way."""
    expected, counted = rig.sent, -1.0
    with contextlib.suppress(TimeoutError):
        for _ in until(5, "all requests to be accounted for"):
            counted = rig.metric("router_outcomes_total")
            if counted >= expected:
                break
    rig.sent = int(counted)  # one case that does not add up is enough
    assert counted == expected, list(samples(rig.routers[0].metrics(), "router_outcomes_total"))


def check_rest(rig: Rig) -> None:
    """Gauges of all replicas come to 0, and the workers know of no request that still runs."""
    busy: object = None
    alive = [router for router in rig.routers if router.alive]
    try:
        for _ in until(5, "gauges at 0"):
            texts = [router.metrics() for router in alive]
            busy = {name: [total(text, name) for text in texts] for name in AT_REST}
            if not any(any(values) for values in busy.values()):
                break
        for _ in until(5, "workers at rest"):
            busy = [(state["running"], state["waiting"]) for state in (worker.state() for worker in rig.workers)]
            if not any(any(counts) for counts in busy):
                break
    except TimeoutError as error:
        raise AssertionError(f"{error}: {busy}") from None


def check_log(rig: Rig, log: str) -> None:
    """No addresses of workers, prompts, keys or tracebacks."""
    addresses = {worker.url.removeprefix("http://") for worker in rig.workers}
    for secret in {*addresses, *rig.secrets, ADMIN_KEY, CANARY, "Traceback", "internal error"}:
        assert secret not in log, f"{secret!r} is in the log: {_around(log, secret)}"


def check_descriptors(rig: Rig) -> None:
    """Sockets go back to about what they were, but for clients that keep their connections."""
    for router in rig.routers:
        if not router.alive or router.pid not in rig.descriptors:
            continue
        now = before = rig.descriptors[router.pid]
        with contextlib.suppress(TimeoutError):
            for _ in until(8, "descriptors to be closed"):
                kept = total(router.metrics(), "router_client_connections")
                now = open_descriptors(router.pid) - int(kept)
                if now <= before + 5:
                    break
        assert now <= before + 5


def _around(log: str, secret: str) -> str:
    at = log.index(secret)
    return log[max(0, at - 200) : at + 200]
