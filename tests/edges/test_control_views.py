"""What people look at: decisions, the state of everything, and the page that shows it."""

from __future__ import annotations

import base64
import hashlib
import re
import time

import pytest

from router.control.state import quantile, summary
from router.metrics import Histogram
from router.policy import Reason
from tests.edges.control_rig import ADMIN, AS_ADMIN, READ, Rig, code_of


@pytest.mark.parametrize(("method", "path"), [*(("GET", path) for path in READ), ("POST", "/router/explain")])
async def test_with_an_admin_key_reading_needs_it(method: str, path: str) -> None:
    rig = Rig(admin=True)
    rig.worker("a")
    body = {"model": "m", "messages": []}
    assert (await rig.call(method, path, json=body)).status_code == 401
    assert (await rig.call(method, path + "?key=" + ADMIN, json=body)).status_code == 401
    assert (await rig.call(method, path, json=body, headers=AS_ADMIN)).status_code == 200


async def test_decisions_newest_first_by_request_and_number() -> None:
    rig = Rig()
    for number in range(150):
        rig.decided(f"r{number}", at=rig.now - 150 + number)
    rig.decided("r7", attempt=2, reason="spill", runner_up="0badcafe", at=rig.now)
    plain = (await rig.call("GET", "/router/decisions")).json()["decisions"]
    one = (await rig.call("GET", "/router/decisions?request_id=r7")).json()["decisions"]
    few = (await rig.call("GET", "/router/decisions?limit=2")).json()["decisions"]
    assert (len(plain), len(few)) == (100, 2)
    assert [record["request_id"] for record in few] == ["r7", "r149"]
    assert [record["attempt"] for record in one] == [2, 1]
    assert "0badcafe holds more" in one[0]["why"]
    assert one[1]["age_seconds"] == 143
    assert abs(one[0]["at"] - time.time()) < 5


@pytest.mark.parametrize("reason", list(Reason))
async def test_every_reason_has_its_words(reason: Reason) -> None:
    rig = Rig()
    rig.decided(reason=reason.value)
    why = (await rig.call("GET", "/router/decisions")).json()["decisions"][0]["why"]
    assert why.endswith(".")
    assert "{" not in why


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "request_id=" + "r" * 129])
async def test_odd_parameters_are_bad_requests(query: str) -> None:
    response = await Rig().call("GET", f"/router/decisions?{query}")
    assert (response.status_code, code_of(response)) == (400, "bad_request")
    assert response.json()["error"]["param"] == query.partition("=")[0]


async def test_state_sums_up_what_the_dashboard_shows() -> None:
    rig = Rig()
    worker = rig.worker("a", [f"m{number}" for number in range(20)])
    rig.metrics.decisions.inc(("m1", "hit"), 2)
    rig.metrics.decisions.inc(("m2", "hit"))
    rig.metrics.decisions.inc(("m1", "spill"))
    for seconds, reason in ((0.2, "hit"), (3.0, "miss"), (4.0, "spill"), (0.001, "bypass"), (0.001, "short")):
        rig.metrics.ttft_seconds.observe(seconds, ("m1", worker.id, reason))
    rig.decided(predicted_cached_tokens=100, reported_cached_tokens=96, verdict="confirmed")
    rig.decided(predicted_cached_tokens=50, verdict="unknown")
    state = (await rig.call("GET", "/router/state")).json()
    assert state["ready"] is True
    assert state["sync"].items() >= {"up": True, "peers": 1, "lag_seconds": 0.002}.items()
    assert state["workers"][0]["models"] == [f"m{number}" for number in range(8)]
    assert state["workers"][0]["model_count"] == 20
    assert state["totals"]["reasons"] == {**dict.fromkeys(map(str, Reason), 0), "hit": 3, "spill": 1}
    assert state["recent_hits"]["predicted_tokens"] == 100
    assert state["recent_hits"]["reported_tokens"] == 96
    assert state["recent_hits"]["verdicts"] == {"confirmed": 1, "fell_short": 0, "better": 0, "unknown": 1}
    assert (state["ttft"]["with_hit"]["count"], state["ttft"]["without_hit"]["count"]) == (1, 2)
    assert state["ttft"]["without_hit"]["mean"] == 3.5
    assert len(state["decisions"]) == 2


async def test_many_viewers_cost_as_much_as_one() -> None:
    rig = Rig()
    first = await rig.call("GET", "/router/state")
    rig.decided()
    rig.now += 0.4
    assert (await rig.call("GET", "/router/state")).content == first.content
    rig.now += 0.2
    assert len((await rig.call("GET", "/router/state")).json()["decisions"]) == 1


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ([0, 0, 0], 0.5, None),
        ([10, 0, 0], 0.5, 0.5),
        ([0, 10, 0], 0.5, 1.5),
        ([5, 5, 0], 0.5, 1.0),
        ([5, 5, 0], 0.95, 1.9),
        ([0, 0, 3], 0.5, 2.0),
    ],
)
def test_quantiles_of_buckets(counts: list[float], share: float, expected: float | None) -> None:
    found = quantile((1.0, 2.0), counts, share)
    assert found == (None if expected is None else pytest.approx(expected))


def test_a_summary_of_nothing_is_unknown_not_zero() -> None:
    assert summary(Histogram("x", ""), {"hit"}) == {"count": 0, "mean": None, "p50": None, "p95": None}


# -- the dashboard -------------------------------------------------------------------------------------


async def test_the_dashboard_is_one_page_that_loads_nothing_from_elsewhere() -> None:
    response = await Rig(admin=True).call("GET", "/router/dashboard")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    page = response.text
    addresses = set(re.findall(r"https?://[^\s\"']+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]*\bsrc=", page)
    assert "innerHTML" not in page.replace("outerHTML", "")


async def test_the_page_allows_its_own_script_and_style_alone() -> None:
    response = await Rig().call("GET", "/router/dashboard")
    policy = response.headers["content-security-policy"]
    for tag in ("script", "style"):
        bodies = re.findall(f"<{tag}>(.*?)</{tag}>", response.text, re.DOTALL)
        assert len(bodies) == response.text.count(f"<{tag}") == 1
        digest = base64.b64encode(hashlib.sha256(bodies[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy
    assert "unsafe" not in policy
    assert not re.findall(r"\s(?:style|on\w+)=\"", response.text), "the policy would block these"


async def test_the_page_names_every_element_that_its_script_asks_for() -> None:
    page = (await Rig().call("GET", "/router/dashboard")).text
    ids = set(re.findall(r'\bid="([\w-]+)"', page))
    asked = set(re.findall(r'(?:\$|text|pill|rows)\("([\w-]+)"', page))
    assert len(asked) > 20
    assert asked <= ids
