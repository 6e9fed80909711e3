"""A worker falls silent with more requests on it than the budget of retries can move."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loadtest.fleet import until
from router.workers.registry import worker_id
from tests.whole.rig import Rig, building, chat_body, group

# A few retries and no more, so that the case sees where they end; nobody waits for a first byte for that long.
SETTINGS = {"ROUTER_RETRY__BUDGET_SHARE": "0", "ROUTER_TIMEOUTS__FIRST_BYTE": "30"}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with building(tmp_path_factory.mktemp("budget")) as build:
        yield build(group("twins", 2, apart=True), settings=SETTINGS)


def test_p56_requests_that_the_budget_cannot_move_wait_on(rig: Rig) -> None:
    silent = rig.groups["twins"][0]
    moved = rig.metric("router_retries_total", cause="reset")
    silent.pause()
    try:
        with rig.only(silent, "twins"):
            calls = [rig.open(chat_body(f"waits {number}", model="twins")) for number in range(10)]
            for _ in until(5, "all of them there"):
                if rig.metric("router_in_flight", worker=worker_id(silent.url)) == 10:
                    break
        for _ in until(5, "the worker to be given up"):
            if rig.rows("twins")[0]["state"] == "unready":
                break
    finally:
        silent.resume()
    answers = [call.rest() for call in calls]
    assert [answer[:15] for answer in answers] == [b"HTTP/1.1 200 OK"] * 10
    assert rig.metric("router_retries_total", cause="reset") - moved <= 3
