"""The stream of events: what comes, to how many, and when it ends."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest

from router.control.events import BYTES_PER_SECOND, MAX_LISTENERS, Events
from router.control.history import STEP_SECONDS, STEPS, History
from router.control.state import State
from router.metrics import Metrics
from tests.edges.control_rig import AS_ADMIN, Rig, code_of


class Listener:
    """One client of the stream, played at the level of ASGI: httpx would wait for the end."""

    def __init__(self, rig: Rig, **headers: str) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.gone = asyncio.Event()
        self.blocked: asyncio.Event | None = None
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/router/events",
            "raw_path": b"/router/events",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        self.task = asyncio.create_task(rig.app(scope, self.receive, self.send))

    async def receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
            return
        if self.blocked is not None:
            await self.blocked.wait()
        self.frames.put_nowait(message["body"])

    async def events(self) -> list[tuple[str, Any]]:
        """Those of the next frame."""
        frame = await asyncio.wait_for(self.frames.get(), 10)
        found = []
        for event in frame.decode().strip().split("\n\n"):
            name, data = event.split("\n")
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
        return found

    async def leave(self) -> None:
        self.gone.set()
        await asyncio.wait_for(self.task, 10)


async def test_the_first_frame_has_everything_and_later_ones_what_changed() -> None:
    rig = Rig()
    rig.worker("a")
    rig.app.tick(rig.now)
    listener = Listener(rig)
    first = await listener.events()
    assert [name for name, _ in first] == ["history", "state"]
    assert first[0][1]["rows"]
    assert [name for name, _ in await listener.events()] == ["state"]
    rig.now += STEP_SECONDS
    rig.app.tick(rig.now)
    rig.decided("seen")
    names = dict(await listener.events())
    assert set(names) == {"history", "state"}
    assert names["state"]["decisions"][0]["request_id"] == "seen"
    assert listener.headers[b"content-type"].startswith(b"text/event-stream")
    assert listener.headers[b"cache-control"] == b"no-store"
    assert b"content-length" not in listener.headers
    await listener.leave()


async def test_a_drain_says_goodbye_and_ends_the_stream() -> None:
    rig = Rig()
    listener = Listener(rig)
    await listener.events()
    rig.draining = True
    assert await listener.events() == [("bye", {})]
    await asyncio.wait_for(listener.task, 10)
    refused = await rig.call("GET", "/router/events")
    assert (refused.status_code, code_of(refused)) == (503, "no_worker_available")


async def test_so_many_may_listen_and_a_place_becomes_free() -> None:
    rig = Rig()
    listeners = [Listener(rig) for _ in range(MAX_LISTENERS)]
    for listener in listeners:
        await listener.events()
    refused = await rig.call("GET", "/router/events")
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    await listeners[0].leave()
    late = Listener(rig)
    await late.events()
    for listener in [*listeners[1:], late]:
        await listener.leave()


async def test_nothing_is_queued_for_a_listener_that_does_not_read() -> None:
    rig = Rig()
    slow = Listener(rig)
    await slow.events()
    slow.blocked = asyncio.Event()
    prompt = Listener(rig)
    for number in range(3):
        rig.decided(f"r{number}")
        rig.now += 1
        await prompt.events()
    slow.blocked.set()
    slow.blocked = None
    await slow.events()  # the one that it was stuck in
    latest = dict(await slow.events())["state"]["decisions"]
    assert [one["request_id"] for one in latest] == ["r2", "r1", "r0"]
    assert slow.frames.empty()
    await slow.leave()
    await prompt.leave()


async def test_with_an_admin_key_listening_needs_it() -> None:
    rig = Rig(admin=True)
    assert (await rig.call("GET", "/router/events")).status_code == 401
    listener = Listener(rig, **AS_ADMIN)
    await listener.events()
    assert listener.status == 200
    await listener.leave()


async def test_a_listener_that_is_cancelled_leaves_no_trace() -> None:
    rig = Rig()
    state = State(rig.context, History(rig.metrics, rig.ring))
    events = Events(rig.context, state, History(rig.metrics, rig.ring))
    answer = await events.stream()

    async def receive() -> Any:
        await asyncio.Event().wait()

    sent = asyncio.Event()

    async def send(message: Any) -> None:
        sent.set()

    task = asyncio.create_task(answer({"type": "http"}, receive, send))
    await asyncio.wait_for(sent.wait(), 10)
    assert events.listeners == 1
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert events.listeners == 0


@pytest.mark.parametrize(("size", "most"), [(1_000, 1.0), (4 * BYTES_PER_SECOND, 4.0)])
def test_large_frames_come_less_often(size: int, most: float) -> None:
    rig = Rig()
    history = History(rig.metrics, rig.ring)
    events = Events(rig.context, State(rig.context, history), history)
    assert most - 1 < events.pause(size) <= most


# -- the history -------------------------------------------------------------------------------------------------


def test_a_row_has_what_happened_since_the_row_before() -> None:
    rig, metrics = Rig(), Metrics()
    history = History(metrics, rig.ring)
    metrics.decisions.inc(("m", "hit"), 3)
    metrics.ttft_seconds.observe(0.2, ("m", "w", "hit"))
    metrics.ttft_seconds.observe(0.4, ("m", "w", "hit"))
    metrics.ttft_seconds.observe(2.0, ("m", "w", "spill"))
    metrics.ttft_seconds.observe(9.0, ("m", "w", "short"))
    metrics.predicted.inc(("m", "w"), 100)
    history.tick(1.0)
    metrics.decisions.inc(("m", "miss"))
    history.tick(1.0 + STEP_SECONDS)
    shown = history.as_dict()
    first, second = shown["rows"]
    assert dict(zip(shown["reasons"], first["reasons"], strict=True))["hit"] == 3
    assert sum(second["reasons"]) == 1
    assert (first["hit_ttft"], first["miss_ttft"], second["hit_ttft"]) == (0.3, 2.0, None)
    assert (first["predicted"], second["predicted"]) == (100, 0)


def test_rows_come_at_their_time_and_old_ones_go() -> None:
    rig = Rig()
    history = History(rig.metrics, rig.ring)
    for tenth in range(10 * int(STEP_SECONDS) * (STEPS + 10)):
        history.tick(100.0 + tenth / 10)
    assert history.version == STEPS + 10
    assert len(history.as_dict()["rows"]) == STEPS


def test_a_clock_that_stood_still_is_not_made_up_for() -> None:
    rig = Rig()
    history = History(rig.metrics, rig.ring)
    for now in (0.0, 1_000.0, 1_001.0, 1_002.0):
        history.tick(now)
    assert history.version == 2


def test_what_caches_spared_is_reported_tokens_over_the_speed_of_prefill() -> None:
    rig = Rig()
    history = History(rig.metrics, rig.ring)
    history.tick(0.0)
    assert history.saved_seconds is None
    rig.decided(
        reason="miss", reported_prompt_tokens=1_000, reported_cached_tokens=0, first_byte_seconds=0.5, total_seconds=9.0
    )
    rig.metrics.reported.inc(("m", "w"), 6_000)
    history.tick(STEP_SECONDS)
    assert history.saved_seconds == pytest.approx(3.0)
